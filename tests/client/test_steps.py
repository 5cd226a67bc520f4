"""No step of the client's tasks grows with the number of connections, nsqds or messages: counted,
not timed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.client.network import ADDRESS, Network
from tests.client.test_consumer import consumer_of, subscribed
from tests.steps import counted_steps
from trionsq import httpget
from trionsq.client import Config, Consumer, flow
from trionsq.client import message as message_module
from trionsq.client.backoff import Outcome
from trionsq.client.connection import Connection
from trionsq.client.flow import FlowControl
from trionsq.client.handshake import Handshake
from trionsq.client.message import Batch, BatchOrigin, BatchSource, Message, MessageIterator
from trionsq.client.subscribed_connection import SubscribedConnection
from trionsq.wire import frames
from trionsq.wire.client import ColumnDecoder, Columns

STEP_MAX = 256


class FakeConnection:
    """A connection as `FlowControl` knows it."""

    def __init__(self, sent: list[int]) -> None:
        self.share = flow.Share(2500)
        self.lowered_s = 0.0
        self._sent = sent

    def send_rdy(self, rdy: int) -> None:
        self._sent.append(rdy)
        self.share.set_rdy(rdy, trio.current_time())

    def count_overdue(self, now_s: float) -> None:
        """It never has a message."""


class PlanCounter:
    """A `FlowControl` that counts the connections in its plans, and the RDYs it sends."""

    def __init__(self, connections: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flow = FlowControl(Config(max_in_flight=connections // 2), Random(1))
        self.looked_at = 0
        self.sent: list[int] = []
        self.connections = [
            cast(flow.RdyReceiver, FakeConnection(self.sent)) for _ in range(connections)
        ]
        plan = flow.plan

        def counted(shares: Sequence[flow.Share], max_in_flight: int) -> flow.Plan:
            self.looked_at += len(shares)
            return plan(shares, max_in_flight)

        monkeypatch.setattr("trionsq.client.flow.plan", counted)

    async def settle(self) -> int:
        """Wait until nothing is left to do. Returns how many connections were looked at since."""
        await wait_all_tasks_blocked()
        looked_at, self.looked_at = self.looked_at, 0
        return looked_at


@pytest.mark.parametrize("messages", [10, 10_000])
async def test_answers_cost_one_plan_however_many_they_are(
    messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many messages are answered in a turn, one plan is made."""
    planned = PlanCounter(100, monkeypatch)
    async with trio.open_nursery() as nursery:
        planned.flow.start(nursery)
        for connection in planned.connections:
            planned.flow.add_connection(connection)
        await planned.settle()
        for _ in range(messages):
            planned.flow.note_answer(Outcome.SUCCESS, has_made_room=True)
        assert await planned.settle() == 100
        nursery.cancel_scope.cancel()


async def test_connections_that_come_and_go_together_cost_one_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 plans over 10,000 connections would take minutes."""
    planned = PlanCounter(10_000, monkeypatch)
    async with trio.open_nursery() as nursery:
        planned.flow.start(nursery)
        with counted_steps(lambda: len(planned.sent)) as steps:
            for connection in planned.connections:
                planned.flow.add_connection(connection)
            assert await planned.settle() == 10_000
        assert len(planned.sent) == 10_000
        assert steps.most <= STEP_MAX
        for connection in planned.connections[10:]:
            planned.flow.remove_connection(connection)
        assert await planned.settle() == 10
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("batches", [10, 10_000])
async def test_a_step_gives_back_one_batch(batches: int) -> None:
    """However many batches go back at the end, heartbeats are answered in between."""
    sent: list[bytes] = []
    connection = SimpleNamespace(address=ADDRESS, max_rdy_count=2500, is_open=True, put=sent.append)
    owner = SimpleNamespace(
        config=Config(max_attempts=0), queue_batch=lambda _: None, note_answer=lambda *_: None
    )
    subscribed_connection = SubscribedConnection(cast(Any, owner), cast(Any, connection))
    subscribed_connection.send_rdy(2500)
    sent.clear()
    for number in range(batches):
        subscribed_connection._receive(Columns([1], [1], [b"%016x" % number], [b"x"]))
    with counted_steps(lambda: len(sent)) as steps:
        await subscribed_connection.return_messages()
    assert len(sent) == batches
    assert steps.most == 1


async def test_a_step_gives_up_a_bounded_number_of_messages(autojump_clock: MockClock) -> None:
    """Each message that is given up is a line of the log."""
    network = Network().held()
    given_up = 0

    async def give_up(_message: Message) -> None:
        nonlocal given_up
        given_up += 1

    async with trio.open_nursery() as nursery:

        async def deliver() -> None:
            peer = await subscribed(network)
            one = [frames.message_frame(1, 9, b"%016x" % number, b"x") for number in range(1000)]
            assert await peer.line() == b"RDY 1000"
            await peer.say(*one)
            while await peer.line() != b"FIN %016x" % 999:
                pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(deliver)
        config = Config(max_in_flight=1000, max_attempts=3)
        async with consumer_of(network, config=config, on_give_up=give_up) as consumer:
            with counted_steps(lambda: given_up) as steps:
                await consumer.next_batch()
    assert given_up == 1000
    assert steps.most <= STEP_MAX


class Directory:
    """An nsqlookupd with many nsqds, and a network in which none of them answers."""

    def __init__(self, nsqds: int) -> None:
        producers = [
            {"broadcast_address": f"nsqd{number}.test", "tcp_port": 4150} for number in range(nsqds)
        ]
        self.body = json.dumps({"producers": producers}).encode()

    async def get(self, *_: object, **__: object) -> httpget.Answer:
        await trio.lowlevel.checkpoint()
        return httpget.Answer(200, {"x-nsq-content-type": "nsq; version=1.0"}, self.body)

    async def dial(self, *_: object) -> Any:
        await trio.sleep_forever()


@pytest.mark.parametrize("nsqds", [10, 5000])
async def test_a_step_begins_to_connect_to_a_bounded_number_of_nsqds(
    nsqds: int, mock_clock: MockClock
) -> None:
    """An answer may name thousands of nsqds: they are connected and closed over many turns."""
    directory = Directory(nsqds)
    consumer = Consumer(
        "t",
        "c",
        lookupd_http_addresses=["lookupd.test:4161"],
        get=directory.get,
        dial=directory.dial,
    )
    begun = 0
    async with consumer:
        with counted_steps(lambda: len(consumer._loops)) as steps:
            await wait_all_tasks_blocked()
            begun = len(consumer._loops)
        consumer.stop()
        with counted_steps(
            lambda: sum(loop._is_stopping for loop in consumer._loops.values())
        ) as stops:
            await trio.lowlevel.checkpoint()
    assert begun == nsqds
    assert 0 < steps.most <= STEP_MAX
    assert stops.most <= 1


@pytest.mark.parametrize("refusals", [10, 4000])
async def test_a_step_looks_at_a_bounded_number_of_refusals(
    refusals: int, autojump_clock: MockClock
) -> None:
    """A restarted nsqd refuses all that was in flight, and each refusal is a line of the log."""
    network = Network().held()
    frame = b"\x00\x00\x00\x14\x00\x00\x00\x01E_FIN_FAILED FIN"
    async with trio.open_nursery() as nursery:
        is_counting = trio.Event()

        async def refuse() -> None:
            peer = await subscribed(network)
            await is_counting.wait()
            await peer.say(frame * refusals)

        nursery.start_soon(refuse)
        async with consumer_of(network) as consumer:
            with counted_steps(lambda: consumer.stats().refused) as steps:
                is_counting.set()
                await wait_all_tasks_blocked()
            assert consumer.stats().refused == refusals
    assert 0 < steps.most <= STEP_MAX


class Socket:
    """A transport that accepts everything and records the sizes."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def send_nowait(self, data: bytes) -> int:
        self.taken.append(len(data))
        return len(data)


@pytest.mark.parametrize("commands", [10, 1000])
async def test_a_write_is_bounded_whatever_waits(commands: int) -> None:
    """At most 1 MiB is joined (and encrypted) at once, unless one command is larger."""
    socket = Socket()
    handshake = SimpleNamespace(address=ADDRESS, features={}, tls=None, transport=socket)
    connection = Connection(cast(Handshake, handshake), Config(), ColumnDecoder())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection._write)
        await wait_all_tasks_blocked()
        for _ in range(commands):
            connection.put(b"x" * 100_000)
        connection.put(b"x" * 5_000_000)
        connection.put(b"x")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sum(socket.taken) == 100_000 * commands + 5_000_001
    assert max(nbytes for nbytes in socket.taken if nbytes < 5_000_000) <= 1 << 20
    assert connection._pending_bytes == 0


async def test_iterating_over_messages_leaves_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every 10 ms, though the messages of one batch need no waiting."""
    now_s = 100.0

    def perf_counter() -> float:
        nonlocal now_s
        now_s += 0.001
        return now_s

    monkeypatch.setattr(message_module, "time", SimpleNamespace(perf_counter=perf_counter))
    count = 200
    columns = Columns(
        [1] * count, [1] * count, [b"%016x" % n for n in range(count)], [b"x"] * count
    )
    origin = cast(BatchOrigin, SimpleNamespace(is_open=True))

    class Source:
        async def next_batch(self) -> Batch:
            await trio.lowlevel.checkpoint()
            return Batch(origin, columns)

    turns = 0
    messages = MessageIterator(cast(BatchSource, Source()))

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(count):
            await anext(messages)
        nursery.cancel_scope.cancel()
    assert turns >= count // 12


async def test_the_time_of_a_lowered_rdy_is_that_of_its_lowering(
    autojump_clock: MockClock,
) -> None:
    """A raised one does not count, for it needs no time to settle; the same is not sent again."""
    sent: list[bytes] = []
    connection = SimpleNamespace(address=ADDRESS, max_rdy_count=2500, is_open=True, put=sent.append)
    owner = SimpleNamespace(config=Config())
    subscribed_connection = SubscribedConnection(cast(Any, owner), cast(Any, connection))
    times = []
    for rdy in (5, 3, 3, 4):
        await trio.sleep(1)
        subscribed_connection.send_rdy(rdy)
        times.append(subscribed_connection.lowered_s)
    assert times == [0.0, 2.0, 2.0, 2.0]
    assert sent == [b"RDY 5\n", b"RDY 3\n", b"RDY 4\n"]
