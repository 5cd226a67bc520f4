"""What somebody else took for a topic that has a log is brought into the log, at a start."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.copies import Images, drained
from tests.broker.support import consume, finish, numbered, publish
from tests.soak import more_in_soak, swept
from trionsq.broker import takeover
from trionsq.broker.broker import Broker
from trionsq.broker.runtime import Clock
from trionsq.storage.folder import DataPathError
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

LOG: dict[str, Any] = {"storage": "log", "durability": "always"}
OLD: dict[str, Any] = {"storage": "default", "mem_queue_size": 0}


def is_of_logs(name: str) -> bool:
    """Whether an nsqd that knows no logs leaves a file alone."""
    return ".log." in name or (name.startswith("trionsq.") and name != "trionsq.dat")


@asynccontextmanager
async def visit(disk: SimulatedDisk, clock: Clock) -> AsyncIterator[Broker]:
    """An nsqd that knows no logs has the data path for a while."""
    other = SimulatedDisk()
    for name, data in disk.files().items():
        if not is_of_logs(name):
            other.write_file(name, data)
    async with nsqd_in_memory(disk=other, clock=clock, **OLD) as broker:
        yield broker
    for name in disk.files().keys() - other.files().keys():
        if not is_of_logs(name):
            disk.unlink(name)
    for name, data in other.files().items():
        disk.write_file(name, data)


async def log_topic(disk: SimulatedDisk, clock: Clock) -> None:
    """A log topic with channels a and b; a has finished some of its messages."""
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
        for name in ("a", "b"):
            broker.topic("t").channel(name)
        publish(broker, "t", *numbered(6))
        await wait_all_tasks_blocked()
        consumer, got = await consume(broker, "t", "a", 6)
        await finish(consumer, *got[:4])


async def visitors_messages(disk: SimulatedDisk, clock: Clock) -> None:
    """The visitor takes some: all of b, two of a are finished, one was tried, c is new."""
    async with visit(disk, clock) as broker:
        topic = broker.topics["t"]
        assert topic.storage == "default"
        topic.channel("c")
        publish(broker, "t", *numbered(8, 20))
        publish(broker, "t", b"late", defer_ms=60_000)
        await wait_all_tasks_blocked()
        consumer, got = await consume(broker, "t", "a", 3)
        await finish(consumer, *got[:2])
        consumer.close()
        topic.pause()
        publish(broker, "t", *numbered(5, 30))
        publish(broker, "t", b"later", defer_ms=90_000)
        await wait_all_tasks_blocked()


def check_queues(broker: Broker) -> None:
    """The counters of each queue add up."""
    for topic in broker.topics.values():
        assert topic.check() is None
        assert [channel.check() for channel in topic.channels.values()] == [None] * 3


IN_LOG = {"a": numbered(6)[4:], "b": numbered(6), "c": []}
FANNED_OUT = {
    "a": [*numbered(8, 20)[2:], b"late"],
    "b": [*numbered(8, 20), b"late"],
    "c": [*numbered(8, 20), b"late"],
}
AT_THE_TOPIC = [*numbered(5, 30), b"later"]


def expected(channel: str) -> Counter[bytes]:
    return Counter([*IN_LOG[channel], *FANNED_OUT[channel], *AT_THE_TOPIC])


@pytest.mark.parametrize("mem", [0, 10_000])
async def test_each_channel_gets_its_own_once(mem: int, autojump_clock: MockClock) -> None:
    """With attempts and due times; the topic's messages wait until its pause ends."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    options = {**LOG, "mem_queue_size": mem}
    await log_topic(disk, clock)
    await visitors_messages(disk, clock)
    due_s = trio.current_time() + 59.5
    for crashes in (True, False):
        async with nsqd_in_memory(disk=disk, clock=clock, **options) as broker:
            topic = broker.topics["t"]
            assert topic.core.paused
            assert topic.core.depth == len(AT_THE_TOPIC)
            for name, channel in topic.channels.items():
                assert channel.core.depth == len(IN_LOG[name]) + len(FANNED_OUT[name]) - 1
                assert channel.core.deferred_count == 1
            check_queues(broker)
            await trio.sleep(2)
            assert [name for name in disk.files() if "diskqueue" in name] == []
            if crashes:
                disk = disk.after_power_loss()
                continue
            consumer = Conversation.begin(broker, capacity_bytes=2**20)
            await consumer.subscribe("t", "a", ready=50)
            got = await consumer.messages(8)
            assert {message.attempts for message in got} == {2}
            await consumer.say(commands.ready(0))
            for message in got[:3]:
                await consumer.say(commands.requeue(message.message_id, 0))
            await consumer.say(commands.ready(50))
            await finish(consumer, *got[3:], *(await consumer.messages(3)))
            consumer.close()
            await wait_all_tasks_blocked()
            assert topic.core.depth == len(AT_THE_TOPIC)
            topic.unpause()
            assert await drained(broker, "a") == Counter([*AT_THE_TOPIC, b"late"])
            assert trio.current_time() >= due_s
            for name in ("b", "c"):
                assert await drained(broker, name) == expected(name)
            publish(broker, "t", b"new")
            await wait_all_tasks_blocked()
            check_queues(broker)
            for name in ("a", "b", "c"):
                assert await drained(broker, name) == Counter([b"new"])


async def test_a_paused_log_keeps_what_it_had(autojump_clock: MockClock) -> None:
    """What waits at the topic is older than what its channel brings along, and waits on; that may
    come back any number of times."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    options = {**LOG, "mem_queue_size": 0}
    async with nsqd_in_memory(disk=disk, clock=clock, **options) as broker:
        topic = broker.topic("t")
        topic.channel("a")
        topic.pause()
        publish(broker, "t", *numbered(3))
        await wait_all_tasks_blocked()
    async with visit(disk, clock) as broker:
        topic = broker.topics["t"]
        topic.unpause()
        publish(broker, "t", *numbered(4, 20))
        await wait_all_tasks_blocked()
        topic.pause()
        publish(broker, "t", *numbered(2, 30))
        await wait_all_tasks_blocked()
    for _ in range(2):
        async with nsqd_in_memory(disk=disk, clock=clock, **options) as broker:
            topic = broker.topics["t"]
            core = topic.channels["a"].core
            assert (topic.core.depth, core.depth) == (5, 4)
            consumer = Conversation.begin(broker, capacity_bytes=2**20)
            await consumer.subscribe("t", "a", ready=4)
            got = await consumer.messages(4)
            await consumer.say(commands.ready(0))
            for message in got:
                await consumer.say(commands.requeue(message.message_id, 0))
            await wait_all_tasks_blocked()
            assert (topic.core.depth, core.depth) == (5, 4)
            assert topic.check() is core.check() is None
            consumer.close()
    async with nsqd_in_memory(disk=disk, clock=clock, **options) as broker:
        broker.topics["t"].unpause()
        expected = Counter([*numbered(3), *numbered(4, 20), *numbered(2, 30)])
        assert await drained(broker, "a") == expected


@more_in_soak
async def test_a_crash_at_any_operation_loses_and_repeats_nothing(
    autojump_clock: MockClock,
) -> None:
    """Of the start that takes the queues over, by kill -9 and by a power failure."""
    disk, clock = Images(), Clock.from_trio()
    await log_topic(disk, clock)
    await visitors_messages(disk, clock)
    disk.images = []
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG):
        await trio.sleep(2)
        images, disk.images = disk.images, None
        images.append((disk.after_kill(), disk.after_power_loss()))
    assert len(images) > 40
    kinds = set()
    for number in (*swept(len(images) - 2, 30), len(images) - 1):
        for image in images[number]:
            left = image.after_kill()
            kinds.add(any("t:b.diskqueue" in name for name in left.files()))
            # And once more: before anything was published, and behind that.
            for body in (b"", b"new"):
                async with nsqd_in_memory(disk=image, clock=clock, **LOG) as broker:
                    if body:
                        publish(broker, "t", body)
                        await wait_all_tasks_blocked()
                    image = image.after_power_loss()
            async with nsqd_in_memory(disk=image, clock=clock, **LOG) as broker:
                topic = broker.topics["t"]
                assert topic.core.depth == len(AT_THE_TOPIC) + 1
                topic.unpause()
                for name in ("a", "b", "c"):
                    found = await drained(broker, name)
                    assert found == expected(name) + Counter([b"new"]), (number, name)
                check_queues(broker)
    assert kinds == {True, False}


@more_in_soak
async def test_a_crash_while_files_are_removed_repeats_nothing(
    autojump_clock: MockClock,
) -> None:
    """A start removes the files that the one before it has left."""
    disk, clock = Images(), Clock.from_trio()
    await log_topic(disk, clock)
    await visitors_messages(disk, clock)
    disk.fail(5, forever=True, only=("unlink", "rename"), name="*.diskqueue.*")
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG):
        await trio.sleep(2)
        left = disk.after_kill()
    assert any("t:b.diskqueue.0" in name for name in left.files())
    disk = Images()
    for name, data in left.files().items():
        disk.write_file(name, data)
    disk.images = []
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG):
        images, disk.images = disk.images, None
    assert not any("diskqueue.0" in name for name in disk.files())
    for number in swept(len(images) - 1, 20):
        for image in images[number][1:]:  # a kill alone forgets no removal
            async with nsqd_in_memory(disk=image, clock=clock, **LOG) as broker:
                broker.topics["t"].unpause()
                for name in ("a", "b", "c"):
                    assert await drained(broker, name) == expected(name), (number, name)


@pytest.mark.parametrize(
    ("error", "operation", "name"),
    [(28, "write", "*.log.*"), (28, "create", "*.log.*"), (5, "read", "t*.diskqueue.0*")],
)
async def test_what_cannot_be_copied_stays_for_the_next_start(
    error: int,
    operation: str,
    name: str,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A full disk, or one that cannot be read: the topic is served, and nothing comes twice."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    await log_topic(disk, clock)
    await visitors_messages(disk, clock)
    disk.fail(error, forever=True, only=(operation,), name=name)
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
        assert "are read by the next start" in caplog.text
        disk.heal()
        await trio.sleep(3)
        check_queues(broker)
        assert await drained(broker, "a") == Counter(IN_LOG["a"])
        broker.topics["t"].unpause()
        publish(broker, "t", b"new")
        await wait_all_tasks_blocked()
        assert await drained(broker, "a") == Counter([b"new"])
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
        broker.topics["t"].unpause()
        assert await drained(broker, "a") == expected("a") - Counter(IN_LOG["a"])
        assert await drained(broker, "b") == expected("b") + Counter([b"new"])


async def test_a_commit_that_fails_ends_the_start(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows then what counts: the next start finds it out."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    await log_topic(disk, clock)
    await visitors_messages(disk, clock)
    leave_out = takeover._Takeover._leave_out

    def commits_fail(self: takeover._Takeover, first: int, end: int) -> None:
        disk.fail(5, forever=True, only=("write", "sync"), name="trionsq.state*")
        leave_out(self, first, end)

    monkeypatch.setattr(takeover._Takeover, "_leave_out", commits_fail)
    failure = "failed to bring disk queues into the log"
    with pytest.RaisesGroup(pytest.RaisesExc(DataPathError, match=failure), flatten_subgroups=True):
        async with nsqd_in_memory(disk=disk, clock=clock, **LOG):
            pass
    disk.heal()
    monkeypatch.undo()
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
        broker.topics["t"].unpause()
        for name in ("a", "b", "c"):
            assert await drained(broker, name) == expected(name)


async def test_a_queue_whose_channel_does_not_exist_stays(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody lost it to a channel of the same name by accident: the log of nsqd names it."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    await log_topic(disk, clock)
    await visitors_messages(disk, clock)
    for name in [name for name in disk.files() if name.startswith("t:c.")]:
        disk.write_file(name.replace("t:c.", "t:gone."), disk.files()[name])
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
        await trio.sleep(2)
        assert "gone" not in broker.topics["t"].channels
    left = {name.partition(".")[0] for name in disk.files() if "diskqueue" in name}
    assert left == {"t:gone"}
    assert "nobody reads them: t:gone" in caplog.text
