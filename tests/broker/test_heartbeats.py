"""What happens to a connection by time alone. Spec: tcp-protocol, section 14."""

from __future__ import annotations

import contextlib

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_nobody_left, connect, publish
from trionsq.broker.broker import Broker
from trionsq.broker.defects import Defects
from trionsq.broker.heartbeats import TimingWheel
from trionsq.broker.runtime import Clock
from trionsq.broker.timers import run_heartbeats
from trionsq.testing.conversation import Conversation
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands, frames
from trionsq.wire.client import Response

# How late a look at a client may be, for a heartbeat each 30 s.
LATE_S = 0.3
# Silence and stalls are looked at six times in each interval.
LATE_PART = 1 / 6


async def begin(broker: Broker, **identity: object) -> Conversation:
    """A connection that shows heartbeats, after IDENTIFY if anything is to be said in it."""
    talk = Conversation.begin(broker)
    talk.shows_heartbeats = True
    if identity:
        await talk.say(commands.identify(identity))
        await talk.response()
    return talk


async def say_until_closed(talk: Conversation, said: bytes) -> None:
    """Repeat something until the other side is gone."""
    with contextlib.suppress(trio.BrokenResourceError):
        while True:
            await talk.say(said)
            await trio.sleep(0.1)


async def next_heartbeat_s(talk: Conversation) -> float:
    """When the next frame comes, which must be a heartbeat."""
    frame = await talk.frame()
    assert isinstance(frame, Response)
    assert frame.is_heartbeat
    return trio.current_time()


async def test_the_first_heartbeat_comes_after_a_whole_interval(autojump_clock: MockClock) -> None:
    """By default 30 s after the connection, then every 30 s while the client answers."""
    async with nsqd_in_memory() as broker:
        start_s = trio.current_time()
        talk = await begin(broker)
        for number in range(1, 6):
            at_s = await next_heartbeat_s(talk) - start_s
            assert 30 * number <= at_s <= 30 * number + LATE_S
            await talk.say(commands.nop())


@pytest.mark.parametrize("interval_ms", [1000, 1700, 2000, 5000, 30_000, 60_000])
async def test_a_heartbeat_is_late_by_a_twentieth_of_the_interval_at_most(
    interval_ms: int, autojump_clock: MockClock
) -> None:
    """Never early, and never later than 5 % of the interval, whenever the client connected."""
    interval_s = interval_ms / 1e3
    async with nsqd_in_memory() as broker:
        for offset_s in (0.0, 0.013, 0.1, 0.26, 0.49):
            await trio.sleep(offset_s)
            talk = await begin(broker, heartbeat_interval=interval_ms)
            start_s = trio.current_time()
            for number in range(1, 6):
                late_s = await next_heartbeat_s(talk) - start_s - number * interval_s
                assert -1e-6 <= late_s <= interval_s / 20
                await talk.say(commands.nop())
            talk.close()


async def test_identify_sets_the_interval_and_begins_it_anew(autojump_clock: MockClock) -> None:
    """The interval that the client asked for counts from IDENTIFY on, and does not drift."""
    async with nsqd_in_memory() as broker:
        talk = await begin(broker)
        await trio.sleep(10)
        await talk.say(commands.identify({"heartbeat_interval": 2000}))
        await talk.response()
        start_s = trio.current_time()
        for number in range(1, 20):
            at_s = await next_heartbeat_s(talk) - start_s
            assert 2 * number <= at_s <= 2 * number + LATE_S
            await talk.say(commands.nop())


@pytest.mark.parametrize("interval_ms", [1000, 30_000])
async def test_a_silent_client_is_closed_after_two_intervals(
    interval_ms: int, autojump_clock: MockClock
) -> None:
    """Without a frame, and not before; the heartbeats went out meanwhile."""
    async with nsqd_in_memory() as broker:
        talk = await begin(broker, heartbeat_interval=interval_ms)
        start_s = trio.current_time()
        frames = await talk.end()
        took_s = trio.current_time() - start_s
        interval_s = interval_ms / 1e3
        assert 2 * interval_s <= took_s <= (2 + LATE_PART) * interval_s + 2 * LATE_S
        assert 1 <= len(frames) <= 2
        assert all(isinstance(frame, Response) and frame.is_heartbeat for frame in frames)
        await wait_all_tasks_blocked()
        check_nobody_left(broker)


async def test_any_command_is_a_sign_of_life(autojump_clock: MockClock) -> None:
    """NOP is the usual one, but whoever publishes or finishes need not send it."""
    async with nsqd_in_memory() as broker:
        talk = await begin(broker, heartbeat_interval=1000)
        for _ in range(5):
            await trio.sleep(1.5)
            await talk.say(commands.nop())
        for _ in range(5):
            await trio.sleep(1.5)
            await talk.say(commands.publish("t", b"x"))
        await wait_all_tasks_blocked()
        assert broker.clients
        assert broker.topics["t"].core.depth == 5


async def test_a_part_of_a_command_is_no_sign_of_life(autojump_clock: MockClock) -> None:
    """A body that trickles in does not keep a connection: only whole command lines do."""
    async with nsqd_in_memory() as broker:
        talk = await begin(broker, heartbeat_interval=1000)
        start_s = trio.current_time()
        await talk.say(b"PUB t\n\0\0\x10\0")
        await say_until_closed(talk, b"x")
        assert 2 <= trio.current_time() - start_s <= 2 + 2 * LATE_PART + 2 * LATE_S
        assert broker.topics == {}


async def test_heartbeats_can_be_off(autojump_clock: MockClock) -> None:
    """With -1 none come, and silence is no reason to close."""
    async with nsqd_in_memory() as broker:
        talk = await begin(broker, heartbeat_interval=-1)
        await talk.silence(500)
        await trio.sleep(3600)
        await talk.say(commands.publish("t", b"still here"))
        await talk.response()


async def test_a_client_that_takes_nothing_is_closed_after_an_interval(
    autojump_clock: MockClock,
) -> None:
    """A write that is stuck for a heartbeat interval ends the connection, though it sends NOPs."""
    async with nsqd_in_memory() as broker:
        talk, client, transport = connect(broker, capacity_bytes=500)
        await talk.say(commands.identify({"heartbeat_interval": 2000}))
        await talk.response()
        await talk.subscribe("t", "c", ready=10)
        publish(broker, "t", b"x" * 1000)
        await wait_all_tasks_blocked()
        assert client.output.pending > 0
        start_s = trio.current_time()
        await say_until_closed(talk, commands.nop())
        assert transport.is_closed
        assert 2 <= trio.current_time() - start_s <= 2 + 2 * LATE_PART + 2 * LATE_S
        check_nobody_left(broker)


async def test_a_client_that_takes_a_little_is_kept(autojump_clock: MockClock) -> None:
    """However slow it reads: bytes that are taken start the interval anew."""
    async with nsqd_in_memory() as broker:
        talk, client, _ = connect(broker, capacity_bytes=500)
        await talk.say(commands.identify({"heartbeat_interval": 1000}))
        await talk.response()
        await talk.subscribe("t", "c", ready=10)
        publish(broker, "t", b"x" * 5000)
        taken = 0
        while taken < 5000 + 34:
            taken += len(await talk.stream.receive_some(250))
            await talk.say(commands.nop())
            await trio.sleep(0.8)
        assert client in broker.clients


async def test_a_client_that_takes_answers_slowly_is_kept(autojump_clock: MockClock) -> None:
    """While answers are not taken nothing is read, and so the silence is not held against it."""
    async with nsqd_in_memory() as broker:
        talk, client, _ = connect(broker, capacity_bytes=100)
        await talk.say(commands.identify({"heartbeat_interval": 1000}))
        await talk.frame()
        count = 100
        taken = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk.say, commands.publish("t", b"x") * count)
            while taken < count * len(frames.OK):
                taken += len(await talk.stream.receive_some(len(frames.OK)))
                assert client in broker.clients or not client.output.pending
                await trio.sleep(0.3)
        assert broker.topics["t"].core.message_count == count


async def test_a_heartbeat_waits_behind_nothing(autojump_clock: MockClock) -> None:
    """To a client with something pending no heartbeat is sent: it would only queue behind."""
    async with nsqd_in_memory() as broker:
        talk, client, _ = connect(broker, capacity_bytes=100)
        await talk.subscribe("t", "c", ready=10)
        publish(broker, "t", b"x" * 1000)
        await wait_all_tasks_blocked()
        pending = client.output.pending
        await trio.sleep(30 - 1)
        await talk.say(commands.nop())
        await trio.sleep(1 - 0.1)
        assert client.output.pending == pending


class Looked:
    """A client that counts the looks at it."""

    def __init__(self, looks: TimingWheel[Looked], turns: list[int]) -> None:
        self.looks = looks
        self.turns = turns
        self.count = 0
        self.peer = "a peer"

    def close(self) -> None:
        raise AssertionError

    def check_heartbeat(self, now_s: float) -> None:
        self.count += 1
        self.turns[-1] += 1
        self.looks.schedule(self, now_s + 30 / 8, 30)


@pytest.mark.parametrize("count", [10, 10_000])
async def test_clients_that_are_due_at_once_are_looked_at_in_turns(
    count: int, autojump_clock: MockClock
) -> None:
    """No step of the loop looks at more than a few, and each is looked at when it is due only."""
    turns: list[int] = []

    class Turns(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            turns.append(0)

    looks = TimingWheel[Looked]()
    clients = [Looked(looks, turns) for _ in range(count)]
    for client in clients:
        looks.schedule(client, trio.current_time() + 1, 30)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_heartbeats, looks, Clock(), Defects())
        trio.lowlevel.add_instrument(instrument := Turns())
        await trio.sleep(30)
        trio.lowlevel.remove_instrument(instrument)
        nursery.cancel_scope.cancel()
    assert {client.count for client in clients} == {8}
    assert max(turns) <= 64


async def test_a_heartbeat_to_a_broken_connection_ends_it(autojump_clock: MockClock) -> None:
    """The timer that looks after all clients survives it."""
    async with nsqd_in_memory() as broker:
        other = await begin(broker, heartbeat_interval=1000)
        talk, _, transport = connect(broker)
        await wait_all_tasks_blocked()
        transport.outgoing.break_with(BrokenPipeError("broken by the test"))
        with trio.move_on_after(31):
            while True:
                await next_heartbeat_s(other)
                await other.say(commands.nop())
        assert transport.outgoing.faults == 1
        assert transport.is_closed
        assert len(broker.clients) == 1
        await other.say(commands.nop())
        await next_heartbeat_s(other)
        talk.close()
