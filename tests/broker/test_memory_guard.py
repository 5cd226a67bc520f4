"""--max-memory (trionsq.broker.memory_guard)."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from trionsq.broker.broker import Broker
from trionsq.broker.topic import Topic
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire.bodies import ListBodies

SIZE = 1000


def publish(topic: Topic, count: int) -> None:
    for _ in range(count):
        topic.publish(ListBodies([b"x" * SIZE]))


def is_over(broker: Broker) -> bool:
    """Whether all queues append to disk."""
    return broker.memory_guard.is_over


def in_memory(broker: Broker) -> int:
    """Bytes of all messages that wait in memory."""
    cores = [topic.core for topic in broker.topics.values()]
    return SIZE * sum(core.store.memory.depth for core in cores)


async def test_what_is_over_goes_to_disk(autojump_clock: MockClock) -> None:
    """All queues together keep the limit, the oldest messages leave memory first, none is lost."""
    async with nsqd_in_memory(max_memory=100 * SIZE) as broker:
        old, young = broker.topic("old"), broker.topic("young")
        publish(old, 60)
        await trio.sleep(1.0)
        publish(young, 60)
        assert in_memory(broker) == 120 * SIZE
        await trio.sleep(1.0)
        assert in_memory(broker) <= 90 * SIZE
        assert young.core.store.memory.depth == 60
        assert (old.core.depth, young.core.depth) == (60, 60)
        assert broker.memory_guard.moved_count == 30
        assert not is_over(broker)  # a look later memory takes messages again
        publish(old, 5)
        assert old.core.store.memory.depth == 35
        assert old.core.check() is None


async def test_while_it_is_too_much_all_goes_to_disk(autojump_clock: MockClock) -> None:
    """Until enough is free nothing is added to memory, also by topics that are made meanwhile."""
    async with nsqd_in_memory(max_memory=100 * SIZE) as broker:
        topic = broker.topic("t")
        publish(topic, 200)
        guard = broker.memory_guard
        await guard.look()
        assert is_over(broker)
        before = in_memory(broker)
        new = broker.topic("new")
        publish(topic, 50)
        assert in_memory(broker) == before
        await guard.look()
        assert not is_over(broker)
        publish(new, 5)
        assert new.core.store.memory.depth == 5
        assert topic.core.depth == 250


async def test_without_the_option_nothing_is_weighed(autojump_clock: MockClock) -> None:
    """Without --max-memory no queue is looked at."""
    async with nsqd_in_memory() as broker:
        publish(broker.topic("t"), 5)
        await trio.sleep(5.0)
        assert broker.memory_guard.nbytes is None
