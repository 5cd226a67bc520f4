"""A process without free descriptors (EMFILE): whatever file nsqd opens, nothing acknowledged is
lost, and it goes on by itself when descriptors are free again."""

from __future__ import annotations

import errno
import itertools
from collections import Counter
from random import Random
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from tests.broker.support import publish
from tests.soak import by_level, more_in_soak
from tests.storage.queue_scenario import told
from trionsq.broker.broker import Broker
from trionsq.broker.runtime import Clock
from trionsq.broker.topic import PublishRefused
from trionsq.storage.folder import DataPathError
from trionsq.storage.metadata import MetadataError
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands
from trionsq.wire.client import MessageFrame

OPENING: Final = ("open", "create", "names", "sync_folder")
"""Operations of a disk that need a descriptor of their own."""
OPTIONS: Final[dict[str, Any]] = {"mem_queue_size": 2, "max_bytes_per_file": 300, "sync_every": 7}


class Descriptors:
    """Lets some of the operations that need a descriptor fail.

    Attributes:
        outcomes: what the failures led to.
    """

    def __init__(self, at: int, width: int) -> None:
        self._at = at
        self._width = width
        self.outcomes: Counter[str] = Counter()

    def plan(self, disk: SimulatedDisk) -> None:
        """From the next operation on."""
        for number in range(self._at, self._at + self._width):
            disk.fail(errno.EMFILE, at=number, only=OPENING)


def check_contradictions(broker: Broker) -> None:
    """The queues of topics and channels are sound."""
    for topic in broker.topics.values():
        assert topic.check() is None
        for channel in topic.channels.values():
            assert channel.check() is None


class Account:
    """What a publisher was told, and what a consumer had."""

    def __init__(self, descriptors: Descriptors) -> None:
        self.acknowledged: set[bytes] = set()
        self.finished: set[bytes] = set()
        self.outcomes = descriptors.outcomes

    async def publish(self, broker: Broker, body: bytes, defer_ms: int = 0) -> None:
        """Until it is acknowledged, as a client does that retries."""
        for _ in range(50):
            try:
                publish(broker, "t", body, defer_ms=defer_ms)
            except PublishRefused:
                self.outcomes["refused"] += 1
                await trio.sleep(1)
            else:
                self.acknowledged.add(body)
                return
        raise AssertionError("publishing does not recover")

    async def consume(self, broker: Broker, count: int) -> None:
        """Finish ``count`` messages, and requeue the next ones for a while."""
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=3)
        for number in range(count + 4):
            message = await consumer.message()
            if number < count:
                self.finished.add(message.body)
                await consumer.say(commands.finish(message.message_id))
            else:
                await consumer.say(commands.requeue(message.message_id, 3000))
        await trio.sleep(0.1)
        consumer.close()

    async def drain(self, broker: Broker) -> None:
        """Finish all messages."""
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=100)
        while self.acknowledged - self.finished:
            frame = await consumer.frame()
            if isinstance(frame, MessageFrame):  # not the error for one that came twice
                self.finished.add(frame.body)
                await consumer.say(commands.finish(frame.message_id))
        consumer.close()
        await trio.sleep(0.1)


async def work(broker: Broker, account: Account, start: int) -> None:
    """Files begin and end, messages are deferred, channels and topics come and go."""
    broker.topic("t").channel("c")
    await broker.save_metadata()
    for number in range(start, start + 24):
        await account.publish(broker, b"%020d" % number, 3_000 if number % 4 == 0 else 0)
        await trio.sleep(0.05)
    await account.consume(broker, 8)
    broker.topic(f"other{start}").channel("x")
    await trio.sleep(5)
    broker.delete_topic(f"other{start}")
    await broker.save_metadata()
    await trio.sleep(1)


async def live_short_of_descriptors(
    descriptors: Descriptors, disk: SimulatedDisk, *, is_unclean: bool
) -> None:
    """One nsqd that stops in order or is killed, then the next one, which has too few descriptors
    for a while; then all is well, and every acknowledged message comes."""
    account = Account(descriptors)
    clock = Clock.from_trio()
    first = OPTIONS | {"mem_queue_size": 0, "sync_every": 1000} if is_unclean else OPTIONS
    async with nsqd_in_memory(disk=disk, clock=clock, **first) as broker:
        await work(broker, account, 0)
        if is_unclean:
            await trio.sleep(10)
            account.acknowledged.clear()  # what was in memory is lost by a kill
            for number in range(100, 140):  # begins files that no positions file names
                await account.publish(broker, b"%020d" % number)
            await trio.sleep(0.1)
            killed = disk.after_kill()
    if is_unclean:
        disk = killed
    descriptors.plan(disk)
    try:
        async with nsqd_in_memory(disk=disk, clock=clock, **OPTIONS) as broker:
            await work(broker, account, 200)
            await trio.sleep(60)
            check_contradictions(broker)
        assert broker.unsaved == []
    except* (MetadataError, DataPathError, OSError):
        descriptors.outcomes["did not start"] += 1
    descriptors.outcomes["failed"] += disk.faults.total()
    disk.heal()
    async with nsqd_in_memory(disk=disk, clock=clock, **OPTIONS) as broker:
        assert broker.health == "OK"
        with trio.fail_after(4_000):
            await account.drain(broker)
        check_contradictions(broker)
    assert disk.open_files == 0
    assert not [name for name in disk.files() if name.endswith(".bad")]


@more_in_soak
@pytest.mark.parametrize("is_unclean", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("width", by_level(test=(6,), short=(1, 6), full=(1, 6)))
def test_nothing_acknowledged_is_lost(width: int, is_unclean: bool) -> None:
    """Whichever files cannot be opened, created or listed, at a start or later: publishers are
    refused for a while or nsqd does not start, then it is healthy by itself, and every acknowledged
    message comes; no file is set aside."""
    outcomes: Counter[str] = Counter()
    for at in itertools.count(2, by_level(test=11, short=4, full=1)):
        descriptors = Descriptors(at, width)

        async def live(descriptors: Descriptors = descriptors) -> None:
            disk = SimulatedDisk(random=Random(0))
            await live_short_of_descriptors(descriptors, disk, is_unclean=is_unclean)

        with told(f"operation {at}"):
            trio.run(live, clock=MockClock(autojump_threshold=0))
        outcomes += descriptors.outcomes
        if not descriptors.outcomes["failed"]:
            break
    assert at > 30
    assert outcomes["failed"] > width
    assert outcomes["did not start"]
    assert outcomes["refused"] or width == 1
