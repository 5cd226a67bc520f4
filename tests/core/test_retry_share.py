"""retry_share: retried messages get their part of the deliveries while fresh ones wait."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.core.helpers import wall_ns
from tests.core.test_governed import World
from trionsq.core.queue import MessageQueue
from trionsq.core.weighed import RetryQueue, WeighedQueue

FIRST_FRESH = 1000


def with_retried(share: int, retried: int, fresh: int, mem: int = 10_000) -> World:
    """Return a channel in which so many messages of both kinds wait, at no client."""
    world = World(mem, retry_share=share)
    client = world.subscribe(retried)
    world.put(0, retried)
    assert len(client.in_flight) == retried
    world.channel.set_ready(client, 0, 0.0)
    for id_ in list(client.in_flight):
        world.channel.requeue(client, id_, 0, 0.0, wall_ns(0.0))
    for first in range(FIRST_FRESH, FIRST_FRESH + fresh, 5):
        world.put(first, 5)
    world.got.clear()
    world.check()
    return world


def kinds(world: World, count: int) -> Counter[str]:
    """Return of what kind the next messages are."""
    [client] = world.clients
    ids = world.ids
    while len(ids) < count:
        world.channel.set_ready(client, len(client.in_flight) + 1, 0.0)
        assert len(world.ids) > len(ids)
        ids = world.ids
    return Counter("fresh" if id_ >= FIRST_FRESH else "retried" for id_ in ids[:count])


@pytest.mark.parametrize("mem", [500, 10_000])
@pytest.mark.parametrize("share", [1, 20, 50, 80, 100])
def test_the_ratio_holds_while_both_wait(share: int, mem: int) -> None:
    """Wherever the fresh ones are: in memory, or on disk because memory is full of retried ones."""
    world = with_retried(share, 200, 1000, mem)
    assert kinds(world, 200)["retried"] == pytest.approx(2 * share, abs=1)
    world.check()


def test_without_a_share_they_wait_in_line() -> None:
    """A retried message is behind what waits already, as in the original."""
    world = World(10_000, max_messages=100_000)
    client = world.subscribe(1)
    world.put(0, 1)
    world.channel.set_ready(client, 0, 0.0)
    world.put(FIRST_FRESH, 50)
    world.channel.requeue(client, b"%016x" % 0, 0, 0.0, wall_ns(0.0))
    world.got.clear()
    assert kinds(world, 50) == {"fresh": 50}


def test_a_kind_that_waits_alone_gets_all() -> None:
    """The share takes nothing away where the other kind has nothing."""
    world = with_retried(10, 20, 0)
    assert kinds(world, 20) == {"retried": 20}
    world = with_retried(90, 10, 100)
    assert kinds(world, 110) == {"retried": 10, "fresh": 100}
    assert world.channel.depth == 0
    world.check()


def test_what_times_out_is_retried() -> None:
    """As what a client requeues."""
    world = World(10_000, retry_share=100)
    client = world.subscribe(3)
    world.put(0, 3)
    world.channel.set_ready(client, 0, 0.0)
    world.put(FIRST_FRESH, 50)
    world.got.clear()
    world.now_s = 61.0
    world.channel.scan(61.0, wall_ns(61.0))
    assert kinds(world, 3) == {"retried": 3}


def test_retried_messages_have_a_bound() -> None:
    """Memory has room for as many as --mem-queue-size of them; what is over goes to disk."""
    world = World(10, retry_share=50)
    client = world.subscribe(30)
    for first in range(0, 30, 10):
        world.put(first, 10)
    world.channel.set_ready(client, 0, 0.0)
    for id_ in list(client.in_flight):
        world.channel.requeue(client, id_, 0, 0.0, wall_ns(0.0))
    memory = world.channel.store.memory
    assert isinstance(memory, RetryQueue)
    assert memory.retried.depth == 10
    assert world.backend.depth == 20
    world.got.clear()
    world.channel.set_ready(client, 100, 0.0)
    assert sorted(world.ids) == list(range(30))
    world.check()


def test_the_share_may_come_and_go() -> None:
    """No message is lost, none is weighed twice."""
    world = with_retried(50, 20, 20)
    memory = world.channel.store.memory
    assert isinstance(memory, RetryQueue)
    assert (memory.depth, memory.fresh_depth, memory.nbytes) == (40, 20, 40 * 16)
    assert sum(one.count for one in memory.peek()) == 40
    world.govern(max_bytes=10_000)
    assert type(world.channel.store.memory) is WeighedQueue
    assert world.channel.store.memory.nbytes == 40 * 16
    world.govern(retry_share=50)
    assert type(world.channel.store.memory) is RetryQueue
    world.govern()
    assert type(world.channel.store.memory) is MessageQueue
    assert len(kinds(world, 40)) == 2
    assert world.channel.depth == 0
    world.check()


def test_emptied_and_saved() -> None:
    """Both kinds go with an empty, and to the backend at the end."""
    world = with_retried(50, 20, 20)
    for _ in world.channel.empty():
        pass
    assert world.channel.depth == 0
    assert type(world.channel.store.memory) is RetryQueue
    world.check()
    world = with_retried(50, 20, 20)
    world.channel.save()
    assert world.backend.depth == 40
    world.check()


def test_an_emptied_queue_is_freed_in_turns() -> None:
    """Of both kinds, with a right count: the segments of the retried ones have one message."""
    memory = with_retried(50, 20, 20).channel.store.memory
    depths = []
    while memory.drop(5, 1 << 20):
        depths.append(len(memory))
    assert depths == [35, 30, 25, 20, 0]
