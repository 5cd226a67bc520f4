"""The wall clock jumps, or the machine is suspended: what that means for messages, clients and
ages."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances, consume, numbered, publish
from trionsq.broker.runtime import Clock
from trionsq.durations import SECOND_NS
from trionsq.http.app import create_app
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

HOUR_S: Final = 3600.0
SMALL_S: Final = 0.01
DELAY_S: Final = 5.0
LATE_S: Final = 0.12
"""What the scan and the rounding to milliseconds may add to a delay."""


class JumpingClock(Clock):
    """The broker's clock; its wall clock may be set.

    Attributes:
        offset_s: added to the wall clock.
    """

    __slots__ = ("_start_s", "offset_s")

    def __init__(self) -> None:
        self.offset_s = 0.0
        self._start_s = trio.current_time()
        super().__init__(now_ns=self._wall_ns)

    def _wall_ns(self) -> int:
        elapsed_s = trio.current_time() - self._start_s
        return 1_700_000_000 * SECOND_NS + int((elapsed_s + self.offset_s) * 1e9)


async def defer_both_ways(consumer: Conversation) -> None:
    """One message by DPUB, one by REQ; in `DELAY_S`."""
    await consumer.say(commands.publish_deferred("t", int(DELAY_S * 1000), b"dpub"))
    await consumer.response()
    await consumer.say(commands.publish("t", b"req"))
    await consumer.response()
    message = await consumer.message()
    assert message.body == b"req"
    await consumer.say(commands.requeue(message.message_id, int(DELAY_S * 1000)))


@pytest.mark.parametrize("mem", [0, 100])
@pytest.mark.parametrize("jump_s", [-HOUR_S, -SMALL_S, SMALL_S])
async def test_a_delay_does_not_depend_on_the_wall_clock(
    jump_s: float, mem: int, autojump_clock: MockClock
) -> None:
    """A message that waits while the clock is set back, or corrected by little, comes when its
    delay is over: neither before nor an hour later. So do those that are deferred afterwards."""
    clock = JumpingClock()
    async with nsqd_in_memory(clock=clock, mem_queue_size=mem) as broker:
        consumer, _ = await consume(broker, "t", "c", 0)
        for _ in range(2):
            began_s = trio.current_time()
            await defer_both_ways(consumer)
            await trio.sleep(1)
            clock.offset_s += jump_s
            for message in await consumer.messages(2):
                waited_s = trio.current_time() - began_s
                assert DELAY_S - SMALL_S <= waited_s <= DELAY_S + LATE_S
                await consumer.say(commands.finish(message.message_id))
        await trio.lowlevel.checkpoint()
        check_balances(broker)


async def test_a_suspended_machine_delivers_what_became_due(autojump_clock: MockClock) -> None:
    """After an hour of which only the wall clock knows, deferred messages come at once; so they do
    where the clock is set forward, as with the original."""
    clock = JumpingClock()
    async with nsqd_in_memory(clock=clock) as broker:
        consumer, _ = await consume(broker, "t", "c", 0)
        await defer_both_ways(consumer)
        await trio.sleep(1)
        clock.offset_s += HOUR_S
        resumed_s = trio.current_time()
        await consumer.messages(2)
        assert trio.current_time() - resumed_s <= LATE_S


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
async def test_a_jump_before_the_stop_does_not_change_delays_on_disk(
    jump_s: float, autojump_clock: MockClock
) -> None:
    """Due times on disk are those of the wall clock at the stop: the next nsqd, which knows only
    that clock, delivers when the delay is over."""
    disk, clock = SimulatedDisk(), JumpingClock()
    async with nsqd_in_memory(disk=disk, clock=clock) as broker:
        broker.topic("t").channel("c")
        clock.offset_s += jump_s
        await trio.sleep(0.2)
        began_s = trio.current_time()
        publish(broker, "t", b"x", defer_ms=int(DELAY_S * 1000))
        await trio.sleep(1)
    later = JumpingClock()
    later._start_s, later.offset_s = clock._start_s, clock.offset_s
    async with nsqd_in_memory(disk=disk, clock=later) as broker:
        await consume(broker, "t", "c", 1)
        waited_s = trio.current_time() - began_s
        assert DELAY_S - SMALL_S <= waited_s <= DELAY_S + LATE_S


@pytest.mark.parametrize("mem", [0, 100])
@pytest.mark.parametrize("years", [1, 50])
async def test_a_clock_set_back_between_two_nsqds(
    years: int, mem: int, autojump_clock: MockClock
) -> None:
    """A deferred message on disk waits at most --max-req-timeout: a machine that starts without
    the right time does not keep it for years."""
    disk, clock = SimulatedDisk(), JumpingClock()
    async with nsqd_in_memory(disk=disk, clock=clock, mem_queue_size=mem) as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", b"x", defer_ms=int(DELAY_S * 1000))
        await trio.sleep(1)
    later = JumpingClock()
    later.offset_s = -years * 365 * 24 * HOUR_S
    options: dict[str, Any] = {"max_req_timeout_ns": 60 * SECOND_NS}
    async with nsqd_in_memory(disk=disk, clock=later, mem_queue_size=mem, **options) as broker:
        started_s = trio.current_time()
        await consume(broker, "t", "c", 1)
        assert 60 - SMALL_S <= trio.current_time() - started_s <= 60 + LATE_S


@pytest.mark.parametrize("jump_s", [-HOUR_S, -SMALL_S, SMALL_S, HOUR_S])
async def test_message_timeouts_do_not_see_the_wall_clock(
    jump_s: float, autojump_clock: MockClock
) -> None:
    """A message in flight times out after its time, however the wall clock was set meanwhile."""
    clock = JumpingClock()
    async with nsqd_in_memory(clock=clock, msg_timeout_ns=5 * SECOND_NS) as broker:
        publish(broker, "t", b"x")
        consumer, _ = await consume(broker, "t", "c", 1)
        began_s = trio.current_time()
        await trio.sleep(1)
        clock.offset_s += jump_s
        again = await consumer.message()
        assert again.attempts == 2
        assert 5 <= trio.current_time() - began_s <= 5 + LATE_S


@pytest.mark.parametrize("suspended_s", [20.0, HOUR_S])
async def test_after_a_pause_of_nsqd_silent_clients_go_and_no_message_is_lost(
    suspended_s: float, autojump_clock: MockClock
) -> None:
    """The monotonic clock goes on while nsqd is stopped (kill -STOP). Clients that had sent a
    command before are not closed at once but get a heartbeat; those that do not answer go after
    two intervals at the latest, and their messages come to whoever connects next."""
    count = 200
    async with nsqd_in_memory(mem_queue_size=10_000) as broker:
        publish(broker, "t", *numbered(count))
        silent = []
        for _ in range(count):
            consumer = Conversation.begin(broker)
            await consumer.subscribe("t", "c", ready=1)
            await consumer.message()
            silent.append(consumer)
        autojump_clock.jump(suspended_s)
        await trio.sleep(1)
        assert len(broker.clients) == count
        await trio.sleep(60)
        assert not broker.clients
        for consumer in silent:
            await consumer.end()
        heir, messages = await consume(broker, "t", "c", count)
        assert sorted(message.body for message in messages) == numbered(count)
        assert min(message.attempts for message in messages) >= 2
        await heir.say(*(commands.finish(message.message_id) for message in messages))
        await trio.sleep(1)
        check_balances(broker)


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
async def test_heartbeats_do_not_see_the_wall_clock(
    jump_s: float, autojump_clock: MockClock
) -> None:
    """A client that answers heartbeats stays connected, and gets as many as ever."""
    clock = JumpingClock()
    async with nsqd_in_memory(clock=clock) as broker:
        client = Conversation.begin(broker)
        await client.say(commands.nop())
        await client.silence(100)
        before = client.heartbeats
        clock.offset_s += jump_s
        await client.silence(100)
        assert client.heartbeats - before in (before, before + 1)
        assert len(broker.clients) == 1


async def test_ages_are_never_negative(autojump_clock: MockClock) -> None:
    """Uptimes, ages and latencies that the wall clock would make negative are 0."""
    clock = JumpingClock()
    percentile: dict[str, Any] = {"e2e_processing_latency_percentile": (0.99,)}
    async with nsqd_in_memory(clock=clock, **percentile) as broker:
        publish(broker, "t", b"waits", b"goes")
        await wait_all_tasks_blocked()
        consumer, [first, _] = await consume(broker, "t", "c", 2)
        clock.offset_s -= HOUR_S
        await consumer.say(commands.finish(first.message_id))
        publish(broker, "lonely", b"x")
        clock.offset_s -= HOUR_S
        await trio.sleep(1)
        client = create_app(broker).test_client()
        for path in ("/metrics", "/stats", "/stats?format=json"):
            response = await client.get(path)
            assert response.status_code == 200
            text = await response.get_data(as_text=True)
            assert not re.search(r"(?<![\w:])-\d", text.replace("1e-", "")), text
