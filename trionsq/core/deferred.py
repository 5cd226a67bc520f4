"""Messages of a channel that wait for their due time, in nanoseconds.

Each message is copied out of its batch: it would keep the whole batch in memory, and the delay of
that batch must not be applied again.

Spec: nsqd-internals, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from heapq import heappop, heappush
from itertools import count, groupby
from typing import Final, Protocol

from trionsq.core.batch import Segment, join_segments
from trionsq.core.peek import in_order

__all__ = ["Deferred", "DeferredMessages"]

# Messages saved in one append.
_MAX_SAVE: Final = 1000
# Messages that are compared in one turn: about a millisecond.
_MAX_SEARCH: Final = 20_000
_MS_NS: Final = 1_000_000


class DeferredMessages(Protocol):
    """The deferred messages of a channel, wherever they are kept.

    Attributes:
        next_ns: when `pop_due` will have something next; None if that is not known, or never.
        lost_count: messages that were lost here; the backend has them in its `dropped`.
    """

    @property
    def lost_count(self) -> int: ...
    @property
    def next_ns(self) -> int | None: ...
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[int, Segment]]:
        """Yield due times and messages, the next due first. Nothing may change meanwhile."""

    def add_segment(self, segment: Segment, due_ns: int) -> int:
        """Add all messages of a segment, due at that time; return how many.

        That is 0 if they are for another channel alone.
        """

    def add_stored(self, segment: Segment, due_on_clock_ns: Callable[[int], int]) -> None:
        """Add what a backend returned with its delay: one message, of a log also more."""

    def pop_due(self, now_ns: int) -> Iterator[Segment]:
        """Pop and yield messages that are due.

        What has to be read first is left out, here and in `next_ns`; the channel is to be scanned
        when it is there, see `Backend.new_deferred`.
        """

    def drop(self, max_count: int, max_bytes: int) -> int:
        """Drop any messages, within about these limits; returns how many."""

    def save(self, append: Callable[[Segment, list[int]], None], set_back_ns: int = 0) -> None:
        """Move all messages to ``append``, with their due times; see `Deferred.save`."""


class Deferred:
    """Deferred messages in memory; of those with equal times the one that came first is first.

    Attributes:
        nbytes: size of the bodies.
    """

    __slots__ = ("_cancelled", "_heap", "_order", "_searches", "_wanted", "nbytes")

    lost_count: Final = 0

    def __init__(self, wanted: Callable[[Segment], bool] | None = None) -> None:
        """``wanted`` tells whether published messages are for this channel; None: all are."""
        self._wanted = wanted
        self._heap: list[tuple[int, int, Segment]] = []
        self._order = count()
        self.nbytes = 0
        # The orders of messages that are not to come any more, though the heap has them.
        self._cancelled: set[int] = set()
        # The orders that have left the heap since each search began.
        self._searches: list[set[int]] = []

    def __len__(self) -> int:
        return len(self._heap) - len(self._cancelled)

    def __iter__(self) -> Iterator[tuple[int, Segment]]:
        """Yield due times and messages, the next due first. Nothing may change meanwhile."""
        heap, cancelled = self._heap, self._cancelled
        return ((due_ns, one) for due_ns, order, one in in_order(heap) if order not in cancelled)

    @property
    def next_ns(self) -> int | None:
        """When the next message is due; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def add_segment(self, segment: Segment, due_ns: int) -> int:
        if self._wanted is not None and not self._wanted(segment):
            return 0
        for place, id_ in enumerate(segment.ids()):
            batch = segment.batch.extract([segment.first + place], [id_])
            self._push(due_ns, Segment(batch, 0, 1, segment.attempts))
        return segment.count

    def add_stored(self, segment: Segment, due_on_clock_ns: Callable[[int], int]) -> None:
        """Add the one message of a segment that a backend returned; the batch has its due time on
        the wall clock, which ``due_on_clock_ns`` converts."""
        batch = segment.batch
        copy = Segment(batch.extract([0], segment.ids()), 0, 1, segment.attempts)
        self._push(due_on_clock_ns(batch.timestamp_ns + batch.defer_ms * _MS_NS), copy)

    def part(self, first: int, count: int) -> list[tuple[int, Segment]]:
        """Return some of them with their due times, by places that are good until a change."""
        entries, cancelled = self._heap[first : first + count], self._cancelled
        return [(due_ns, one) for due_ns, order, one in entries if order not in cancelled]

    def take_over(self, other: Deferred) -> None:
        """Add all messages of another one, which is not used any more."""
        for due_ns, order, segment in other._heap:
            if order not in other._cancelled:
                self._push(due_ns, segment)

    def _push(self, due_ns: int, segment: Segment) -> None:
        self.nbytes += segment.batch.bodies.nbytes
        heappush(self._heap, (due_ns, next(self._order), segment))

    def pop_due(self, now_ns: int) -> Iterator[Segment]:
        """Pop and yield the messages that are due, one by one."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            _, order, segment = heappop(heap)
            self.nbytes -= segment.batch.bodies.nbytes
            for search in self._searches:
                search.add(order)
            if order in self._cancelled:
                self._cancelled.discard(order)
            else:
                yield segment

    def cancel(self, id_: bytes, due_ns: int) -> Generator[None, None, Segment | None]:
        """Cancel one message; its memory is free when it would have been due.

        The caller exhausts the iterator, which yields where a turn ends. It returns the message;
        None: there is none like that.
        """
        entries, left = list(self._heap), set[int]()
        self._searches.append(left)
        try:
            for begin in range(0, len(entries), _MAX_SEARCH):
                for entry_due_ns, order, segment in entries[begin : begin + _MAX_SEARCH]:
                    if entry_due_ns != due_ns or segment.ids()[0] != id_:
                        continue
                    if order not in left and order not in self._cancelled:
                        self._cancelled.add(order)
                        return segment
                yield
        finally:
            self._searches.remove(left)
        return None

    def drop(self, max_count: int, max_bytes: int) -> int:
        """Drop any messages, within about these limits; returns how many."""
        heap = self._heap
        dropped = nbytes = 0
        # Without its last entry a heap is still a heap.
        while heap and dropped < max_count and nbytes < max_bytes:
            nbytes += heap.pop()[2].batch.bodies.nbytes
            dropped += 1
        if not heap:
            self._cancelled.clear()
        return dropped

    def save(self, append: Callable[[Segment, list[int]], None], set_back_ns: int = 0) -> None:
        """Move all messages to ``append``, with their due times and in their order.

        ``append`` gets due times on the wall clock, which is ``set_back_ns`` behind.

        Raises:
            BackendError: from ``append``; the rest is still here.
        """
        heap = self._heap
        if self._cancelled:
            heap[:] = [entry for entry in heap if entry[1] not in self._cancelled]
            self._cancelled.clear()
        # The next due at the end, where removing is cheap.
        heap.sort(reverse=True)
        try:
            while heap:
                next_ones = heap[: -_MAX_SAVE - 1 : -1]
                attempts, alike = next(groupby(next_ones, _attempts))
                entries = list(alike)
                batch = join_segments([segment for _, _, segment in entries])
                due_times_ns = [due_ns - set_back_ns for due_ns, _, _ in entries]
                append(Segment(batch, 0, len(entries), attempts), due_times_ns)
                del heap[-len(entries) :]
        finally:
            # A sorted list is a heap.
            heap.reverse()


def _attempts(entry: tuple[int, int, Segment]) -> int:
    return entry[2].attempts
