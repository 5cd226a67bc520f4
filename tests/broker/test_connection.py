"""A connection is a nursery of two siblings: whichever ends, for whatever reason, both do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances, check_nobody_left, connect, finish, publish
from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.broker.client import Client
from trionsq.broker.output import MessagePump
from trionsq.broker.topic import Topic
from trionsq.durations import SECOND_NS
from trionsq.testing.conversation import Conversation
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import MemoryTransport
from trionsq.wire import commands
from trionsq.wire.bodies import ListBodies

RESET = ConnectionResetError("reset by the test")

Ending = Callable[[Conversation, Client, MemoryTransport], Awaitable[None]]


async def _end_of_input(consumer: Conversation, client: Client, transport: MemoryTransport) -> None:
    consumer.stream.end_sending()


async def _peer_closes(consumer: Conversation, client: Client, transport: MemoryTransport) -> None:
    consumer.close()


async def _fatal_error(consumer: Conversation, client: Client, transport: MemoryTransport) -> None:
    await consumer.say(b"NONSENSE\n")
    assert await consumer.error() == "E_INVALID invalid command NONSENSE"
    consumer.close()


async def _fatal_error_unread(
    consumer: Conversation, client: Client, transport: MemoryTransport
) -> None:
    # The error frame and the end are never looked at: nsqd waits for a moment only.
    await consumer.say(b"NONSENSE\n")


async def _line_too_long(
    consumer: Conversation, client: Client, transport: MemoryTransport
) -> None:
    await consumer.say(b"x" * 20_000)


async def _read_fails(consumer: Conversation, client: Client, transport: MemoryTransport) -> None:
    transport.incoming.break_with(RESET)


async def _write_of_an_answer_fails(
    consumer: Conversation, client: Client, transport: MemoryTransport
) -> None:
    transport.outgoing.break_with(RESET)
    await consumer.say(commands.publish("other", b"x"))


async def _write_of_a_message_fails(
    consumer: Conversation, client: Client, transport: MemoryTransport
) -> None:
    transport.outgoing.break_with(RESET)
    assert isinstance(client.channel, Channel)
    assert isinstance(client.channel.topic, Topic)
    client.channel.topic.publish(ListBodies([b"more"]))


async def _closed_by_us(consumer: Conversation, client: Client, transport: MemoryTransport) -> None:
    client.close()


ENDINGS = [
    _end_of_input,
    _peer_closes,
    _fatal_error,
    _fatal_error_unread,
    _line_too_long,
    _read_fails,
    _write_of_an_answer_fails,
    _write_of_a_message_fails,
    _closed_by_us,
]
FAULTS = (_read_fails, _write_of_an_answer_fails, _write_of_a_message_fails)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__.strip("_"))
async def test_both_siblings_end(ending: Ending, autojump_clock: MockClock) -> None:
    """Whatever ends a connection: no task, no consumer and no client is left, all balances.

    What was in flight stays so until its time is over, and then another client gets it.
    """
    async with nsqd_in_memory(msg_timeout_ns=5 * SECOND_NS) as broker:
        consumer, client, transport = connect(broker)
        await consumer.subscribe("t", "c", ready=3)
        publish(broker, "t", b"1", b"2", b"3")
        await finish(consumer, (await consumer.messages(3))[0])
        await wait_all_tasks_blocked()
        await ending(consumer, client, transport)
        await trio.sleep(1.5)
        check_nobody_left(broker)
        check_balances(broker)
        assert transport.is_closed
        assert broker.client_failures == 0
        if ending in FAULTS:
            assert transport.incoming.faults + transport.outgoing.faults > 0
        channel = broker.topics["t"].channels["c"].core
        assert channel.in_flight_count >= 2
        other = Conversation.begin(broker)
        await other.subscribe("t", "c", ready=10)
        # A message that was written to a socket that broke: nobody can know whether it arrived.
        expected = {b"2", b"3"} | ({b"more"} if ending is _write_of_a_message_fails else set())
        assert {m.body for m in await other.messages(len(expected))} == expected
        assert channel.timeout_count == len(expected)


@pytest.mark.parametrize(
    "where", ["Client._run_commands", "MessagePump._write_messages", "MessagePump.frames"]
)
async def test_a_defect_costs_one_connection(
    where: str,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unforeseen exception in either sibling is logged with its trace, counted, and no more."""
    async with nsqd_in_memory(msg_timeout_ns=5 * SECOND_NS) as broker:
        bystander = Conversation.begin(broker)
        await bystander.subscribe("t", "other", ready=10)
        consumer, client, transport = connect(broker)
        await consumer.subscribe("t", "c", ready=10)
        await wait_all_tasks_blocked()

        owner, method = where.split(".")
        cls = Client if owner == "Client" else MessagePump
        original = getattr(cls, method)

        def broken(self: Client | MessagePump, *arguments: object) -> object:
            if self in (client, client.pump):
                raise ZeroDivisionError("a defect")
            return original(self, *arguments)

        monkeypatch.setattr(cls, method, broken)
        publish(broker, "t", b"1")
        await consumer.say(commands.nop())
        assert await consumer.end() == [] or where == "Client._run_commands"
        await wait_all_tasks_blocked()
        assert transport.is_closed
        assert client not in broker.clients
        assert broker.client_failures == 1
        [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert record.exc_info is not None
        assert "ZeroDivisionError" in caplog.text
        assert (await bystander.message()).body == b"1"
        check_balances(broker)
        monkeypatch.undo()
        other = Conversation.begin(broker)
        await other.subscribe("t", "c", ready=10)
        assert (await other.message()).body == b"1"


async def test_what_was_never_written_goes_back_at_once(autojump_clock: MockClock) -> None:
    """Deliveries still in the hand-over queue return to the head, their attempts unchanged."""
    big = 40_000
    async with nsqd_in_memory() as broker:
        consumer, client, _ = connect(broker, capacity_bytes=1000)
        await consumer.subscribe("t", "c", ready=2500)
        for number in range(30):
            publish(broker, "t", b"%0*d" % (big, number))
            await wait_all_tasks_blocked()
        channel = broker.topics["t"].channels["c"].core
        assert (channel.in_flight_count, channel.depth) == (30, 0)
        client.close()
        await wait_all_tasks_blocked()
        written = channel.in_flight_count
        assert 0 < written < 30
        assert channel.depth == 30 - written
        check_balances(broker)
        other = Conversation.begin(broker)
        await other.subscribe("t", "c", ready=2500)
        messages = await other.messages(30 - written)
        assert [int(message.body[-4:]) for message in messages] == list(range(written, 30))
        assert {message.attempts for message in messages} == {1}
        await finish(other, *messages)
        late = await other.messages(written)
        assert [int(message.body[-4:]) for message in late] == list(range(written))
        assert {message.attempts for message in late} == {2}


async def test_requeue_on_disconnect_puts_all_back_at_once(autojump_clock: MockClock) -> None:
    """With --requeue-on-disconnect nothing waits for its time-out; written attempts count."""
    async with nsqd_in_memory() as broker:
        broker.context.requeue_on_disconnect = True
        consumer, _, _ = connect(broker)
        await consumer.subscribe("t", "c", ready=10)
        publish(broker, "t", b"1")
        assert (await consumer.message()).attempts == 1
        consumer.close()
        await wait_all_tasks_blocked()
        channel = broker.topics["t"].channels["c"].core
        assert (channel.depth, channel.in_flight_count) == (1, 0)
        other = Conversation.begin(broker)
        await other.subscribe("t", "c", ready=10)
        assert (await other.message()).attempts == 2
        check_balances(broker)


@pytest.mark.parametrize("sent", [b"", b"  V", b"GET ", b"  V2", b"  V2PUB t\n\0\0", b"  V2SUB t"])
async def test_a_connection_may_end_anywhere(sent: bytes, autojump_clock: MockClock) -> None:
    """Before and in the magic, in a line, in a body: the connection goes, and nothing else."""
    async with nsqd_in_memory() as broker:
        talk = Conversation.begin(broker, magic=sent)
        await wait_all_tasks_blocked()
        talk.stream.end_sending()
        frames = await talk.end()
        assert len(frames) == (1 if sent in (b"GET ", b"  V2PUB t\n\0\0") else 0)
        await trio.sleep(2)
        check_nobody_left(broker)
        assert broker.topics == {}


async def test_an_error_frame_arrives_though_the_client_still_sends(
    autojump_clock: MockClock,
) -> None:
    """Input behind a fatal command is read and thrown away, so that no reset takes the frame."""
    async with nsqd_in_memory() as broker:
        talk = Conversation.begin(broker, capacity_bytes=4096)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_until_closed, talk)
            await trio.sleep(5)
            [frame] = await talk.end()
        assert "E_INVALID" in str(frame)
        await wait_all_tasks_blocked()
        check_nobody_left(broker)


async def test_an_error_frame_waits_for_what_is_pending(autojump_clock: MockClock) -> None:
    """A client that is behind with its reading still gets the error frame, in its place."""
    async with nsqd_in_memory() as broker:
        talk = Conversation.begin(broker, capacity_bytes=100)
        await talk.subscribe("t", "c", ready=1)
        publish(broker, "t", b"x" * 1000)
        await wait_all_tasks_blocked()
        await talk.say(b"NONSENSE\n")
        await trio.sleep(0.5)
        assert (await talk.message()).body == b"x" * 1000
        assert await talk.error() == "E_INVALID invalid command NONSENSE"
        assert await talk.end() == []


async def _send_until_closed(talk: Conversation) -> None:
    await talk.say(b"NONSENSE\n")
    for _ in range(20):
        await talk.say(b"x" * 4096)
    talk.stream.end_sending()


async def test_a_client_that_never_stops_sending_is_closed_all_the_same(
    autojump_clock: MockClock,
) -> None:
    """The last words take a second at most."""
    async with nsqd_in_memory() as broker:
        talk, client, transport = connect(broker)
        await talk.say(b"NONSENSE\n")
        start_s = trio.current_time()
        try:
            while not transport.is_closed:
                await talk.say(b"x")
                await trio.sleep(0.01)
        except trio.BrokenResourceError:
            pass
        assert trio.current_time() - start_s < 1.1
        assert client not in broker.clients


async def test_the_broker_ends_with_its_connections(autojump_clock: MockClock) -> None:
    """stop() closes every connection without a frame, and run() returns."""
    transports = []
    async with nsqd_in_memory() as broker:
        for number in range(5):
            talk, _, transport = connect(broker)
            transports.append(transport)
            await talk.subscribe("t", f"c{number}", ready=number)
        publish(broker, "t", b"1", b"2")
    assert all(transport.is_closed for transport in transports)
    assert_nothing_of(broker)


def assert_nothing_of(broker: Broker) -> None:
    """No client is left of a broker that ended."""
    assert not broker.clients
    check_balances(broker)
