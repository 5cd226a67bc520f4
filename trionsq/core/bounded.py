"""The queue of a topic or channel that has a policy.

A queue gets a class of here when a policy comes to apply, and loses it when none does: so a queue
without a policy runs no line more. How many bytes the backend held when the policy came is not
known; it is estimated, and right again when the queue has been empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.bounds import EXPIRED, Bounds, LeftOut, weight
from trionsq.core.queue import BackendError, MessageQueue, Store, count_fitting
from trionsq.core.recovered import MAX_DELIVERY_BYTES, ChannelStore
from trionsq.core.weighed import RetryQueue, WeighedQueue

__all__ = ["BoundedChannelStore", "BoundedStore", "QueueFull"]

# Reads of nothing but expired messages before other tasks get their turn.
_MAX_EXPIRED_READS: Final = 16
# Bodies that are read at once to be dropped.
_MAX_DROP_BYTES: Final = 1 << 20
_NO_LIMIT: Final = 2**63


class QueueFull(BackendError):
    """A queue with a bound and ``when_full = "refuse"`` has reached it; the text names both."""


class BoundedStore(Store):
    """A `Store` with `Bounds`."""

    __slots__ = ()

    # From `begin` to `end`.
    bounds: Bounds
    memory: WeighedQueue

    @property
    def nbytes(self) -> int:
        """Size of the bodies of all messages that wait."""
        return self.memory.nbytes + self.bounds.backend_nbytes

    def begin(self, bounds: Bounds) -> None:
        """Weigh what is there; what the backend has is estimated by the messages in memory."""
        store: Store = self
        if store.bounds is not None:
            bounds.backend_nbytes = store.bounds.backend_nbytes
            bounds.left = store.bounds.left
        store.bounds = bounds
        if not isinstance(store.memory, WeighedQueue):
            store.memory = memory = WeighedQueue(store.memory)
            if memory.depth:
                bounds.backend_nbytes = memory.nbytes // memory.depth * store.backend.depth

    def end(self) -> None:
        """Stop weighing."""
        store: Store = self
        if isinstance(store.memory, WeighedQueue):
            store.memory = MessageQueue(store.memory)
        store.bounds = None

    def append_to_backend(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        super().append_to_backend(segment, due_ns)
        self.bounds.backend_nbytes += weight(segment)

    def read_backend(self, max_count: int, max_bytes: int) -> Segment | None:
        bounds = self.bounds
        segment = super().read_backend(max_count, max_bytes)
        if segment is not None:
            left = bounds.backend_nbytes - weight(segment)
            bounds.backend_nbytes = left if left > 0 and self.backend.depth else 0
        return segment

    def empty(self, empty_backend: Callable[[], int] | None = None) -> MessageQueue:
        memory = super().empty(empty_backend)
        self.bounds.backend_nbytes = 0
        self.bounds.left = LeftOut()
        return memory

    def pop_oldest(self, max_count: int) -> Segment | None:
        """Pop the messages that came first; None if there are none, or they are being read."""
        memory, backend = self.memory, self.backend
        if backend.depth:
            stored_ns = backend.oldest_ns()
            head = next(memory.peek(), None)
            if head is None or (stored_ns is not None and stored_ns < head.first_ns):
                return self.read_oldest(max_count)
        if not memory.depth:
            return None
        return memory.pop_segment(max_count, _NO_LIMIT)

    def read_oldest(self, max_count: int) -> Segment | None:
        """Read the next messages of the backend, to drop them or to look at their age."""
        return self.read_backend(max_count, _MAX_DROP_BYTES)

    def excess(self, deferred: int = 0) -> tuple[int, str]:
        """Return how many messages are over the bounds, about, and which bound that is."""
        settings = self.bounds.settings
        depth = self.depth
        if settings.max_messages and depth + deferred > settings.max_messages:
            return min(depth, depth + deferred - settings.max_messages), "max_messages"
        if settings.max_bytes and (over := self.nbytes - settings.max_bytes) > 0 and depth:
            average = max(1, self.nbytes // depth)
            return max(1, over // average), "max_bytes"
        return 0, ""

    def full_for(self, count: int, nbytes: int, deferred: int = 0) -> str:
        """Return the bound that so much more would exceed; empty if there is room."""
        settings = self.bounds.settings
        if settings.max_messages and self.depth + deferred + count > settings.max_messages:
            return "max_messages"
        if settings.max_bytes and self.nbytes + nbytes > settings.max_bytes:
            return "max_bytes"
        return "max_age" if self._is_too_old() else ""

    def fitting(self, segment: Segment, deferred: int = 0) -> tuple[int, str]:
        """Return how many messages of a segment have room, and the bound that leaves out others."""
        settings = self.bounds.settings
        if self._is_too_old():
            return 0, "max_age"
        fit, why = segment.count, ""
        if settings.max_messages and fit > (room := settings.max_messages - self.depth - deferred):
            fit, why = max(0, room), "max_messages"
        part = Segment(segment.batch, segment.first, segment.first + fit)
        if settings.max_bytes and weight(part) > (room := settings.max_bytes - self.nbytes):
            fit, why = _fitting_bytes(part, room), "max_bytes"
        return fit, why

    def _is_too_old(self) -> bool:
        age_ns = self.bounds.settings.max_age_ns
        oldest_ns = self.oldest_ns() if age_ns else None
        return oldest_ns is not None and oldest_ns <= self.bounds.now_ns() - age_ns


def _fitting_bytes(segment: Segment, room: int) -> int:
    fit = count_fitting(segment.batch.bodies, segment.first, segment.count, room)
    first = Segment(segment.batch, segment.first, segment.first + 1)
    return 0 if fit == 1 and weight(first) > room else fit


class BoundedChannelStore(BoundedStore, ChannelStore):
    """A `ChannelStore` with `Bounds`."""

    __slots__ = ()

    def begin(self, bounds: Bounds) -> None:
        super().begin(bounds)
        has_share = bounds.settings.retry_share > 0
        if has_share != isinstance(self.memory, RetryQueue):
            self.memory = RetryQueue(self.memory) if has_share else WeighedQueue(self.memory)

    @property
    def depth(self) -> int:
        """Messages that wait, without those that the channel is not to get."""
        return self.memory.depth + self.backend.depth - self.bounds.left.count

    def leave(self, segment: Segment) -> None:
        """Have messages of a log passed by."""
        bounds, sequences = self.bounds, segment.batch.sequences
        assert sequences is not None
        self.backend.append(segment)
        self.backend_in_count += segment.count
        bounds.left.add(sequences[segment.first], sequences[segment.last - 1] + 1)

    def empty(self, empty_backend: Callable[[], int] | None = None) -> MessageQueue:
        # What is left out was counted as dropped when it came.
        left, drop = self.bounds.left.count, empty_backend or self.backend.empty
        return super().empty(lambda: drop() - left)

    def read_backend(self, max_count: int, max_bytes: int) -> Segment | None:
        bounds = self.bounds
        for _ in range(_MAX_EXPIRED_READS):
            segment = super().read_backend(max_count, max_bytes)
            if segment is None or not bounds.left.count:
                return segment
            kept, count = bounds.without_left(segment)
            self.dropped_count += count
            if kept is not None:
                return kept
        self.must_read_on = True
        return None

    def read_oldest(self, max_count: int) -> Segment | None:
        return self._read_segment(max_count)

    def restore(self, segment: Segment) -> None:
        memory = self.memory
        if (
            isinstance(memory, RetryQueue)
            and segment.attempts
            and segment.count <= self.limit - memory.retried.depth
        ):
            # On disk it would wait behind the whole backlog.
            memory.append(segment)
        else:
            super().restore(segment)

    def _pop_next(self, max_count: int) -> Segment | None:
        memory, bounds = self.memory, self.bounds
        if not isinstance(memory, RetryQueue) or not memory.retried.depth:
            return ChannelStore.pop_segment(self, max_count)
        share = bounds.settings.retry_share
        fresh_depth = memory.fresh_depth
        if not memory.is_retried_due():
            segment: Segment | None = None
            if self.backend.depth and (not fresh_depth or self._random.random() < 0.5):
                segment = self._read_segment(max_count)
            if segment is None and fresh_depth:
                segment = memory.pop_fresh(max_count, MAX_DELIVERY_BYTES)
            if segment is not None:
                memory.note_delivery(segment, share, is_retried=False)
                return segment
        segment = memory.pop_retried(max_count, MAX_DELIVERY_BYTES)
        if fresh_depth or self.backend.depth:
            memory.note_delivery(segment, share, is_retried=True)
        return segment

    def pop_segment(self, max_count: int) -> Segment | None:
        bounds, memory = self.bounds, self.memory
        self.must_read_on = False
        if bounds.max_in_flight:
            max_count = min(max_count, bounds.max_in_flight - bounds.count_in_flight())
            if max_count <= 0:
                return None
        if bounds.has_room is not None and not bounds.has_room():
            return None  # the dead letters take the expired ones first
        if memory.is_plain and memory.depth and not self.backend.depth:
            # What mostly is: no call more than without a policy.
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

    def _pop_young(self, segment: Segment | None, bounds: Bounds, max_count: int) -> Segment | None:
        """Return of this segment and the next ones the first messages that are not expired."""
        for _ in range(_MAX_EXPIRED_READS):
            if segment is None or segment.batch.defer_ms:
                return segment
            kept = bounds.drop_older(segment, bounds.now_ns() - bounds.ttl_ns, EXPIRED)
            if kept is not None:
                return kept
            if not self.memory.depth and not self.backend.depth:
                return None
            if bounds.has_room is not None and not bounds.has_room():
                return None
            segment = self._pop_next(max_count)
        if segment is not None:
            self.memory.put_back(segment)
        self.must_read_on = True
        return None
