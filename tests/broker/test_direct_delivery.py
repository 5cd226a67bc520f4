"""Messages that go to a consumer in the turn in which they were published, by no other task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances, check_nobody_left, connect, numbered
from trionsq.http.fast_connection import FastConnection
from trionsq.http.fast_path import FastPath, WaitLimits
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import MemoryTransport, memory_connection
from trionsq.web.limits import PACE
from trionsq.web.sites import SiteGuard
from trionsq.wire import commands
from trionsq.wire.bodies import ListBodies

LIMITS = WaitLimits(request_s=75, body_s=30, body_pace=PACE, peer_s=20, linger_s=0.5)


class Steps(trio.abc.Instrument):
    """Counts the steps of the tasks that move messages."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.startswith(("topic", "channel")) or task.name.endswith("message_pump"):
            self.names.append(task.name)


@contextmanager
def counted_steps() -> Iterator[list[str]]:
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps.names
    finally:
        trio.lowlevel.remove_instrument(steps)


@contextmanager
def counted_writes(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[int]]:
    written: list[int] = []
    send = transport.send_nowait

    def counted(data: bytes | memoryview) -> int:
        written.append(len(data))
        return send(data)

    monkeypatch.setattr(transport, "send_nowait", counted)
    yield written


async def test_a_publish_wakes_neither_topic_nor_consumer(autojump_clock: MockClock) -> None:
    """A consumer with credit gets the message by the publisher's own look at its input."""
    async with nsqd_in_memory() as broker:
        consumer, _, _ = connect(broker)
        await consumer.subscribe("t", "c", ready=10)
        publisher, _, _ = connect(broker)
        await publisher.say(commands.nop())
        await wait_all_tasks_blocked()
        with counted_steps() as steps:
            await publisher.say(commands.publish("t", b"one"))
            await publisher.response()
            message = await consumer.message()
            assert steps == []
        assert (message.body, message.attempts) == (b"one", 1)
        check_balances(broker)
    check_nobody_left(broker)


async def test_a_publish_over_http_wakes_nobody_either(autojump_clock: MockClock) -> None:
    """The fast path has its turns as well."""
    async with nsqd_in_memory() as broker, trio.open_nursery() as nursery:
        consumer, _, _ = connect(broker)
        await consumer.subscribe("t", "c", ready=10)
        stream, transport = memory_connection()
        fast_path = FastPath(broker, LIMITS, SiteGuard())
        nursery.start_soon(FastConnection(fast_path, transport).run)
        await wait_all_tasks_blocked()
        with counted_steps() as steps:
            head = b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"
            await stream.send_all(head + b"one")
            message = await consumer.message()
            assert steps == []
        assert message.body == b"one"
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 OK")
        nursery.cancel_scope.cancel()
    check_nobody_left(broker)


async def test_a_consumer_gets_one_write_for_a_turn(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Whatever was published in one look, to whatever topic of its channel."""
    async with nsqd_in_memory() as broker:
        consumer, client, transport = connect(broker)
        await consumer.subscribe("t", "c", ready=100)
        publisher, _, _ = connect(broker)
        await wait_all_tasks_blocked()
        with counted_writes(transport, monkeypatch) as written:
            client.output.switch_transport(transport)
            data = b"".join(commands.publish("t", body) for body in numbered(20))
            await publisher.say(data)
            found = await consumer.messages(20)
        assert [message.body for message in found] == numbered(20)
        assert len(written) == 1
        check_balances(broker)


async def test_what_one_brings_goes_with_the_replies_of_another(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """In one look a publisher has brought a message, and its consumer sends a command: neither is
    lost, and there is one write."""
    async with nsqd_in_memory() as broker:
        consumer, client, transport = connect(broker)
        await consumer.subscribe("t", "c", ready=100)
        await wait_all_tasks_blocked()
        turn = broker.context.poller.turn
        with counted_writes(transport, monkeypatch) as written:
            client.output.switch_transport(transport)
            with turn:
                broker.topics["t"].publish(ListBodies([b"one"]))
                broker.topics["t"]._mover.end_turn(False)
                assert client.pump.turn_deliveries
                client.parser.receive(commands.publish("other", b"x"))
                assert client._run_commands() is None
            await consumer.response()
            message = await consumer.message()
        assert message.body == b"one"
        assert len(written) == 1
        check_balances(broker)


async def test_a_defect_in_a_turn_is_noted_and_the_task_takes_over(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The publisher has its answer, and the message comes."""
    async with nsqd_in_memory() as broker:
        consumer, _, _ = connect(broker)
        await consumer.subscribe("t", "c", ready=10)
        publisher, _, _ = connect(broker)
        await wait_all_tasks_blocked()
        core = broker.topics["t"].core
        pump, calls = core.pump, list[int]()

        def broken(now_s: float, now_ns: int) -> int:
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("a defect")
            return pump(now_s, now_ns)

        monkeypatch.setattr(core, "pump", broken)
        await publisher.say(commands.publish("t", b"one"))
        await publisher.response()
        assert (await consumer.message()).body == b"one"
        assert broker.defects.counts["topic"] == 1


async def test_a_consumer_whose_connection_breaks_costs_the_publisher_nothing(
    autojump_clock: MockClock,
) -> None:
    """The message goes back to the channel, and another consumer gets it."""
    async with nsqd_in_memory() as broker:
        consumer, _, transport = connect(broker)
        await consumer.subscribe("t", "c", ready=10)
        publisher, _, _ = connect(broker)
        await wait_all_tasks_blocked()
        transport.outgoing.break_with(ConnectionResetError("reset"))
        await publisher.say(commands.publish("t", b"one"))
        await publisher.response()
        other, _, _ = connect(broker)
        await other.subscribe("t", "c", ready=10)
        assert (await other.message()).body == b"one"
        check_balances(broker)


async def test_a_consumer_that_reads_nothing_is_left_to_its_pump(
    autojump_clock: MockClock,
) -> None:
    """What its socket does not take waits for it, and the publisher goes on."""
    async with nsqd_in_memory() as broker:
        consumer, client, _ = connect(broker, 100)
        await consumer.subscribe("t", "c", ready=100)
        publisher, _, _ = connect(broker)
        for body in numbered(50):
            await publisher.say(commands.publish("t", body))
            await publisher.response()
        assert client.output.pending
        assert [message.body for message in await consumer.messages(50)] == numbered(50)
        check_balances(broker)


async def test_a_paused_topic_moves_nothing_in_a_turn(autojump_clock: MockClock) -> None:
    """What was published meanwhile comes when it goes on."""
    async with nsqd_in_memory() as broker:
        consumer, _, _ = connect(broker)
        await consumer.subscribe("t", "c", ready=10)
        publisher, _, _ = connect(broker)
        await wait_all_tasks_blocked()
        broker.topics["t"].pause()
        await publisher.say(commands.publish("t", b"one"))
        await publisher.response()
        await wait_all_tasks_blocked()
        assert broker.topics["t"].core.depth == 1
        broker.topics["t"].unpause()
        assert (await consumer.message()).body == b"one"
