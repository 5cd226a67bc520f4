"""The deferred messages of a channel of a log topic: as ranges, with no body in memory.

They leave in the order of their due times. So the state keeps them as chunks that are written once,
and the time until which they have left; a chunk goes when all of it has.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain, starmap
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.peek import in_order
from trionsq.storage.log.duereader import DueReader, MessageSource
from trionsq.storage.log.heldchunk import HeldChunk, without
from trionsq.storage.log.ranges import (
    HeldRange,
    MessageRange,
    SequenceSet,
    held_from_bytes,
    held_to_bytes,
    pack_held,
    segment_ranges,
    unpack_held,
)
from trionsq.storage.log.rows import Change, DropHeld, PutHeld, StoredHeld

__all__ = ["HeldMessages"]

# Ranges in a chunk; one that is being filled is written again at each tick.
_CHUNK_RANGES: Final = 4096
# Ranges that leave the chunks at once; what they have is then taken, or read.
_MAX_DUE: Final = 512
# How long before its time a message may be read.
_AHEAD_NS: Final = 1_000_000_000
_MS_NS: Final = 1_000_000


class HeldMessages:
    """Deferred messages: a `trionsq.core.deferred.DeferredMessages`.

    Attributes:
        has_changed: whether there is something new for the state.
        lost_count: messages that could not be read.
    """

    def __init__(
        self,
        source: MessageSource,
        entered: Callable[[Segment], object],
        lost: Callable[[int], None],
        scan_at: Callable[[float], None],
        first_chunk: int = 0,
        channel: str = "",
    ) -> None:
        """Create an empty one.

        Args:
            source: the log.
            entered: gets each segment that is added.
            lost: gets the number of messages that cannot be read.
            scan_at: has the channel look for due messages.
            first_chunk: number of the first chunk; none of before may have it.
            channel: whose messages they are.
        """
        self.has_changed = False
        self.lost_count = 0
        self._source = source
        self._channel = channel
        self._entered = entered
        self._lost = lost
        self._count = 0
        # The chunk that is being filled, as a heap, and whether the state lacks some of it.
        self._recent: list[HeldRange] = []
        self._has_new = False
        self._number = first_chunk
        self._full: list[HeldChunk] = []
        self._heap: list[tuple[int, int, HeldChunk]] = []
        self._dropped: list[int] = []
        # What `changes` gave last of that: it may never come to the state.
        self._given: tuple[int, ...] = ()
        self._fired_ns = 0
        # What left the chunks, and is not popped.
        self._due = DueReader(source, self._have_lost, lambda: scan_at(0.0))
        self._is_saved = False

    def __repr__(self) -> str:
        return f"<HeldMessages {self._count} in {len(self._heap)} chunks>"

    def __len__(self) -> int:
        return 0 if self._is_saved else self._count

    def __iter__(self) -> Iterator[tuple[int, Segment]]:
        """Yield nothing: the bodies are on the disk."""
        return iter(())

    def next_ranges(self, skip: int, count: int) -> list[HeldRange]:
        """Return messages in the order of their due times."""
        found: list[HeldRange] = []
        for one in self._walk():
            if skip >= one.count:
                skip -= one.count
                continue
            due_ns, sequence, many, attempts = one
            one = HeldRange(due_ns, sequence + skip, min(many - skip, count), attempts)
            found.append(one)
            skip, count = 0, count - one.count
            if not count:
                break
        return found

    def _walk(self) -> Iterator[HeldRange]:
        """Yield all, the next due first; what is not looked at costs nothing."""
        for moving in self._due.ranges():
            yield HeldRange(self._fired_ns, *moving)
        yield from self._walk_chunks()

    def _walk_chunks(self) -> Iterator[HeldRange]:
        chunks = in_order(self._heap)
        waiting = next(chunks, None)
        ways: list[tuple[HeldRange, int, Iterator[HeldRange]]] = []
        _push_next(ways, -1, in_order(self._recent))
        while ways or waiting is not None:
            while waiting is not None and (not ways or waiting[0] <= ways[0][0].due_ns):
                _push_next(ways, waiting[1], waiting[2].ranges())
                waiting = next(chunks, None)
            one, number, way = heappop(ways)
            yield one
            _push_next(ways, number, way)

    @property
    def next_chunk(self) -> int:
        """A number above those of all chunks."""
        return self._number + 1

    @property
    def next_ns(self) -> int | None:
        if self._due.is_waiting:
            return None  # `scan_at` is called
        return self._fired_ns if len(self._due) else self._next_due_ns()

    def _next_due_ns(self) -> int | None:
        recent_ns = self._recent[0].due_ns if self._recent else None
        chunk_ns = self._heap[0][0] if self._heap else None
        if recent_ns is None or chunk_ns is None:
            return chunk_ns if recent_ns is None else recent_ns
        return min(recent_ns, chunk_ns)

    def add_segment(self, segment: Segment, due_ns: int) -> int:
        self._entered(segment)
        sequences = segment.batch.sequences
        assert sequences is not None, "the messages are of no log"
        if self._channel and not self._source.is_for(sequences[segment.first], self._channel):
            return 0
        for sequence, count, attempts in segment_ranges(segment):
            self.add_range(HeldRange(due_ns, sequence, count, attempts))
        return segment.count

    def add_stored(self, segment: Segment, due_on_clock_ns: Callable[[int], int]) -> None:
        batch = segment.batch
        due_ns = due_on_clock_ns(batch.timestamp_ns + batch.defer_ms * _MS_NS)
        for sequence, count, attempts in segment_ranges(segment):
            self.add_range(HeldRange(due_ns, sequence, count, attempts))

    def add_range(self, one: HeldRange) -> None:
        """Add consecutive messages."""
        self.has_changed = self._has_new = True
        self._count += one.count
        if one.due_ns <= self._fired_ns:
            # It was due while its topic was paused. What has left before is not to come again.
            one = one._replace(due_ns=self._fired_ns + 1)
        heappush(self._recent, one)
        if len(self._recent) >= _CHUNK_RANGES:
            chunk = HeldChunk(self._number, pack_held(sorted(self._recent)))
            self._add_chunk(chunk)
            self._full.append(chunk)
            self._recent = []
            self._number += 1

    def _add_chunk(self, chunk: HeldChunk) -> None:
        next_ns = chunk.next_ns
        if next_ns is not None:
            heappush(self._heap, (next_ns, chunk.number, chunk))

    def pop_due(self, now_ns: int) -> Iterator[Segment]:
        while True:
            self._move_to_due(now_ns)
            segment = self._due.take()
            if segment is None:
                break
            self._count -= segment.count
            self.has_changed = True
            yield segment
        self._due.read_on(now_ns, now_ns + _AHEAD_NS, self._coming())

    def _move_to_due(self, now_ns: int) -> None:
        due_ns = self._next_due_ns()
        while len(self._due) < _MAX_DUE:
            if due_ns is None or due_ns > now_ns:
                return
            self._fired_ns = due_ns
            self.has_changed = True
            one = self._pop_range()
            self._due.add_due(MessageRange(one.sequence, one.count, one.attempts))
            due_ns = self._next_due_ns()
        # `fired_ns` tells the state what has left, but not if only some have that are due together.
        self._has_new = self._has_new or due_ns == self._fired_ns

    def _coming(self) -> Iterator[tuple[int, MessageRange]]:
        for due_ns, *place in self._walk_chunks():
            yield due_ns, MessageRange(*place)

    def _have_lost(self, lost: int) -> None:
        self._count -= lost
        self.lost_count += lost
        self._lost(lost)

    def _pop_range(self) -> HeldRange:
        if self._recent and (not self._heap or self._recent[0].due_ns <= self._heap[0][0]):
            return heappop(self._recent)
        _, _, chunk = heappop(self._heap)
        one = unpack_held(chunk.packed, chunk.at)
        chunk.at += 1
        if chunk.next_ns is None:
            self._dropped.append(chunk.number)
        else:
            self._add_chunk(chunk)
        return one

    def ranges_at(self, due_ns: int, max_messages: int) -> list[HeldRange]:
        """Return messages that are due at a time."""
        found: list[HeldRange] = []
        for one in chain(self._recent, chain.from_iterable(map(_at(due_ns), self._chunks()))):
            if one.due_ns == due_ns and max_messages > 0:
                one = one._replace(count=min(one.count, max_messages))
                max_messages -= one.count
                found.append(one)
        return found

    def _chunks(self) -> Iterator[HeldChunk]:
        return (chunk for _, _, chunk in self._heap)

    def remove(self, due_ns: int, sequence: int) -> bool:
        """Forget one message; False if it is not here, or is about to be delivered."""
        for place, one in enumerate(self._recent):
            if one.due_ns == due_ns and one.sequence <= sequence < one.sequence + one.count:
                self._recent[place : place + 1] = without(one, sequence)
                heapify(self._recent)
                break
        else:
            for chunk in self._chunks():
                if chunk.remove(due_ns, sequence):
                    break
            else:
                return False
            self._full.append(chunk)
            waiting = list(self._chunks())
            self._heap = []
            for chunk in waiting:
                self._add_chunk(chunk)
                if chunk.next_ns is None:
                    self._dropped.append(chunk.number)
        self._count -= 1
        self.has_changed = self._has_new = True
        return True

    def drop(self, max_count: int, max_bytes: int) -> int:
        """Forget all messages at once; bodies are not in memory."""
        dropped, self._count = self._count, 0
        self._recent, self._heap, self._full = [], [], []
        self._due.close()
        return dropped

    def save(self, append: Callable[[Segment, list[int]], None], set_back_ns: int = 0) -> None:
        """Leave them to the state, which has them; nothing is only in memory.

        The state then has due times on the wall clock, as `Deferred.save` gives them.
        """
        if set_back_ns:
            self._move_due(lambda due_ns: due_ns - set_back_ns)
        self._is_saved = True

    def follow_clock(self, now_ns: int, max_delay_ns: int) -> None:
        """After `load`: no message waits longer than it may because the clock was set back."""
        back_ns = max(0, self._fired_ns - now_ns)
        latest_ns = now_ns + max_delay_ns
        dues = [one.due_ns for one in self._recent]
        dues += [chunk.max_due_ns for _, _, chunk in self._heap]
        if back_ns or max(dues, default=0) > latest_ns:
            self._move_due(lambda due_ns: min(due_ns - back_ns, latest_ns))

    def _move_due(self, moved: Callable[[int], int]) -> None:
        """Change all times in a way that keeps their order; the state gets all chunks anew."""
        self._full = [chunk for _, _, chunk in self._heap]
        for chunk in self._full:
            chunk.packed = chunk.packed[:]  # a thread may read the old one
            for place in range(0, len(chunk.packed), 3):
                chunk.packed[place] = moved(chunk.packed[place])
        self._heap = []
        for chunk in self._full:
            self._add_chunk(chunk)
        self._recent = [one._replace(due_ns=moved(one.due_ns)) for one in self._recent]
        heapify(self._recent)
        self._fired_ns = moved(self._fired_ns)
        self.has_changed = self._has_new = True

    # The state

    def load(self, rows: Iterable[StoredHeld], fired_ns: int, open_: SequenceSet) -> None:
        """Take over what the state has. ``open_`` has the sequences that left since then."""
        self._fired_ns = fired_ns
        for row in rows:
            packed = held_from_bytes(row.data)
            chunk = HeldChunk(row.chunk, packed, bisect_right(packed[0::3], fired_ns))
            while chunk.next_ns == fired_ns + 1 and chunk.packed[3 * chunk.at + 1] in open_:
                chunk.at += 1
            self._number = max(self._number, row.chunk + 1)
            if chunk.next_ns is None:
                self._dropped.append(row.chunk)
                self.has_changed = True
            else:
                self._count += sum(one.count for one in chunk.ranges())
                heappush(self._heap, (chunk.next_ns, chunk.number, chunk))

    def in_transit(self) -> Iterator[MessageRange]:
        """Yield what left the chunks and is not popped yet."""
        return self._due.ranges()

    @property
    def fired_ns(self) -> int:
        """All that were due until then have left the chunks; of those that are due a nanosecond
        later some may have."""
        next_ns = self._next_due_ns()
        return self._fired_ns if next_ns is None else min(self._fired_ns, next_ns - 1)

    @property
    def min_sequence(self) -> int | None:
        """No message before it is here; None if none is here."""
        found = [one.sequence for one in self._recent]
        found += [chunk.min_sequence for _, _, chunk in self._heap]
        return min(found, default=None)

    def all_ranges(self) -> tuple[list[array[int]], list[HeldRange]]:
        """Return the ranges for a thread to read: chunks, also with what has left, and others."""
        return [chunk.packed for _, _, chunk in self._heap], list(self._recent)

    def changes(self, channel: int) -> Iterator[Change]:
        """Yield what the state lacks now, also if it is asked for later; it is given once."""
        if not self.has_changed:
            return iter(())
        self.has_changed = False
        full = [(chunk.number, chunk.packed) for chunk in self._full if chunk.next_ns is not None]
        self._full = []
        if not self._recent:
            self._dropped.append(self._number)
        elif self._has_new:  # the state knows by `fired_ns` what has left
            full.append((self._number, pack_held(sorted(self._recent))))
        self._has_new = False
        self._given, self._dropped = tuple(self._dropped), []
        return chain(starmap(partial(_put, channel), full), [DropHeld(channel, self._given)])

    def chunk_numbers(self) -> tuple[int, ...]:
        """Return the numbers of all chunks that the state may have."""
        in_heap = (number for _, number, _ in self._heap)
        return (*self._given, *self._dropped, *in_heap, self._number)


def _at(due_ns: int) -> Callable[[HeldChunk], Iterator[HeldRange]]:
    return lambda chunk: chunk.ranges_at(due_ns)


def _push_next(
    ways: list[tuple[HeldRange, int, Iterator[HeldRange]]], number: int, way: Iterator[HeldRange]
) -> None:
    if (one := next(way, None)) is not None:
        heappush(ways, (one, number, way))


def _put(channel: int, number: int, packed: array[int]) -> PutHeld:
    row = StoredHeld(
        channel=channel,
        chunk=number,
        count=sum(rest >> 16 for rest in packed[2::3]),
        max_due_ns=packed[-3],
        data=held_to_bytes(packed),
    )
    return PutHeld(row)
