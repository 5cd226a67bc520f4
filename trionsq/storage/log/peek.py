"""Peeking at a log: messages are read from the segments, in a thread, and stay where they are.

What is safe is found in the segments, also what consumers get from memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trionsq.core.batch import MessageBatch, Segment
from trionsq.core.peek import MAX_SEGMENTS, Page, PeekStale, PeekTooFar
from trionsq.disk import Disk
from trionsq.storage.log.ranges import Gaps, HeldRange, MessageRange
from trionsq.storage.log.reading import is_stale, read_block, read_ranges
from trionsq.storage.log.segmentfile import SegmentFile, end_of, sequences_of
from trionsq.storage.log.segments import Damage

__all__ = ["MAX_SCANNED_BYTES", "HeldView", "LogPart", "LogView"]

MAX_SCANNED_BYTES: Final = 64 * 1024 * 1024
"""Bytes that a view reads at most to reach an offset."""

_BLOCK_BYTES: Final = 256 * 1024
# Ranges that are read at once.
_TURN_RANGES: Final = 64
_MS_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LogPart:
    """A log at one moment, to be read in a thread.

    Attributes:
        disk: with the segments.
        segments: of the log, in order.
        cached_first: messages from there on are in memory as well.
        gaps: sequences that nobody gets.
    """

    disk: Disk
    segments: Sequence[SegmentFile]
    cached_first: int
    gaps: Gaps

    def tell(self, damage: Iterable[tuple[str, Damage]], page: Page) -> None:
        """Show the first damage; what is behind it follows all the same.

        Raises:
            PeekStale: a segment is gone.
        """
        for file, one in damage:
            if one.offset == 0 or is_stale(self.segments):
                raise PeekStale(f"{file}: No such file or directory")
            if page.trouble is None:
                page.trouble = f"{file}: bytes {one.offset} to {one.end} are damaged"

    def read_ranges(self, ranges: list[MessageRange], page: Page) -> list[Segment]:
        """Read messages; in the order of the log."""
        read = read_ranges(self.disk, self.segments, ranges, _BLOCK_BYTES)
        self.tell(read.damage, page)
        return read.segments

    def offer(self, segment: Segment, at: int, page: Page, due_ns: int | None = None) -> bool:
        """Offer one message; False if the page is full."""
        on_disk = sequences_of(segment.batch)[at] < self.cached_first
        return page.offer_message(segment, at, due_ns, on_disk=on_disk)


class LogView:
    """The messages of a topic or channel; see `trionsq.core.peek.BackendView`."""

    def __init__(
        self,
        part: LogPart,
        first: int,
        end: int,
        returned: Iterable[MessageRange] = (),
        *,
        leaves_out: bool = False,
    ) -> None:
        """
        Args:
            part: the log.
            first, end: sequences of the messages that are shown in their order.
            returned: these come before.
            leaves_out: deferred messages between ``first`` and ``end`` are not to be shown.
        """
        self._part = part
        self._next, self._last = first, end
        self._returned: list[MessageRange] = []
        for one in returned:
            self._returned.append(one)
            if len(self._returned) > MAX_SEGMENTS:
                break
        self._leaves_out = leaves_out
        self._skip = 0
        self._scanned_bytes = 0

    def __repr__(self) -> str:
        return f"<LogView {self._next} to {self._last}>"

    def read(self, skip: int, page: Page) -> None:
        """Read the messages; to be called once."""
        self._skip = skip
        try:
            self._read_returned(page)
            self._read_published(page)
        except OSError as error:
            page.trouble = f"{error.filename}: {error.strerror}"

    def _read_returned(self, page: Page) -> None:
        wanted: list[MessageRange] = []
        for place, one in enumerate(self._returned):
            if self._skip >= one.count:
                self._skip -= one.count
                continue
            if place == MAX_SEGMENTS:
                raise PeekTooFar
            wanted.append(MessageRange(one.sequence + self._skip, one.count - self._skip, one[2]))
            self._skip = 0
            if len(wanted) == _TURN_RANGES:
                self._show_ranges(wanted, page)
                wanted = []
            if page.more:
                return
        self._show_ranges(wanted, page)

    def _show_ranges(self, ranges: list[MessageRange], page: Page) -> None:
        if not ranges:
            return
        for segment in self._part.read_ranges(ranges, page):
            for at in range(segment.first, segment.last):
                if not self._part.offer(segment, at, page):
                    return

    def _read_published(self, page: Page) -> None:
        if not self._leaves_out:
            self._jump()
        part, place = self._part, None
        while self._next < self._last and not page.more and part.segments:
            if (gap_end := self._part.gaps.end_at(self._next)) is not None:
                self._next, place = gap_end, None
                continue
            if self._skip and self._scanned_bytes >= MAX_SCANNED_BYTES:
                raise PeekTooFar
            block = read_block(
                part.disk, part.segments, self._next, _BLOCK_BYTES, self._last, place
            )
            self._scanned_bytes += max(block.nbytes, 1)
            part.tell(block.damage, page)
            place = block.next
            for batch in block.batches:
                if not self._show_batch(batch, page):
                    return
            self._next = max(self._next + (not block.batches), block.end)

    def _jump(self) -> None:
        """Step over what is to be skipped without reading it: each sequence is a message."""
        while self._skip and self._next < self._last:
            if (gap_end := self._part.gaps.end_at(self._next)) is not None:
                self._next = gap_end
                continue
            ends = [first for first, _ in self._part.gaps if first > self._next]
            count = min(self._skip, min([*ends, self._last]) - self._next)
            self._skip -= count
            self._next += count

    def _show_batch(self, batch: MessageBatch, page: Page) -> bool:
        begin = sequences_of(batch)[0]
        first, last = max(self._next - begin, 0), min(batch.count, self._last - begin)
        self._next = end_of(batch)
        if first >= last or (self._leaves_out and batch.defer_ms):
            return True
        if self._skip >= last - first:
            self._skip -= last - first
            return True
        first, self._skip = first + self._skip, 0
        segment = Segment(batch, 0, batch.count)
        due_ns = batch.timestamp_ns + batch.defer_ms * _MS_NS if batch.defer_ms else None
        return all(self._part.offer(segment, at, page, due_ns) for at in range(first, last))


class HeldView:
    """Deferred messages of a channel."""

    def __init__(self, part: LogPart, ranges: Sequence[HeldRange]) -> None:
        """``ranges``: the messages, in the order in which they are due."""
        self._part = part
        self._ranges = ranges

    def __repr__(self) -> str:
        return f"<HeldView {len(self._ranges)} ranges>"

    def read(self, set_back_ns: int, page: Page) -> None:
        """Offer the messages; in a thread. Due times are shown ``set_back_ns`` earlier.

        Raises:
            PeekStale: the messages are gone.
        """
        try:
            for begin in range(0, len(self._ranges), _TURN_RANGES):
                if page.more:
                    break
                self._show(self._ranges[begin : begin + _TURN_RANGES], set_back_ns, page)
        except OSError as error:
            page.trouble = f"{error.filename}: {error.strerror}"

    def find(self, id_: bytes) -> int | None:
        """Return the sequence of the message with an id; in a thread.

        Raises:
            OSError, PeekStale: it could not be read.
        """
        for begin in range(0, len(self._ranges), _TURN_RANGES):
            ranges = [MessageRange(*one[1:]) for one in self._ranges[begin : begin + _TURN_RANGES]]
            for segment in self._part.read_ranges(ranges, Page(1, 1)):
                ids = segment.ids()
                if id_ in ids:
                    return sequences_of(segment.batch)[segment.first + ids.index(id_)]
        return None

    def _show(self, ranges: Sequence[HeldRange], set_back_ns: int, page: Page) -> None:
        found = self._part.read_ranges([MessageRange(*one[1:]) for one in ranges], page)
        places = {
            sequences_of(segment.batch)[at]: (segment, at)
            for segment in found
            for at in range(segment.first, segment.last)
        }
        for due_ns, sequence, count, _ in ranges:
            for one in range(sequence, sequence + count):
                if one in places and not self._part.offer(*places[one], page, due_ns - set_back_ns):
                    return
