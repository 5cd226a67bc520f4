"""Messages of a channel that wait for their due time, which is wall clock nanoseconds.

Each is an object of its own: it would pin the batch that it came in, and the delay of that batch is
not to be served again.

Spec: nsqd-internals, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count, groupby
from typing import Final

from trionsq.core.batch import Segment, join_segments
from trionsq.core.peek import in_order

__all__ = ["Deferred"]

# Messages that are saved at once.
_SAVE_MAX: Final = 1000
_MS_NS: Final = 1_000_000


class Deferred:
    """The deferred messages, the next due first; of the same time the one that came first."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Segment]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[tuple[int, Segment]]:
        """Due times and messages, the next due first. Nothing may change meanwhile."""
        return ((due_ns, segment) for due_ns, _, segment in in_order(self._heap))

    @property
    def next_ns(self) -> int | None:
        """When the next one is due; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def add_segment(self, segment: Segment, due_ns: int) -> None:
        """Keep all messages of a segment until then."""
        for place, id_ in enumerate(segment.ids()):
            alone = segment.batch.extract([segment.first + place], [id_])
            self._push(due_ns, Segment(alone, 0, 1, segment.attempts))

    def add_stored(self, segment: Segment) -> None:
        """Keep the one message of a segment that a backend gave, which says when it is due."""
        batch = segment.batch
        alone = Segment(batch.extract([0], segment.ids()), 0, 1, segment.attempts)
        self._push(batch.timestamp_ns + batch.defer_ms * _MS_NS, alone)

    def _push(self, due_ns: int, one: Segment) -> None:
        heappush(self._heap, (due_ns, next(self._order), one))

    def pop_due(self, now_ns: int) -> Iterator[Segment]:
        """Take those that are due, one by one, as they are asked for."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            yield heappop(heap)[2]

    def drop(self, count_max: int, nbytes_max: int) -> int:
        """Forget some, no matter which, within about these limits; how many."""
        heap = self._heap
        dropped = nbytes = 0
        # The end of a heap can go: the rest is one.
        while heap and dropped < count_max and nbytes < nbytes_max:
            nbytes += heap.pop()[2].batch.bodies.nbytes
            dropped += 1
        return dropped

    def save(self, append: Callable[[Segment, list[int]], None]) -> None:
        """Move all to ``append``, with their due times, in their order.

        Raises:
            BackendError: of ``append``; the rest is still here.
        """
        heap = self._heap
        # The next due at the end, where a list is cut at no cost.
        heap.sort(reverse=True)
        try:
            while heap:
                next_ones = heap[: -_SAVE_MAX - 1 : -1]
                attempts, alike = next(groupby(next_ones, _attempts))
                taken = list(alike)
                batch = join_segments([segment for _, _, segment in taken])
                append(Segment(batch, 0, len(taken), attempts), [due_ns for due_ns, _, _ in taken])
                del heap[-len(taken) :]
        finally:
            # What is left is in order, which makes it a heap.
            heap.reverse()


def _attempts(entry: tuple[int, int, Segment]) -> int:
    return entry[2].attempts
