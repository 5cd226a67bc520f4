"""Reads messages of a log from its segments. Blocks: for jobs in threads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trionsq.core.batch import MessageBatch, Segment
from trionsq.disk import Disk, ReadableFile, close_quietly
from trionsq.storage.log.batches import join_batches
from trionsq.storage.log.ranges import MessageRange
from trionsq.storage.log.segmentfile import SegmentFile, end_of, open_segment, sequences_of
from trionsq.storage.log.segments import Damage, SparseIndex, read_records, scan_segment

__all__ = [
    "Block",
    "Place",
    "RangesRead",
    "extract_range",
    "is_stale",
    "read_block",
    "read_ranges",
    "segment_at",
    "sequence_at",
    "share_nbytes",
]

# Less than this part of a batch is copied out of it.
_MIN_SHARE: Final = 4
# A joined batch makes one delivery: see `trionsq.core.dispatch`.
_JOINED_MESSAGES: Final = 512
_JOINED_BYTES: Final = 256 * 1024

Place = tuple[SegmentFile, int, int]
"""A segment, the offset of a record in it, and a sequence that this record has, or a higher one."""


@dataclass(slots=True)
class Block:
    """Messages that were read at once.

    Attributes:
        batches: in order; the first may begin before the sequence that was asked for.
        next: where the record behind them begins; None if that is not known.
        end: sequences below it are in the batches, or nowhere.
        damage: file names with what was damaged.
    """

    batches: list[MessageBatch] = field(default_factory=list)
    next: Place | None = None
    end: int = 0
    damage: list[tuple[str, Damage]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(batch.bodies.nbytes for batch in self.batches)


def segment_at(segments: Sequence[SegmentFile], sequence: int) -> int:
    """Return the index of the segment that has a sequence, if one has it; -1 if it is older."""
    return bisect_right(segments, sequence, key=_first) - 1


def is_stale(segments: Iterable[SegmentFile]) -> bool:
    """Return whether damage that was found in these may be none: a file of theirs was replaced."""
    return any(segment.is_replaced for segment in segments)


def _first(segment: SegmentFile) -> int:
    return segment.first


def read_block(
    disk: Disk,
    segments: Sequence[SegmentFile],
    sequence: int,
    max_bytes: int,
    end: int,
    place: Place | None = None,
) -> Block:
    """Read the messages from ``sequence`` on.

    Args:
        disk: with the files.
        segments: of the log, in order; at least one.
        sequence: to begin with.
        max_bytes: about so much is read.
        end: sequences from there on are not wanted.
        place: of a record that is the one with ``sequence``, or stands before that.

    Raises:
        OSError: the file cannot be read.
    """
    at = max(segment_at(segments, sequence), 0)
    segment = segments[at]
    following = segments[at + 1].first if at + 1 < len(segments) else end
    block = Block(end=max(sequence, segment.first))
    if sequence < segment.first:
        return block
    try:
        file = open_segment(disk, segment)
    except FileNotFoundError:  # somebody has removed it
        block.damage.append((segment.name, Damage(0, segment.end, sequence, following)))
        block.end = following
        return block
    try:
        start = _start_of(segment, file, sequence, place)
        _read_into(block, segment, file, start, max_bytes, sequence, following)
    finally:
        close_quietly(file)
    if block.next is None:
        block.end = max(block.end, following)
    return block


def _start_of(
    segment: SegmentFile, file: ReadableFile, sequence: int, place: Place | None
) -> tuple[int, int]:
    """Return a sequence and the offset of a record with that, or a higher one, to begin with."""
    if place is None or place[0] is not segment or place[2] > sequence:
        return _index_of(segment, file).find(sequence)
    _, offset, known = place
    if segment.index is not None:
        indexed = segment.index.find(sequence)
        if indexed[1] > offset:  # meanwhile much was read from memory, or was no message
            return indexed
    return known, offset


def _read_into(
    block: Block,
    segment: SegmentFile,
    file: ReadableFile,
    start: tuple[int, int],
    max_bytes: int,
    sequence: int,
    following: int,
) -> None:
    known, offset = start
    entries = read_records(
        file, segment.header, offset, max_bytes,
        sequence=known, wanted=sequence, end=segment.end,
    )  # fmt: skip
    if not entries and (size := file.size()) < segment.end:  # the file has become shorter
        entries.append(Damage(size, segment.end, sequence, None))
    # If nothing is found from `sequence` on, all has been stepped over.
    offset = segment.end
    for entry in entries:
        if not isinstance(entry, Damage):
            head, batch = entry
            offset = head.end
            block.batches.append(batch)
            block.end = head.next_sequence
            continue
        # Behind damage that nothing good follows is the next segment.
        behind = following if entry.next_sequence is None else entry.next_sequence
        block.damage.append((segment.name, replace(entry, next_sequence=behind)))
        block.end = max(block.end, behind)
        goes_on = entry.next_sequence is not None and behind > sequence
        offset = entry.end if goes_on else segment.end
    if offset < segment.end:
        block.next = (segment, offset, block.end)


def _index_of(segment: SegmentFile, file: ReadableFile) -> SparseIndex:
    if segment.index is None:
        index = SparseIndex(segment.header)
        for head in scan_segment(file, segment.header, end=segment.end).records:
            index.add(head.sequence, head.offset)
        segment.index = index
    return segment.index


@dataclass(slots=True)
class RangesRead:
    """Messages that were read from all over a log.

    Attributes:
        segments: in the order of the log; none has messages of two ranges.
        damage: file names with what was damaged.
        lost: messages that are nowhere.
        unread: ranges that were too much.
    """

    segments: list[Segment] = field(default_factory=list)
    damage: list[tuple[str, Damage]] = field(default_factory=list)
    lost: int = 0
    unread: list[MessageRange] = field(default_factory=list)


def read_ranges(
    disk: Disk,
    segments: Sequence[SegmentFile],
    ranges: Iterable[MessageRange],
    max_bytes: int,
    most_bytes: int | None = None,
) -> RangesRead:
    """Read messages from all over a log.

    Args:
        disk: with the files.
        segments: of the log, in order.
        ranges: the messages.
        max_bytes: about so much is read at once.
        most_bytes: the bodies that are returned; at least one range is. None: there is no limit.

    Raises:
        OSError: a file cannot be read.
    """
    read = RangesRead()
    ordered = sorted(ranges)
    if not segments:  # all of them are unreadable
        read.lost = sum(one.count for one in ordered)
        return read
    block: Block | None = None
    nbytes = 0
    for at, one in enumerate(ordered):
        if most_bytes is not None and nbytes >= most_bytes:
            read.unread = ordered[at:]
            break
        sequence, end = one.sequence, one.sequence + one.count
        while sequence < end:
            if block is None or not _covers(block, sequence):
                block = read_block(disk, segments, sequence, max_bytes, end)
                read.damage += block.damage
            batch = _batch_with(block, sequence)
            if batch is None:
                behind = max(sequence + 1, min(end, _next_in(block, sequence)))
                read.lost += behind - sequence
                sequence = behind
                continue
            segment = extract_range(batch, MessageRange(sequence, end - sequence, one.attempts))
            read.segments.append(segment)
            nbytes += share_nbytes(segment)
            sequence += segment.count
    read.segments = _join_neighbours(read.segments)
    return read


def _covers(block: Block, sequence: int) -> bool:
    return bool(block.batches) and sequences_of(block.batches[0])[0] <= sequence < block.end


def _batch_with(block: Block, sequence: int) -> MessageBatch | None:
    at = bisect_right(block.batches, sequence, key=_first_sequence) - 1
    batch = block.batches[at] if at >= 0 else None
    return batch if batch is not None and sequence < end_of(batch) else None


def _first_sequence(batch: MessageBatch) -> int:
    return sequences_of(batch)[0]


def _next_in(block: Block, sequence: int) -> int:
    later = [first for batch in block.batches if (first := sequences_of(batch)[0]) > sequence]
    return min(later, default=block.end)


def extract_range(batch: MessageBatch, one: MessageRange) -> Segment:
    """Return the messages of a range that a batch has; the first must be there.

    Few messages are copied: they would keep the others in memory. The delay of a batch is over.
    """
    sequences = sequences_of(batch)
    first = one.sequence - sequences[0]
    last = min(first + one.count, batch.count)
    if (last - first) * _MIN_SHARE < batch.count:
        batch = batch.extract(list(range(first, last)), batch.ids.slice(first, last))
        first, last = 0, last - first
    elif batch.defer_ms:
        batch = MessageBatch(
            batch.bodies, batch.ids, batch.timestamp_ns, 0, batch.stamps, sequences
        )
    return Segment(batch, first, last, one.attempts)


def sequence_at(segment: Segment) -> int:
    """Return the sequence of a segment's first message."""
    return sequences_of(segment.batch)[segment.first]


def share_nbytes(segment: Segment) -> int:
    """Return about the size of a segment's bodies."""
    return segment.batch.bodies.nbytes * segment.count // segment.batch.count


def _join_neighbours(segments: list[Segment]) -> list[Segment]:
    """Return the same messages, those of small batches that follow each other in common ones.

    Each delivery costs about as much as a hundred messages.
    """
    joined: list[Segment] = []
    run: list[Segment] = []
    count = nbytes = 0
    for segment in segments:
        goes_on = (
            run
            and _is_whole(segment)
            and sequence_at(segment) == end_of(run[-1].batch)
            and count + segment.count <= _JOINED_MESSAGES
            and nbytes + segment.batch.bodies.nbytes <= _JOINED_BYTES
        )
        if not goes_on:
            joined += _join_run(run)
            run, count, nbytes = [], 0, 0
        if not _is_whole(segment):
            joined.append(segment)
            continue
        run.append(segment)
        count += segment.count
        nbytes += segment.batch.bodies.nbytes
    return joined + _join_run(run)


def _is_whole(segment: Segment) -> bool:
    return segment.count == segment.batch.count


def _join_run(run: list[Segment]) -> list[Segment]:
    if len(run) < 2:
        return run
    batch = join_batches([segment.batch for segment in run], sequence_at(run[0]))
    joined: list[Segment] = []
    first = 0
    for segment in run:
        joined.append(Segment(batch, first, first + segment.count, segment.attempts))
        first += segment.count
    return joined
