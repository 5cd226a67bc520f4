"""Makes one remainder of old segments: see `trionsq.storage.log.remainders`. Blocks: for jobs."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from trionsq.disk import Disk, DiskFile, close_quietly
from trionsq.storage.log.batches import encode_record
from trionsq.storage.log.format import SEGMENT_HEADER_BYTES, SegmentHeader
from trionsq.storage.log.names import draft_name
from trionsq.storage.log.needed import NeededMessages
from trionsq.storage.log.ranges import MessageRange, unpack_held, walk_open
from trionsq.storage.log.reading import read_ranges, sequence_at
from trionsq.storage.log.segmentfile import SegmentFile
from trionsq.storage.log.segments import SparseIndex
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["Replacement", "ReplacementLimits"]

# A tick copies about so much: bytes, and ranges of messages, which are read so many at a time.
_STEP_BYTES: Final = 1 << 20
_STEP_RANGES: Final = 256
_READ_RANGES: Final = 32
_READ_BYTES: Final = 256 * 1024
# Messages of a range that are in memory at once.
_RANGE_MESSAGES: Final = 1000
# A job looks at about so many ranges to find out what is needed; with more the log holds no
# little rest.
_LOOKED_AT_PER_STEP: Final = 4_096
_MAX_RANGES: Final = 20_000
# What a record costs beside its messages.
_RECORD_BYTES: Final = 100

_Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReplacementLimits:
    """What may be replaced.

    Attributes:
        share: of a segment, that may be needed at most.
        min_bytes: no smaller segment gives way.
        max_bytes: a remainder that takes up the one before it gets no larger.
    """

    share: float
    min_bytes: int
    max_bytes: int


class Replacement:
    """A remainder on its way. Attributes are for the loop when no job runs.

    Attributes:
        log: that it is for.
        old: the segments whose place it takes; it gets the name of the last one.
        new: it, when it has that name.
        is_durable: whether the name is.
        is_over: whether there is nothing more to do.
        whole_before: `whole_from` of the log, if that has changed for it.
        generations: of the channels, by number, when it was known what they need.
    """

    def __init__(
        self,
        log_: TopicLog,
        disk: Disk,
        segments: Sequence[SegmentFile],
        needed: Sequence[NeededMessages],
        limits: ReplacementLimits,
    ) -> None:
        """``segments``: that may be replaced, and the one behind them."""
        self.log = log_
        self.old: list[SegmentFile] = []
        self.new: SegmentFile | None = None
        self.is_durable = False
        self.is_over = False
        self.whole_before: int | None = None
        self.generations = {one.number: one.generation for one in needed}
        self._disk = disk
        self._segments = segments
        self._needed = _needed_ranges(needed, segments[-1].first)
        self._found: list[_Range] = []
        self._limits = limits
        self._to_copy: deque[_Range] = deque()
        self._count = 0
        self._file: DiskFile | None = None
        self._draft: SegmentFile | None = None

    def __repr__(self) -> str:
        return f"<Replacement {self.log.name} of {len(self.old)} segments>"

    @property
    def has_begun(self) -> bool:
        """Whether there is a file of it."""
        return self._draft is not None

    @property
    def end(self) -> int:
        """The sequence behind what it takes the place of."""
        return self._segments[self._segments.index(self.old[-1]) + 1].first

    # All below is for a job.

    def step(self) -> None:
        """Do the next part.

        Raises:
            OSError: all is as it was, and it is over.
        """
        try:
            if self.old:
                self._copy()
            else:
                self._choose()
        except OSError:
            self.give_up()
            raise

    def give_up(self) -> None:
        """End without a result."""
        self.is_over = True
        if self._draft is not None and self._file is not None:
            close_quietly(self._file)
            self._file = None
            with suppress(OSError):
                self._disk.unlink(draft_name(self._draft.name))

    def _choose(self) -> None:
        """Find out what is needed; then take the first segment that is worth it, with a small
        remainder before it."""
        looked_at = 0
        for count, found in self._needed:
            self._found += found
            looked_at += count
            if looked_at >= _LOOKED_AT_PER_STEP:
                self.is_over = len(self._found) > _MAX_RANGES
                return
        self.is_over = True
        limits = self._limits
        parts = _by_segment(_joined(self._found, self._segments[-1].first), self._segments)
        for at, part in enumerate(parts):
            segment = self._segments[at]
            count = _count(part)
            nbytes = self._estimate(at, count, len(part))
            if segment.end < limits.min_bytes or nbytes > limits.share * segment.end:
                continue
            if segment.kept is not None and 4 * count > segment.kept:
                continue
            first = at
            if at and self._segments[at - 1].end + nbytes <= min(limits.max_bytes, segment.end):
                first -= 1
                part = parts[first] + part
            self.old = list(self._segments[first : at + 1])
            self._to_copy.extend(_split(part))
            self._count = _count(part)
            self.is_over = False
            return

    def _estimate(self, at: int, count: int, ranges: int) -> int:
        """Return about how large the remainder of a segment would be."""
        segment, following = self._segments[at], self._segments[at + 1]
        nbytes = segment.end - SEGMENT_HEADER_BYTES
        # Of a remainder that an earlier process made this is too low: it is copied once in vain.
        total = segment.kept or following.first - segment.first
        return SEGMENT_HEADER_BYTES + nbytes * count // max(total, 1) + _RECORD_BYTES * ranges

    def _copy(self) -> None:
        draft = self._draft or self._begin()
        begin = draft.end
        for _ in range(_STEP_RANGES // _READ_RANGES):
            if not self._to_copy or draft.end - begin >= _STEP_BYTES:
                break
            if not self._copy_ranges(draft):
                # Damage stays where it can be seen; and what is not smaller is no gain.
                self.old[-1].kept = self._count
                self.give_up()
                return
        if not self._to_copy:
            self._finish(draft)

    def _begin(self) -> SegmentFile:
        oldest = self.old[0].header
        header = SegmentHeader(
            oldest.incarnation,
            oldest.first_sequence,
            secrets.randbits(32),
            time.time_ns(),
            oldest.previous_first,
            oldest.previous_end,
            is_remainder=True,
        )
        name = self.old[-1].name
        with suppress(FileNotFoundError):
            self._disk.unlink(draft_name(name))
        self._file = self._disk.create(draft_name(name))
        end = SEGMENT_HEADER_BYTES
        draft = self._draft = SegmentFile(name, header, end, SparseIndex(header), self._count)
        self._file.write(header.to_bytes(), 0)
        return draft

    def _copy_ranges(self, draft: SegmentFile) -> bool:
        """Copy the next ranges; False if something of them is damaged, or they are too large."""
        assert self._file is not None
        assert draft.index is not None
        count = min(_READ_RANGES, len(self._to_copy))
        ranges = [self._to_copy.popleft() for _ in range(count)]
        read = read_ranges(
            self._disk,
            self._segments,
            [MessageRange(first, end - first, 0) for first, end in ranges],
            _READ_BYTES,
        )
        if read.damage or read.lost:
            return False
        data = b""
        for one in read.segments:
            sequence = sequence_at(one)
            draft.index.add(sequence, draft.end + len(data))
            batch = one.batch.extract(list(range(one.first, one.last)), one.ids())
            data += b"".join(encode_record(batch, sequence, draft.header))
        self._file.write(data, draft.end)
        draft.end += len(data)
        # The next segment says where the one that had the name ends: what is behind does not count.
        last = self.old[-1].end
        return draft.end <= min(last, last // 2 + sum(one.end for one in self.old[:-1]))

    def _finish(self, draft: SegmentFile) -> None:
        """Give the remainder its name. From then on the segments before the last are in the way."""
        assert self._file is not None
        self._file.sync()
        for segment in self.old:
            segment.is_replaced = True
        try:
            self._disk.rename(draft_name(draft.name), draft.name)
        except OSError:
            for segment in self.old:
                segment.is_replaced = False
            raise
        self.new = draft
        self.is_over = True
        close_quietly(self._file)
        self._file = None
        # If that fails, what it was made of is left to the next start.
        self._disk.sync_folder()
        self.is_durable = True


def _needed_ranges(
    needed: Iterable[NeededMessages], limit: int
) -> Iterator[tuple[int, list[_Range]]]:
    """Yield the sequences before ``limit`` that somebody needs, in pieces, with what they cost."""
    for one in needed:
        opened = takewhile(lambda it: it.sequence < limit, walk_open(one.open))
        while piece := list(islice(opened, _LOOKED_AT_PER_STEP)):
            yield len(piece), [(it.sequence, it.sequence + it.count) for it in piece]
        found = [(it.sequence, it.sequence + it.count) for it in one.recent if it.sequence < limit]
        yield len(one.recent), found
        for packed in one.chunks:
            if min(packed[1::3]) >= limit:
                continue  # that is quick
            found = []
            for at in range(len(packed) // 3):
                if packed[3 * at + 1] < limit and packed[3 * at] > one.fired_ns:
                    held = unpack_held(packed, at)
                    found.append((held.sequence, held.sequence + held.count))
            yield len(packed) // 3, found


def _joined(ranges: Iterable[_Range], limit: int) -> list[_Range]:
    """Return ranges in order, those that touch each other as one, as far as ``limit``."""
    joined: list[_Range] = []
    for first, end in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((first, end))
    return [(first, min(end, limit)) for first, end in joined]


def _by_segment(ranges: Iterable[_Range], segments: Sequence[SegmentFile]) -> list[list[_Range]]:
    """Return the part of the ranges that each segment but the last has."""
    parts: list[list[_Range]] = [[] for _ in segments[:-1]]
    at = 0
    for first, end in ranges:
        while first < end:
            while segments[at + 1].first <= first:
                at += 1
            cut = min(end, segments[at + 1].first)
            parts[at].append((first, cut))
            first = cut
    return parts


def _split(ranges: Iterable[_Range]) -> Iterator[_Range]:
    for first, end in ranges:
        for at in range(first, end, _RANGE_MESSAGES):
            yield at, min(at + _RANGE_MESSAGES, end)


def _count(ranges: Iterable[_Range]) -> int:
    return sum(end - first for first, end in ranges)
