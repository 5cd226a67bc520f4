"""What logs have in memory is what their budgets count."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from tests.storage.log.test_rounds import NOW_NS, Node, publish
from trionsq.core.batch import MessageBatch
from trionsq.core.ids import IdSource
from trionsq.storage.log.batches import join_entries
from trionsq.storage.log.budgets import ReadBudget
from trionsq.storage.log.logreader import LogReader
from trionsq.storage.log.ranges import MessageRange
from trionsq.storage.log.reading import Block, RangesRead
from trionsq.storage.log.tailcache import TailCache, cached_nbytes
from trionsq.wire.bodies import ListBodies

_BATCHES = 400


@pytest.mark.parametrize(("count", "size"), [(1, 0), (1, 10), (1, 200), (20, 200), (100, 30)])
def test_a_batch_counts_what_it_takes(count: int, size: int) -> None:
    """Also one of a single small message, which is little beside what it comes in."""
    ids, cache, counted = IdSource(1), TailCache(), 0
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(_BATCHES):
            now_ns = NOW_NS + 1_000_000 * number
            bodies = ListBodies([b"%0*d" % (size, at) if size else b"" for at in range(count)])
            batch = MessageBatch(bodies, ids.next_ids(count, now_ns), now_ns)
            [written] = join_entries([(batch, count * number)])
            cache.add_batch(written)
            counted += cached_nbytes(written)
            del bodies, batch, written
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.6 < taken / counted < 1.7


def test_the_newest_messages_have_a_bound_without_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers that send nothing but empty messages fill no memory."""
    monkeypatch.setattr("trionsq.storage.log.budgets._CACHE_BYTES", 20_000)
    node = Node()
    for _ in range(100):
        publish(node, b"")
        node.jobs.run_all()
    assert 10 < len(node.log.cache) < 30


def test_reads_ahead_are_small_when_there_are_many() -> None:
    """Thousands of slow channels do not fill the memory; what is let go counts no more."""
    budget = ReadBudget()
    sizes = [budget.take_block() for _ in range(1_000)]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(one for one in sizes if one == sizes[0]) <= (64 << 20) + sizes[0]
    assert sizes[-1] <= sizes[0] // 8
    budget.release(sum(sizes))
    assert budget.take_block() == sizes[0]


def test_what_was_read_goes_with_who_asked_for_it() -> None:
    """No block waits in memory for the garbage collector."""
    node = Node()
    for body in (b"a", b"b"):
        publish(node, body)
        node.jobs.run_all()
    reader = LogReader(node.node, "t", lambda: None)
    blocks: list[Block] = []
    reads: list[RangesRead] = []
    reader.read_block(node.log.segments, 0, 2, None, blocks.append)
    reader.read_ranges(node.log.segments, [MessageRange(0, 2, 0)], reads.append)
    node.jobs.run_all()
    block, read = blocks.pop(), reads.pop()
    assert [batch.count for batch in block.batches] == [1, 1]
    assert len(read.segments) == 2
    assert sys.getrefcount(block) == sys.getrefcount(read) == 2
