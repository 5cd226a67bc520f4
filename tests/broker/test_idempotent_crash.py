"""Keys of idempotent publishes over the end of nsqd."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import consume, finish
from tests.broker.test_idempotent import asking
from trionsq.broker import logs
from trionsq.broker.broker import Broker
from trionsq.broker.runtime import Clock
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

LOG: dict[str, Any] = {"storage": "log", "durability": "always"}
PUBLISHES = [
    commands.publish("t", b"x", b"one"),
    commands.publish_many("t", [b"x", b"yy"], b"many"),
    commands.publish_deferred("t", 10, b"x", b"later"),
    commands.publish("u", b"x", b"one"),
]


async def publish(broker: Broker, *publishes: bytes) -> None:
    """With an answer of OK to each."""
    talk = await asking(broker)
    await talk.say(*publishes)
    for _ in publishes:
        await talk.response()


async def stored_again(disk: SimulatedDisk, *publishes: bytes, **options: Any) -> int:
    """Start on the disk, publish, and count what was stored."""
    async with nsqd_in_memory(disk=disk, **{**LOG, **options}) as broker:
        await publish(broker, *publishes)
        return sum(topic.core.message_count for topic in broker.topics.values())


@pytest.mark.parametrize("seconds", [0, 2])
@pytest.mark.parametrize("end", ["kill -9", "power cut", "SIGTERM"])
async def test_a_key_outlives_a_crash(end: str, seconds: float, autojump_clock: MockClock) -> None:
    """Whether the state has it already or the records alone; and the crash behind that one, too."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        await publish(broker, *PUBLISHES)
        await trio.sleep(seconds)
        found = disk.after_power_loss() if end == "power cut" else disk.after_kill()
    if end == "SIGTERM":
        found = disk.after_power_loss()
    assert await stored_again(found, *PUBLISHES) == 0
    assert await stored_again(found.after_power_loss(), *PUBLISHES) == 0


async def test_a_key_outlives_its_record(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Its messages are finished and the segment is gone; the window goes on."""
    monkeypatch.setattr(logs, "DEFAULT_SEGMENT_BYTES", 300)
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        broker.topic("t").channel("c")
        await publish(broker, PUBLISHES[0])
        for _ in range(5):
            await publish(broker, commands.publish("t", b"x" * 200))
        consumer, messages = await consume(broker, "t", "c", 6)
        await finish(consumer, *messages)
        first = next(name for name in disk.files() if ".log." in name)
        await trio.sleep(3)
        assert first not in disk.files()
        found = disk.after_kill()
    assert await stored_again(found, PUBLISHES[0]) == 0


async def test_other_messages_with_the_key_are_refused_behind_a_crash() -> None:
    """The digest is in the record as well."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        await publish(broker, PUBLISHES[0])
        found = disk.after_kill()
    async with nsqd_in_memory(disk=found, **LOG) as broker:
        talk = await asking(broker)
        await talk.say(commands.publish("t", b"y", b"one"))
        assert (await talk.error()).startswith("E_KEY_REUSED")


async def test_the_window_goes_on_over_a_start(autojump_clock: MockClock) -> None:
    """A key is as old as its record, not as the process."""
    disk = SimulatedDisk()
    options: dict[str, Any] = {"idempotency_window_ns": 100 * 10**9, "clock": Clock.from_trio()}
    async with nsqd_in_memory(disk=disk, **LOG, **options) as broker:
        await publish(broker, PUBLISHES[0])
        found = disk.after_kill()
    await trio.sleep(60)
    async with nsqd_in_memory(disk=found, **LOG, **options) as broker:
        await publish(broker, PUBLISHES[0])
        assert broker.topics["t"].core.message_count == 0
        await trio.sleep(50)
        await publish(broker, PUBLISHES[0])
        assert broker.topics["t"].core.message_count == 1
        found = disk.after_kill()
    await trio.sleep(60)
    assert await stored_again(found, PUBLISHES[0], **options) == 1


async def test_the_default_engine_forgets_its_keys_when_it_ends() -> None:
    """As documented: they are in memory alone."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, storage="default") as broker:
        await publish(broker, PUBLISHES[0])
    assert await stored_again(disk.after_kill(), PUBLISHES[0], storage="default") == 1


async def test_a_moved_topic_keeps_its_keys_while_nsqd_runs(autojump_clock: MockClock) -> None:
    """Those of before the move as well; only those of behind it outlive a crash."""
    disk = SimulatedDisk()
    flags: dict[str, Any] = {"storage": "default", "durability": "always"}
    async with nsqd_in_memory(disk=disk, **flags) as broker:
        await publish(broker, PUBLISHES[0])
        await broker.registry.moves.move(broker.topics["t"])
        await publish(broker, PUBLISHES[0], PUBLISHES[1])
        assert broker.topics["t"].has_log
        assert broker.topics["t"].core.message_count == 3
        await wait_all_tasks_blocked()
        found = disk.after_kill()
    assert await stored_again(found.after_kill(), PUBLISHES[1]) == 0
    assert await stored_again(found, PUBLISHES[0]) == 1


async def test_a_deleted_topic_forgets_its_keys_over_a_crash() -> None:
    """The log of a topic that was made again is another one."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        await publish(broker, PUBLISHES[0])
        await broker.logs.take_snapshots()
        broker.delete_topic("t")
        broker.topic("t")
        await broker.logs.take_snapshots()
        found = disk.after_kill()
    assert await stored_again(found, PUBLISHES[0]) == 1


async def test_a_start_reads_no_more_keys_than_memory_may_have() -> None:
    """The newest of them; and what was forgotten early is not remembered."""
    disk = SimulatedDisk()
    publishes = [commands.publish("t", b"x", b"%d" % number) for number in range(10)]
    async with nsqd_in_memory(disk=disk, **LOG, idempotency_max_keys=4) as broker:
        for one in publishes:
            await publish(broker, one)
            await broker.logs.take_snapshots()
        found = disk.after_kill()
    assert await stored_again(found.after_kill(), *publishes[-4:], idempotency_max_keys=4) == 0
    assert await stored_again(found, publishes[0], idempotency_max_keys=4) == 1


@pytest.mark.parametrize("storage", ["default", "log"])
async def test_a_repeat_of_a_publish_to_an_nsqd_that_ended(
    storage: str, autojump_clock: MockClock
) -> None:
    """With the epoch of then: a log knows whether it was stored; the default engine says that it
    does not know, and stores nothing. With the present epoch it is as without."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, storage=storage) as broker:
        await publish(broker, commands.publish("t", b"x", b"k"))
        epoch = broker.registry.keys.epoch.encode()
        await publish(broker, commands.publish("t", b"x", b"k", epoch))
        await publish(broker, commands.publish("t", b"x", b"new", epoch))
    await trio.sleep(1)
    clock = Clock.from_trio()
    await trio.sleep(1)
    async with nsqd_in_memory(disk=disk, storage=storage, clock=clock) as broker:
        assert broker.registry.keys.epoch.encode() != epoch
        talk = await asking(broker)
        await talk.say(commands.publish("t", b"x", b"k", epoch))
        if storage == "log":
            await talk.response()
            await talk.say(commands.publish("t", b"x", b"k2", epoch))
            await talk.response()
            assert broker.topics["t"].core.message_count == 1
        else:
            assert (await talk.error()).startswith("E_KEY_UNKNOWN")
            assert broker.topics["t"].core.message_count == 0


@pytest.mark.parametrize("is_rolled", [False, True])
async def test_a_key_that_is_written_and_not_synced_is_read_from_its_record(
    is_rolled: bool, autojump_clock: MockClock
) -> None:
    """In `interval` the state has no such key, for a power cut may take the record; so a start
    reads the record, also if the channels are past it, or if it is in the last segment but one."""
    disk = SimulatedDisk()
    options: dict[str, Any] = {"storage": "log", "durability": "interval"}
    async with nsqd_in_memory(disk=disk, **options) as broker:
        if is_rolled:
            assert broker.logs.node is not None
            broker.logs.node.segment_bytes = 200
        broker.topic("t").channel("c")
        await publish(broker, PUBLISHES[0])
        if not is_rolled:
            await publish(broker, commands.publish("t", b"x" * 70_000))
            await publish(broker, commands.publish("t", b"x"))
        await wait_all_tasks_blocked()
        await broker.logs.take_snapshots()
        if is_rolled:
            await publish(broker, commands.publish("t", b"x"))
            assert len([name for name in disk.files() if ".log." in name]) > 1
        found = disk.after_kill()
    assert await stored_again(found, PUBLISHES[0], **options) == 0
