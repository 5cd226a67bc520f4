"""The queue of a topic or channel that has a policy.

`BoundedStore` is made when a policy comes to apply; `end_bounds` takes the store out of it again.
How many bytes the backend held when the policy came is not known; it is estimated, and right again
when the queue has been empty.
"""

from __future__ import annotations

from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.bounds import EXPIRED, Bounds, weight
from trionsq.core.queue import BackendError, MessageQueue, Store, count_fitting
from trionsq.core.recovered import MAX_DELIVERY_BYTES, ChannelStore
from trionsq.core.weighed import RetryQueue, WeighedQueue

__all__ = ["BoundedStore", "DeliveryGovernor", "QueueFull", "end_bounds"]

# Reads of nothing but expired messages before other tasks get their turn.
_MAX_EXPIRED_READS: Final = 16
_NO_LIMIT: Final = 2**63


class QueueFull(BackendError):
    """A queue with a bound and ``when_full = "refuse"`` has reached it; the text names both."""


class BoundedStore:
    """A `Store` with `Bounds`: how much of them is used.

    Attributes:
        store: the queue.
        bounds: what applies to it.
    """

    __slots__ = ("bounds", "store")

    def __init__(self, store: Store, bounds: Bounds) -> None:
        """Weigh what is there; what the backend has is estimated by the messages in memory."""
        self.store = store
        self.bounds = bounds
        if store.bounds is not None:
            bounds.backend_nbytes = store.bounds.backend_nbytes
            bounds.left = store.bounds.left
        store.bounds = bounds
        if not isinstance(store.memory, WeighedQueue):
            store.memory = memory = WeighedQueue(store.memory)
            if memory.depth:
                bounds.backend_nbytes = memory.nbytes // memory.depth * store.backend.depth

    @property
    def memory(self) -> WeighedQueue:
        """The memory queue."""
        memory = self.store.memory
        assert isinstance(memory, WeighedQueue)
        return memory

    @property
    def nbytes(self) -> int:
        """Size of the bodies of all messages that wait."""
        return self.memory.nbytes + self.bounds.backend_nbytes

    def pop_oldest(self, max_count: int) -> Segment | None:
        """Pop the messages that came first; None if there are none, or they are being read."""
        memory, backend = self.store.memory, self.store.backend
        if backend.depth:
            stored_ns = backend.oldest_ns()
            head = next(memory.peek(), None)
            if head is None or (stored_ns is not None and stored_ns < head.first_ns):
                return self.store.read_segment(max_count)
        if not memory.depth:
            return None
        return memory.pop_segment(max_count, _NO_LIMIT)

    def excess(self, deferred: int = 0) -> tuple[int, str]:
        """Return how many messages are over the bounds, about, and which bound that is."""
        settings = self.bounds.settings
        depth = self.store.depth
        if settings.max_messages and depth + deferred > settings.max_messages:
            return min(depth, depth + deferred - settings.max_messages), "max_messages"
        if settings.max_bytes and (over := self.nbytes - settings.max_bytes) > 0 and depth:
            average = max(1, self.nbytes // depth)
            return max(1, over // average), "max_bytes"
        return 0, ""

    def full_for(self, count: int, nbytes: int, deferred: int = 0) -> str:
        """Return the bound that so much more would exceed; empty if there is room."""
        settings = self.bounds.settings
        if settings.max_messages and self.store.depth + deferred + count > settings.max_messages:
            return "max_messages"
        if settings.max_bytes and self.nbytes + nbytes > settings.max_bytes:
            return "max_bytes"
        return "max_age" if self._is_too_old() else ""

    def fitting(self, segment: Segment, deferred: int = 0) -> tuple[int, str]:
        """Return how many messages of a segment have room, and the bound that leaves out others."""
        settings, store = self.bounds.settings, self.store
        if self._is_too_old():
            return 0, "max_age"
        fit, why = segment.count, ""
        if settings.max_messages and fit > (room := settings.max_messages - store.depth - deferred):
            fit, why = max(0, room), "max_messages"
        part = Segment(segment.batch, segment.first, segment.first + fit)
        if settings.max_bytes and weight(part) > (room := settings.max_bytes - self.nbytes):
            fit, why = _fitting_bytes(part, room), "max_bytes"
        return fit, why

    def leave(self, segment: Segment) -> None:
        """Have messages of a log passed by."""
        store, sequences = self.store, segment.batch.sequences
        assert sequences is not None
        store.backend.append(segment)
        store.backend_in_count += segment.count
        self.bounds.left.add(sequences[segment.first], sequences[segment.last - 1] + 1)

    def _is_too_old(self) -> bool:
        age_ns = self.bounds.settings.max_age_ns
        oldest_ns = self.store.oldest_ns() if age_ns else None
        return oldest_ns is not None and oldest_ns <= self.bounds.now_ns() - age_ns


def _fitting_bytes(segment: Segment, room: int) -> int:
    fit = count_fitting(segment.batch.bodies, segment.first, segment.count, room)
    first = Segment(segment.batch, segment.first, segment.first + 1)
    return 0 if fit == 1 and weight(first) > room else fit


def end_bounds(store: Store) -> None:
    """Have a queue as it is without a policy."""
    if isinstance(store.memory, WeighedQueue):
        store.memory = MessageQueue(store.memory)
    store.bounds = None


class DeliveryGovernor:
    """A policy at work on what a channel's queue delivers."""

    __slots__ = ("_bounded", "_store")

    def __init__(self, store: ChannelStore, bounded: BoundedStore) -> None:
        """``bounded`` is of the same store."""
        self._store = store
        self._bounded = bounded
        has_share = bounded.bounds.settings.retry_share > 0
        if has_share != isinstance(store.memory, RetryQueue):
            store.memory = RetryQueue(store.memory) if has_share else WeighedQueue(store.memory)

    def read_wanted(self, max_count: int) -> Segment | None:
        """As `Store.read_backend`, without the messages that are left out."""
        store, bounds = self._store, self._bounded.bounds
        for _ in range(_MAX_EXPIRED_READS):
            segment = store.read_backend(max_count, MAX_DELIVERY_BYTES)
            if segment is None or not bounds.left.count:
                return segment
            kept, count = bounds.without_left(segment)
            store.dropped_count += count
            if kept is not None:
                return kept
        store.must_read_on = True
        return None

    def pop_segment(self, max_count: int) -> Segment | None:
        """As `ChannelStore.pop_segment`, of what may be in flight and is not too old."""
        store, bounds, memory = self._store, self._bounded.bounds, self._bounded.memory
        store.must_read_on = False
        if bounds.max_in_flight:
            max_count = min(max_count, bounds.max_in_flight - bounds.count_in_flight())
            if max_count <= 0:
                return None
        if bounds.has_room is not None and not bounds.has_room():
            return None  # the dead letters take the expired ones first
        if memory.is_plain and memory.depth and not store.backend.depth:
            # What mostly is: one call less.
            segment: Segment | None = memory.pop_segment(max_count, MAX_DELIVERY_BYTES)
        else:
            segment = self._pop_next(max_count)
        if segment is None or not bounds.ttl_ns:
            return segment
        batch = segment.batch
        if batch.defer_ms or (
            batch.stamps is None and batch.timestamp_ns > bounds.now_ns() - bounds.ttl_ns
        ):
            return segment
        return self._pop_young(segment, bounds, max_count)

    def _pop_next(self, max_count: int) -> Segment | None:
        """As `ChannelStore.pop_segment`; retried messages get their share if they have one."""
        store, memory = self._store, self._bounded.memory
        retry = memory if isinstance(memory, RetryQueue) and memory.retried.depth else None
        fresh_depth = memory.depth if retry is None else retry.fresh_depth
        segment: Segment | None = None
        if retry is None or not retry.is_retried_due():
            if store.backend.depth and (not fresh_depth or store.random.random() < 0.5):
                segment = store.read_segment(max_count)
            if segment is None and fresh_depth:
                pop_fresh = memory.pop_segment if retry is None else retry.pop_fresh
                segment = pop_fresh(max_count, MAX_DELIVERY_BYTES)
        if retry is None:
            return segment
        share = self._bounded.bounds.settings.retry_share
        if segment is not None:
            retry.note_delivery(segment, share, is_retried=False)
            return segment
        segment = retry.pop_retried(max_count, MAX_DELIVERY_BYTES)
        if fresh_depth or store.backend.depth:
            retry.note_delivery(segment, share, is_retried=True)
        return segment

    def _pop_young(self, segment: Segment | None, bounds: Bounds, max_count: int) -> Segment | None:
        """Return of this segment and the next ones the first messages that are not expired."""
        store = self._store
        for _ in range(_MAX_EXPIRED_READS):
            if segment is None or segment.batch.defer_ms:
                return segment
            kept = bounds.drop_older(segment, bounds.now_ns() - bounds.ttl_ns, EXPIRED)
            if kept is not None:
                return kept
            if not store.memory.depth and not store.backend.depth:
                return None
            if bounds.has_room is not None and not bounds.has_room():
                return None
            segment = self._pop_next(max_count)
        if segment is not None:
            store.memory.put_back(segment)
        store.must_read_on = True
        return None
