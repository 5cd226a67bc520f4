"""Messages are found wherever they lie in a log (trionsq.storage.log.reading)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.log.log_samples import simple_batch
from trionsq.core.batch import Segment
from trionsq.disk import Disk
from trionsq.histogram import Histogram
from trionsq.storage.log import segments as segments_module
from trionsq.storage.log.ranges import MessageRange
from trionsq.storage.log.reading import Place, read_block, read_ranges
from trionsq.storage.log.segmentfile import SegmentFile, end_of, sequences_of
from trionsq.storage.log.segmentwriter import SegmentWriter
from trionsq.testing.disk import SimulatedDisk

INDEX_EVERY_BYTES = 300


@pytest.fixture(autouse=True, scope="module")
def _sparse_index() -> object:
    """An index so sparse, for records of some hundred bytes, as the real one is for long ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments_module, "_INDEX_EVERY_BYTES", INDEX_EVERY_BYTES)
        yield


class Written:
    """A log on a simulated disk.

    Attributes:
        bodies: by sequence.
    """

    def __init__(self, records: Sequence[tuple[int, list[int]]], segment_bytes: int) -> None:
        """``records``: sequences that nobody has before each, and the sizes of its messages."""
        self.disk: Disk = SimulatedDisk()
        self.bodies: dict[int, bytes] = {}
        self.segments: list[SegmentFile] = []
        writer = SegmentWriter(self.disk, "t", 1, segment_bytes, Histogram([1.0]))
        sequence = 0
        for missing, sizes in records:
            sequence += missing
            bodies = [b"%06d" % (sequence + at) + bytes(size) for at, size in enumerate(sizes)]
            self.bodies.update(enumerate(bodies, sequence))
            writer.write_round([(simple_batch(bodies, sequence), sequence)], sync=True)
            self.segments += writer.pop_changes()[0]
            assert writer.segment is not None
            writer.segment.end = writer.offset
            sequence += len(sizes)
        self.end = sequence

    def forget_indexes(self) -> None:
        """As after a start."""
        for segment in self.segments:
            segment.index = None


def bodies_of(segments: Sequence[Segment]) -> list[bytes]:
    return [body for one in segments for body in one.batch.bodies.slice(one.first, one.last)]


RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.integers(0, 40), min_size=1, max_size=8)
        | st.lists(st.integers(300, 900), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=12,
)


@given(
    records=RECORDS,
    segment_bytes=st.sampled_from([400, 2_000, 1 << 20]),
    max_bytes=st.sampled_from([1, 200, 1_000]),
    is_started=st.booleans(),
    data=st.data(),
)
@settings(deadline=None)
def test_each_message_of_a_range_is_read(
    records: list[tuple[int, list[int]]],
    segment_bytes: int,
    max_bytes: int,
    is_started: bool,
    data: st.DataObject,
) -> None:
    """Of ranges all over a log none is lost, however long the records before them are."""
    log = Written(records, segment_bytes)
    if is_started:
        log.forget_indexes()
    firsts = data.draw(st.lists(st.sampled_from(sorted(log.bodies)), min_size=1, max_size=5))
    ranges = [
        MessageRange(first, data.draw(st.integers(1, log.end - first)), 1) for first in firsts
    ]
    read = read_ranges(log.disk, log.segments, ranges, max_bytes)
    wanted = [
        log.bodies[sequence]
        for first, count, _ in sorted(ranges)
        for sequence in range(first, first + count)
        if sequence in log.bodies
    ]
    assert bodies_of(read.segments) == wanted
    assert read.damage == []
    assert read.unread == []
    assert read.lost == sum(one.count for one in ranges) - len(wanted)


@given(
    records=RECORDS,
    segment_bytes=st.sampled_from([400, 2_000, 1 << 20]),
    max_bytes=st.sampled_from([1, 200, 1_000]),
    data=st.data(),
)
@settings(deadline=None)
def test_blocks_follow_each_other(
    records: list[tuple[int, list[int]]], segment_bytes: int, max_bytes: int, data: st.DataObject
) -> None:
    """A reader that goes on from block to block gets each message from its first one on, once; and
    each block brings it on."""
    log = Written(records, segment_bytes)
    first = sequence = data.draw(st.integers(0, log.end - 1))
    found: dict[int, bytes] = {}
    place: Place | None = None
    while sequence < log.end:
        block = read_block(log.disk, log.segments, sequence, max_bytes, log.end, place)
        assert block.end > sequence
        for batch in block.batches:
            assert not found.keys() & set(sequences_of(batch))
            found.update(zip(sequences_of(batch), batch.bodies.slice(0, batch.count), strict=True))
            assert end_of(batch) <= block.end
        sequence, place = block.end, block.next
    wanted = {at: body for at, body in log.bodies.items() if at >= first}
    assert {at: body for at, body in found.items() if at >= first} == wanted


@given(
    records=RECORDS,
    segment_bytes=st.sampled_from([400, 2_000, 1 << 20]),
    max_bytes=st.sampled_from([1, 200, 1_000]),
    is_started=st.booleans(),
    data=st.data(),
)
@settings(deadline=None, max_examples=40)
def test_what_was_stepped_over_is_no_damage(
    records: list[tuple[int, list[int]]],
    segment_bytes: int,
    max_bytes: int,
    is_started: bool,
    data: st.DataObject,
) -> None:
    """A reader that took the next messages from memory, or that knows that nobody gets them, goes
    on reading behind them, and names nothing."""
    log = Written(records, segment_bytes)
    if is_started:
        log.forget_indexes()
    first = data.draw(st.integers(0, log.end - 1))
    place = read_block(log.disk, log.segments, first, max_bytes, log.end).next
    later = data.draw(st.sampled_from(sorted(log.bodies)))
    block = read_block(log.disk, log.segments, max(first, later), max_bytes, log.end, place)
    assert block.damage == []
    if later >= first:
        assert later in sequences_of(block.batches[0])
