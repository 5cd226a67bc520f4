"""One nsqd after another on the same disk: what the second one finds."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import connect, consume, numbered, publish
from trionsq.broker.broker import Broker
from trionsq.broker.runtime import Clock
from trionsq.durations import SECOND_NS
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

# What a scan and the rounding to milliseconds may add to a delay.
LATE_S = 0.11
DAY_NS = 24 * 3600 * SECOND_NS
MEMORIES = [0, 3, 1000]


def topics_on(disk: SimulatedDisk) -> Any:
    """The topics that nsqd.dat names."""
    return json.loads(disk.files()["nsqd.dat"])["topics"]


@pytest.mark.parametrize("mem", MEMORIES)
async def test_what_waits_is_there_after_a_restart(mem: int, autojump_clock: MockClock) -> None:
    """At channels, and at a topic that has none; with ids and times of publishing as they were."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=mem) as broker:
        for channel in ("a", "b"):
            broker.topic("t").channel(channel)
        publish(broker, "t", *numbered(4))
        publish(broker, "t", *numbered(3, 20))
        publish(broker, "lonely", *numbered(5))
        await wait_all_tasks_blocked()
        _, first = await consume(broker, "t", "a", 7)
    assert (broker.unsaved, disk.open_files) == ([], 0)
    async with nsqd_in_memory(disk=disk, mem_queue_size=mem) as broker:
        assert {name: topic.core.depth for name, topic in broker.topics.items()} == {
            "t": 0,
            "lonely": 5,
        }
        _, again = await consume(broker, "t", "b", 7)
        assert sorted(m.message_id for m in again) == sorted(m.message_id for m in first)
        assert {m.message_id: (m.body, m.timestamp_ns) for m in again} == {
            m.message_id: (m.body, m.timestamp_ns) for m in first
        }
        assert {m.attempts for m in again} == {1}
        _, lonely = await consume(broker, "lonely", "new", 5)
        assert sorted(m.body for m in lonely) == numbered(5)
    assert disk.open_files == 0


@pytest.mark.parametrize("mem", MEMORIES)
async def test_attempts_of_what_was_in_flight_go_on(mem: int, autojump_clock: MockClock) -> None:
    """In flight at a connected client and at one that has gone; finished ones do not come again."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=mem) as broker:
        await attempt_and_leave(broker)
        assert broker.topics["t"].channels["c"].core.in_flight_count == 4
    async with nsqd_in_memory(disk=disk, mem_queue_size=mem) as broker:
        core = broker.topics["t"].channels["c"].core
        assert (core.depth, core.in_flight_count) == (4, 0)
        _, messages = await consume(broker, "t", "c", 4)
        assert {m.body: m.attempts for m in messages} == {b"1": 3, b"2": 2, b"3": 2, b"4": 2}


async def attempt_and_leave(broker: Broker) -> None:
    """Of five messages, 0 is finished, 1 had two attempts and 2 one, both held by a client.

    3 and 4 had one; they are held by another client, which has gone.
    """
    stays, goes = Conversation.begin(broker), Conversation.begin(broker)
    await stays.subscribe("t", "c", ready=3)
    await wait_all_tasks_blocked()
    publish(broker, "t", b"0", b"1", b"2")
    first = {message.body: message.message_id for message in await stays.messages(3)}
    await stays.say(commands.finish(first[b"0"]), commands.requeue(first[b"1"], 0))
    assert (await stays.message()).attempts == 2
    await stays.say(commands.ready(0))
    await goes.subscribe("t", "c", ready=5)
    await wait_all_tasks_blocked()
    publish(broker, "t", b"3", b"4")
    await goes.messages(2)
    goes.close()
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("mem", MEMORIES)
@pytest.mark.parametrize("down_s", [0.0, 2.5, 60.0])
async def test_a_deferral_is_kept_over_a_restart(
    down_s: float, mem: int, autojump_clock: MockClock
) -> None:
    """REQ and DPUB: each message at its time, or at once if that has passed meanwhile."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    due_s: dict[bytes, float] = {}
    async with nsqd_in_memory(disk=disk, clock=clock, mem_queue_size=mem) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        await wait_all_tasks_blocked()
        publish(broker, "t", b"req 4", b"req 2")
        for message in await consumer.messages(2):
            delay_ms = int(message.body[-1:]) * 1000
            due_s[message.body] = trio.current_time() + delay_ms / 1000
            await consumer.say(commands.requeue(message.message_id, delay_ms))
        for delay_s in (1, 3, 30):
            due_s[b"dpub %d" % delay_s] = trio.current_time() + delay_s
            await consumer.say(commands.publish_deferred("t", delay_s * 1000, b"dpub %d" % delay_s))
            await consumer.response()
        await trio.sleep(0.5)
    assert any("deferred" in name for name in disk.files())
    await trio.sleep(down_s)
    async with nsqd_in_memory(disk=disk, clock=clock, mem_queue_size=mem) as broker:
        started_s = trio.current_time()
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        while due_s:
            message = await consumer.message()
            now_s = trio.current_time()
            wanted_s = max(due_s.pop(message.body), started_s)
            assert wanted_s <= now_s <= wanted_s + LATE_S, message.body
            assert message.attempts == (2 if message.body.startswith(b"req") else 1)
            await consumer.say(commands.finish(message.message_id))
        await consumer.silence(60)
        core = broker.topics["t"].channels["c"].core
        assert (core.depth, core.finish_count, core.held) == (0, 5, 0)
    assert not any("deferred" in name for name in disk.files())


async def test_a_deferral_outlives_many_restarts(autojump_clock: MockClock) -> None:
    """The time does not creep: ten restarts add no more than one."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    due_s = trio.current_time() + 25
    for number in range(10):
        async with nsqd_in_memory(disk=disk, clock=clock) as broker:
            consumer = Conversation.begin(broker)
            await consumer.subscribe("t", "c", ready=10)
            if number == 0:
                publish(broker, "t", b"late", defer_ms=25_000)
            await trio.sleep(2)
            assert broker.topics["t"].channels["c"].core.deferred_count == 1
    async with nsqd_in_memory(disk=disk, clock=clock) as broker:
        _, [message] = await consume(broker, "t", "c", 1)
        assert due_s <= trio.current_time() <= due_s + LATE_S
        assert (message.body, message.attempts) == (b"late", 1)


async def test_topics_channels_and_pauses_are_there_after_a_restart(
    autojump_clock: MockClock,
) -> None:
    """Also empty ones; what was deleted is not, nor a pause that was ended."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk) as broker:
        for topic in ("t", "paused", "deleted"):
            for channel in ("c", "paused", "deleted"):
                broker.topic(topic).channel(channel)
        publish(broker, "deleted", b"x")
        await wait_all_tasks_blocked()
        for one in (broker.topics["t"], broker.topics["paused"]):
            one.pause()
            one.channels["paused"].pause()
            one.channels["c"].pause()
            one.channels["c"].unpause()
            one.delete_channel("deleted")
        broker.topics["t"].unpause()
        broker.delete_topic("deleted")
    assert sorted(name for name in disk.files() if name.startswith("deleted")) == []
    async with nsqd_in_memory(disk=disk) as broker:
        found = {
            topic.name: (
                topic.core.paused,
                {channel.name: channel.core.paused for channel in topic.channels.values()},
            )
            for topic in broker.topics.values()
        }
    channels = {"c": False, "paused": True}
    assert found == {"t": (False, channels), "paused": (True, channels)}


async def test_a_paused_topic_and_channel_hold_after_a_restart(autojump_clock: MockClock) -> None:
    """What waits at them goes on when they are unpaused, and not before."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk) as broker:
        for name in ("topic", "channel"):
            broker.topic(name).channel("c")
            await wait_all_tasks_blocked()
        broker.topics["topic"].pause()
        broker.topics["channel"].channels["c"].pause()
        for name in ("topic", "channel"):
            publish(broker, name, *numbered(3))
    async with nsqd_in_memory(disk=disk) as broker:
        for name in ("topic", "channel"):
            consumer = Conversation.begin(broker)
            await consumer.subscribe(name, "c", ready=10)
            await consumer.silence(5)
            topic = broker.topics[name]
            topic.unpause()
            topic.channels["c"].unpause()
            assert sorted(m.body for m in await consumer.messages(3)) == numbered(3)


@pytest.mark.parametrize("mem", MEMORIES)
async def test_ephemeral_topics_and_channels_leave_nothing(
    mem: int, autojump_clock: MockClock
) -> None:
    """No file, no entry in nsqd.dat, no message."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=mem) as broker:
        broker.topic("t#ephemeral").channel("c#ephemeral")
        broker.topic("t").channel("c#ephemeral")
        broker.topic("u#ephemeral")
        for name in list(broker.topics):
            publish(broker, name, *numbered(5))
            publish(broker, name, *numbered(2), defer_ms=5000)
        await wait_all_tasks_blocked()
    assert not [name for name in disk.files() if "#" in name]
    assert topics_on(disk) == [{"name": "t", "paused": False, "channels": None}]
    assert broker.unsaved == []
    async with nsqd_in_memory(disk=disk, mem_queue_size=mem) as broker:
        assert list(broker.topics) == ["t"]
        assert broker.topics["t"].core.depth == 0


@pytest.mark.parametrize("is_killed", [False, True])
async def test_ids_rise_over_restarts_with_the_clock_set_back(
    is_killed: bool, autojump_clock: MockClock
) -> None:
    """However it ended, and however often: no id is given twice, or below an earlier one."""
    disk = SimulatedDisk()
    ids: list[bytes] = []
    for days in range(4):
        now_ns = Clock.from_trio().now_ns

        def earlier_ns(back_ns: int = days * DAY_NS) -> int:
            return now_ns() - back_ns  # noqa: B023

        clock = Clock(now_ns=earlier_ns)
        async with nsqd_in_memory(disk=disk, clock=clock) as broker:
            for round_ in range(3):
                # More than a tick has; and a deleted topic is made again.
                publish(broker, f"t{days}", *[b"x"] * 2000)
                publish(broker, f"t{days}", *[b"x"] * 2500)
                _, messages = await consume(broker, f"t{days}", "c", 2500)
                new = sorted(message.message_id for message in messages)
                assert not ids or new[0] > ids[-1], round_
                ids += new
                broker.delete_topic(f"t{days}")
                await trio.sleep(0.5)
            killed = disk.after_kill()
        disk = killed if is_killed else disk


async def test_what_was_acknowledged_and_synced_outlives_a_kill(
    autojump_clock: MockClock,
) -> None:
    """With --mem-queue-size=0 and --sync-every=1; the topic and its channel are known, too."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0, sync_every=1) as broker:
        broker.topic("t").channel("c")
        await wait_all_tasks_blocked()
        publisher, _, _ = connect(broker)
        for body in numbered(9):
            await publisher.say(commands.publish("t", body))
            await publisher.response()
        await wait_all_tasks_blocked()
        disks = [disk.after_kill(), disk.after_power_loss()]
    for survivor in disks:
        async with nsqd_in_memory(disk=survivor, mem_queue_size=0, sync_every=1) as broker:
            _, messages = await consume(broker, "t", "c", 9)
            assert [m.body for m in messages] == numbered(9)
        assert survivor.open_files == 0
