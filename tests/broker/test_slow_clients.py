"""Clients who do not read, or send faster than anything can be done: memory stays bounded."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances, connect, finish, numbered, publish
from trionsq.broker.broker import Broker
from trionsq.broker.client import Client
from trionsq.durations import SECOND_NS
from trionsq.testing.conversation import Conversation
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands, frames
from trionsq.wire.client import MessageFrame, Response

KIB = 1024
# What the pump joins for one write, and the frames of one more delivery on top of it.
MESSAGES_PENDING_MAX = 2 * 256 * KIB + 512 * 34
# Deliveries that wait for the pump without frames.
INBOX_MAX = 64
READ_MAX = 128 * KIB


def inbox(client: Client) -> int:
    """Deliveries that wait for the pump of a connection."""
    return client.pump.inbox.count


def is_blocked(client: Client) -> bool:
    """Whether its channel hands it nothing more until the pump has written something."""
    return client.consumer.blocked


async def test_a_client_that_never_reads_holds_little(autojump_clock: MockClock) -> None:
    """RDY 2500 and no reading: one write's frames and 64 deliveries without frames are held."""
    async with nsqd_in_memory() as broker:
        sluggish, client, _ = connect(broker, capacity_bytes=4 * KIB)
        await sluggish.subscribe("t", "c", ready=2500)
        for _ in range(50):
            publish(broker, "t", *numbered(100, size=KIB))
            await wait_all_tasks_blocked()
            assert client.output.pending <= MESSAGES_PENDING_MAX
            assert inbox(client) <= INBOX_MAX
        core = broker.topics["t"].channels["c"].core
        assert core.in_flight_count <= 2500
        assert core.depth == 5000 - core.in_flight_count
        check_balances(broker)


async def test_single_messages_to_a_client_that_never_reads(autojump_clock: MockClock) -> None:
    """When its hand-over queue is full it is blocked: the rest stays in the channel for others."""
    async with nsqd_in_memory() as broker:
        sluggish, client, _ = connect(broker, capacity_bytes=100)
        await sluggish.subscribe("t", "c", ready=2500)
        for body in numbered(200, size=200):
            publish(broker, "t", body)
            await wait_all_tasks_blocked()
        core = broker.topics["t"].channels["c"].core
        assert is_blocked(client)
        assert inbox(client) == INBOX_MAX
        assert core.in_flight_count < 70
        other = Conversation.begin(broker)
        await other.subscribe("t", "c", ready=2500)
        await finish(other, *await other.messages(200 - core.in_flight_count))
        assert core.depth == 0
        check_balances(broker)


async def test_a_blocked_client_goes_on_when_it_reads(autojump_clock: MockClock) -> None:
    """Whoever begins to read gets everything, in order."""
    bodies = numbered(300, size=200)
    async with nsqd_in_memory() as broker:
        sluggish, client, _ = connect(broker, capacity_bytes=100)
        await sluggish.subscribe("t", "c", ready=2500)
        for body in bodies:
            publish(broker, "t", body)
            await wait_all_tasks_blocked()
        assert is_blocked(client)
        assert [m.body for m in await sluggish.messages(300)] == bodies
        assert not is_blocked(client)
        check_balances(broker)


async def test_messages_of_a_client_that_never_reads_time_out(autojump_clock: MockClock) -> None:
    """What it was handed goes to another after msg_timeout, and it is closed for its stall."""
    bodies = numbered(1000, size=KIB)
    async with nsqd_in_memory(msg_timeout_ns=3 * SECOND_NS) as broker:
        sluggish, client, _ = connect(broker, capacity_bytes=KIB)
        await sluggish.say(commands.identify({"heartbeat_interval": 8000}))
        await sluggish.response()
        await sluggish.subscribe("t", "c", ready=2500)
        for first in range(0, 1000, 100):
            publish(broker, "t", *bodies[first : first + 100])
            await wait_all_tasks_blocked()
        other = Conversation.begin(broker)
        await other.subscribe("t", "c", ready=2500)
        got: set[bytes] = set()
        while len(got) < 1000:
            message = await other.message()
            got.add(message.body)
            await other.say(commands.finish(message.message_id))
        assert got == set(bodies)
        assert client not in broker.clients
        await wait_all_tasks_blocked()
        core = broker.topics["t"].channels["c"].core
        assert core.finish_count == 1000
        assert core.timeout_count > 0
        check_balances(broker)


async def test_a_client_that_reads_slowly_is_listened_to(autojump_clock: MockClock) -> None:
    """Its FIN counts while messages wait to be written, whatever it was answered before."""
    async with nsqd_in_memory() as broker:
        sluggish, client, _ = connect(broker, capacity_bytes=4 * KIB)
        await sluggish.subscribe("t", "c", ready=2500)
        publish(broker, "t", *numbered(100, size=KIB))
        message = await sluggish.message()
        await wait_all_tasks_blocked()
        core = broker.topics["t"].channels["c"].core
        for finished in range(1, 4):
            assert client.output.pending
            await finish(sluggish, message)
            assert core.finish_count == finished
            message = await sluggish.message()
        check_balances(broker)


async def test_nothing_follows_close_wait(autojump_clock: MockClock) -> None:
    """What had not been written when CLS came is for others at once, and counts as no attempt."""
    bodies = numbered(60, size=200)
    async with nsqd_in_memory() as broker:
        leaving, client, _ = connect(broker, capacity_bytes=100)
        await leaving.subscribe("t", "c", ready=2500)
        for body in bodies:
            publish(broker, "t", body)
            await wait_all_tasks_blocked()
        assert inbox(client) > 10
        other = Conversation.begin(broker)
        await other.subscribe("t", "c", ready=2500)
        await leaving.say(b"CLS\n")
        got = []
        while isinstance(frame := await leaving.frame(), MessageFrame):
            got.append(frame)
        assert frame == Response(b"CLOSE_WAIT")
        messages = await other.messages(60 - len(got))
        assert [message.body for message in [*got, *messages]] == bodies
        assert {message.attempts for message in messages} == {1}
        await finish(leaving, *got)
        await finish(other, *messages)
        await leaving.silence(1)
        core = broker.topics["t"].channels["c"].core
        assert (core.finish_count, core.depth, core.in_flight_count) == (60, 0, 0)
        check_balances(broker)


async def test_expired_deliveries_are_not_written(autojump_clock: MockClock) -> None:
    """What was emptied away before it was written is left out when reading begins."""
    async with nsqd_in_memory(msg_timeout_ns=2 * SECOND_NS) as broker:
        sluggish, client, _ = connect(broker, capacity_bytes=100)
        await sluggish.subscribe("t", "c", ready=2500)
        for body in numbered(20, size=200):
            publish(broker, "t", body)
            await wait_all_tasks_blocked()
        channel = broker.topics["t"].channels["c"]
        channel.empty()
        publish(broker, "t", b"fresh")
        await wait_all_tasks_blocked()
        assert inbox(client) > 10
        first = await sluggish.message()
        assert first.body == numbered(20, size=200)[0], "it was in the socket already"
        assert (await sluggish.message()).body == b"fresh"
        await sluggish.silence(1)
        check_balances(broker)


async def test_answers_that_nobody_reads_stop_the_reading(autojump_clock: MockClock) -> None:
    """A flood of commands is not read while their answers are not taken."""
    async with nsqd_in_memory() as broker:
        flood, client, transport = connect(broker, capacity_bytes=8 * KIB)
        data = commands.publish("t", b"x") * 10_000
        with trio.move_on_after(20) as scope:
            await flood.say(data)
        assert scope.cancelled_caught
        assert client.output.pending <= READ_MAX
        core = broker.topics["t"].core
        answers = client.output.pending + len(transport.outgoing)
        assert core.message_count == answers // len(frames.OK) < 5000
        assert client.parser.buffered < KIB
        before = core.message_count
        await trio.sleep(5)
        assert core.message_count == before


async def test_failures_that_nobody_reads_stop_the_reading(autojump_clock: MockClock) -> None:
    """The same for error frames, which are longer than the commands: bounded by one read."""
    async with nsqd_in_memory() as broker:
        flood, client, _ = connect(broker, capacity_bytes=8 * KIB)
        await flood.subscribe("t", "c")
        with trio.move_on_after(20) as scope:
            await flood.say(commands.finish(b"0" * 16) * 10_000)
        assert scope.cancelled_caught
        assert 0 < client.output.pending <= 4 * READ_MAX


async def test_a_busy_client_leaves_turns_to_others(autojump_clock: MockClock) -> None:
    """However much one connection sends, another is served meanwhile."""
    async with nsqd_in_memory(mem_queue_size=10**6) as broker:
        busy = Conversation.begin(broker, capacity_bytes=2**24)
        quiet = Conversation.begin(broker)
        await wait_all_tasks_blocked()
        many = 100_000
        busy.stream.send_nowait(commands.publish("t", b"x" * 100) * many)
        await quiet.say(commands.publish("u", b"x"))
        await quiet.response()
        assert broker.topics["t"].core.message_count < many // 2


async def test_a_large_message_fits_in_one_write(autojump_clock: MockClock) -> None:
    """A message of the largest size is delivered to a client whose socket holds little."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker, capacity_bytes=4 * KIB)
        await consumer.subscribe("t", "c", ready=1)
        body = b"x" * broker.options.max_msg_size
        publish(broker, "t", body)
        assert (await consumer.message()).body == body


def bound_of(broker: Broker) -> int:
    """Bytes that one connection may hold for writing: messages, and the answers of one read."""
    return max(MESSAGES_PENDING_MAX, broker.options.max_msg_size + 34) + 4 * READ_MAX


async def test_the_bound_holds_for_large_messages_too(autojump_clock: MockClock) -> None:
    """Large and small messages and answers, never read: what is held stays below the bound."""
    async with nsqd_in_memory() as broker:
        sluggish, client, _ = connect(broker, capacity_bytes=4 * KIB)
        await sluggish.subscribe("t", "c", ready=2500)
        for size in (10, 10**6, 300_000, 5000) * 5:
            publish(broker, "t", b"x" * size)
            await wait_all_tasks_blocked()
            sluggish.stream.send_nowait(commands.finish(b"0" * 16) * 10)
            await wait_all_tasks_blocked()
            assert client.output.pending <= bound_of(broker)
        check_balances(broker)
