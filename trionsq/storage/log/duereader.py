"""Reads the deferred messages of a channel: those that are due, and ahead those that soon will be.

What is read ahead is in memory twice, as a place and as a message: a kill before its time changes
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from trionsq.core.batch import MessageBatch, Segment
from trionsq.storage.log.ranges import MessageRange, segment_ranges
from trionsq.storage.log.reading import RangesRead, sequence_at, share_nbytes

__all__ = ["DueReader", "MessageSource"]

# Ranges read in one job.
_MAX_READ: Final = 1024
# What is read ahead of its time: more is read when half of it has left.
_MAX_AHEAD: Final = 2048
_AHEAD_BYTES: Final = 2 << 20


class MessageSource(Protocol):
    """The log, as held messages see it."""

    def cached_batch(self, sequence: int) -> MessageBatch | None:
        """Return the batch that has a sequence if it is in memory."""

    def cached_segment(self, one: MessageRange) -> Segment | None:
        """Return the first messages of a range if they are in memory."""

    def read_ranges(self, ranges: list[MessageRange], done: Callable[[RangesRead], None]) -> None:
        """Read messages in a job, which is repeated if it fails.

        What ``done`` gets counts as memory until it is given to `release_block`, in bytes.
        """

    def release_block(self, nbytes: int) -> None:
        """What was read is let go."""

    def is_for(self, sequence: int, channel: str) -> bool:
        """Return whether a channel gets a message that was published with a delay."""


@dataclass(slots=True)
class _Found:
    """The messages of one range, and how many are lost."""

    segments: list[Segment] = field(default_factory=list)
    lost: int = 0


class DueReader:
    """The messages that are due and not taken yet, and others that were read ahead.

    Attributes:
        is_waiting: whether the next due messages are being read; ``came`` is called then.
    """

    def __init__(
        self, source: MessageSource, lost: Callable[[int], None], came: Callable[[], None]
    ) -> None:
        """Create an empty one.

        Args:
            source: the log.
            lost: gets the number of due messages that cannot be read.
            came: is called when due messages have been read.
        """
        self._source = source
        self._lost = lost
        self._came = came
        # Due: to be read or taken from `_found`; and those that are next.
        self._wanted: deque[MessageRange] = deque()
        self._ready: deque[Segment] = deque()
        # By their first sequences: what a job is reading, and what jobs have read.
        self._reading: dict[int, MessageRange] = {}
        self._found: dict[int, _Found] = {}
        self._nbytes = 0
        # All that is due before it was looked at, whether it has to be read.
        self._looked_until_ns = 0
        self._is_over = False
        self.is_waiting = False

    def __repr__(self) -> str:
        return f"<DueReader {len(self._wanted)} due, {len(self._found)} read ranges>"

    def __len__(self) -> int:
        """Ranges that are due and not taken yet."""
        return len(self._wanted) + len(self._ready)

    def add_due(self, one: MessageRange) -> None:
        """Add messages whose time has come."""
        self._wanted.append(one)

    def ranges(self) -> Iterator[MessageRange]:
        """Yield all that is due and not taken yet."""
        yield from self._wanted
        for segment in self._ready:
            yield from segment_ranges(segment)

    def take(self) -> Segment | None:
        """Return the next due messages; None if none are, or if they are to be read: see `read_on`.

        Neighbours that were read as one batch come as one segment.
        """
        while not self._ready:
            if not self._prepare():
                self.is_waiting = bool(self._wanted)
                return None
        segment = self._ready.popleft()
        last = segment.last
        while self._ready or self._prepare():
            if not self._ready:
                continue  # all of a range are lost
            following = self._ready[0]
            if (
                following.batch is not segment.batch
                or following.first != last
                or following.attempts != segment.attempts
            ):
                break
            last = self._ready.popleft().last
        return Segment(segment.batch, segment.first, last, segment.attempts)

    def _prepare(self) -> bool:
        """Move the next range from `_wanted` to `_ready`; False if that is not possible now."""
        if not self._wanted:
            return False
        one = self._wanted[0]
        found = self._found.pop(one.sequence, None)
        if found is not None:
            self._wanted.popleft()
            self._release(found)
            self._ready.extend(found.segments)
            if found.lost:
                self._lost(found.lost)
            return True
        if one.sequence in self._reading:
            return False
        cached = self._source.cached_segment(one)
        if cached is None:
            return False
        self._wanted.popleft()
        if rest := one.count - cached.count:
            self._wanted.appendleft(MessageRange(one.sequence + cached.count, rest, one.attempts))
        self._ready.append(cached)
        return True

    def read_on(
        self, now_ns: int, until_ns: int, coming: Iterable[tuple[int, MessageRange]]
    ) -> None:
        """Begin to read what is due, or else what will be, unless a job is reading.

        Args:
            now_ns: the time.
            until_ns: what is due later is not read ahead.
            coming: due times and messages that are not due, the next due first.
        """
        if self._reading or self._is_over:
            return
        waiting: Iterator[MessageRange]
        if self._wanted:
            waiting = (one for one in self._wanted if self._must_be_read(one))
        elif self._has_room and now_ns + (until_ns - now_ns) // 2 >= self._looked_until_ns:
            waiting = self._look_ahead(until_ns, coming)
        else:
            return
        ranges = list(islice(waiting, _MAX_READ))
        if ranges:
            self._reading = {one.sequence: one for one in ranges}
            self._source.read_ranges(ranges, self._have_read)

    @property
    def _has_room(self) -> bool:
        return len(self._found) <= _MAX_AHEAD // 2 and self._nbytes <= _AHEAD_BYTES // 2

    def _look_ahead(
        self, until_ns: int, coming: Iterable[tuple[int, MessageRange]]
    ) -> Iterator[MessageRange]:
        for due_ns, one in coming:
            if due_ns > until_ns:
                break
            self._looked_until_ns = due_ns
            if self._must_be_read(one):
                yield one
        self._looked_until_ns = until_ns

    def _must_be_read(self, one: MessageRange) -> bool:
        return one.sequence not in self._found and self._source.cached_batch(one.sequence) is None

    def _have_read(self, read: RangesRead) -> None:
        reading, self._reading = self._reading, {}
        self.is_waiting = False
        if self._is_over:
            self._source.release_block(sum(map(share_nbytes, read.segments)))
            return
        for one in read.unread:
            del reading[one.sequence]
            self._looked_until_ns = 0
        segments = deque(read.segments)
        for one in sorted(reading.values()):
            found = self._found[one.sequence] = _Found(lost=one.count)
            while segments and sequence_at(segments[0]) < one.sequence + one.count:
                segment = segments.popleft()
                found.segments.append(segment)
                found.lost -= segment.count
                self._nbytes += share_nbytes(segment)
        if self._wanted:
            self._came()

    def _release(self, found: _Found) -> None:
        nbytes = sum(map(share_nbytes, found.segments))
        self._nbytes -= nbytes
        self._source.release_block(nbytes)

    def close(self) -> None:
        """Forget all; what a job brings later is void."""
        self._is_over = True
        self._wanted.clear()
        self._ready.clear()
        self._found.clear()
        self._source.release_block(self._nbytes)
        self._nbytes = 0
