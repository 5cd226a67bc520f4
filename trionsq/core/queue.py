"""The queue of a topic or channel: memory up to a limit, and a backend for what is over.

The backends live in `trionsq.storage`; a topic and each channel has one of its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from trionsq.core.batch import Segment
from trionsq.core.bounds import Bounds, weight
from trionsq.core.deferred import DeferredMessages
from trionsq.core.peek import BackendView
from trionsq.core.round import Round
from trionsq.wire.bodies import Bodies

__all__ = [
    "Backend",
    "BackendBusy",
    "BackendError",
    "MessageQueue",
    "Store",
    "count_fitting",
]

# Messages moved to the backend in one append, at the end of the broker's life.
_MAX_SAVE_MESSAGES: Final = 10_000
_MAX_SAVE_BYTES: Final = 4 * 1024 * 1024
# Bodies that are read at once to be dropped.
_MAX_DROP_BYTES: Final = 1 << 20


class BackendError(Exception):
    """The backend refused messages. None of them was stored; the text says why."""


class BackendBusy(BackendError):
    """The backend has too much to make durable. It takes messages again when that is done."""


class Backend(Protocol):
    """A FIFO of messages outside of memory, in batches. All calls are synchronous.

    Attributes:
        depth: messages that were appended and not yet read; above 0 as long as `read` may return
            some.
        on_disk: of `depth`, messages that only the disk has.
        behind: whether too much waits to be made durable. Callers look at it before `append`,
            which does not refuse for it.
        pending: the round of what was appended last, until that is safe; None if it is. What is
            not safe yet is in no `depth`, and `caught_up` is called when it is.
        has_published: whether the backend takes all that is published, whatever room memory has.
            Memory is then for messages that return: those requeued, timed out or due.
        caught_up: is called when `behind` has become false, or when there is more to read.
        dropped: messages that the backend gave up on its own, by reason; the owner may replace it.
    """

    caught_up: Callable[[], None]
    dropped: Counter[str]

    @property
    def depth(self) -> int: ...
    @property
    def on_disk(self) -> int: ...
    @property
    def behind(self) -> bool: ...
    @property
    def pending(self) -> Round | None: ...
    @property
    def has_published(self) -> bool: ...

    def new_deferred(self, scan_at: Callable[[float], None]) -> DeferredMessages:
        """Return a place for deferred messages of the channel that the backend belongs to.

        ``scan_at`` gets the monotonic time at which the channel is to look for due messages; 0.0
        is at once. It need not be called for what `DeferredMessages.next_ns` says.
        """

    def is_recovering(self) -> bool:
        """Return whether the segment read last was written before an unclean stop.

        Before the first read: whether there are such segments.
        """

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        """Store all messages of ``segment``, or none.

        ``due_ns`` has the due time of each message, in nanoseconds since the epoch, if they are
        deferred. `read` returns a deferred message alone, in a batch whose timestamp_ns and
        defer_ms add up to its due time.

        Raises:
            BackendError: nothing was stored.
        """

    def read(self, max_count: int, max_bytes: int) -> Segment | None:
        """Return the next messages: at least one, within both limits; None if there are none now.

        The backend may return fewer messages than the limits allow.
        """

    def unread(self, segment: Segment) -> bool:
        """Take back the messages that the last `read` returned; False: they stay the caller's."""

    def peek(self) -> BackendView | None:
        """Return a view of the messages stored now, None if there are none."""

    def oldest_ns(self) -> int | None:
        """Return when the next message was published, in nanoseconds since the epoch.

        None if there is no message, or the time is not known. Cheap: no data is read twice for it.
        """

    def check(self) -> str | None:
        """Return what is wrong with the backend's counters, None if nothing is. Cheap."""

    def empty(self) -> int:
        """Drop all messages; returns how many."""

    def delete(self) -> None:
        """Drop all messages and remove all files."""

    def close(self) -> None:
        """Make all messages durable, and release all resources.

        Raises:
            BackendError: some messages are not durable.
        """


def count_fitting(bodies: Bodies, first: int, count: int, max_bytes: int) -> int:
    """Return how many of ``count`` bodies from ``first`` on are within a limit; at least one."""
    if bodies.nbytes <= max_bytes:
        return count
    if bodies.size:
        return min(count, max(1, max_bytes // bodies.size))
    nbytes = fit = 0
    for body in bodies.slice(first, first + count):
        nbytes += len(body)
        if nbytes > max_bytes:
            break
        fit += 1
    return max(1, fit)


class MessageQueue:
    """A FIFO of messages in memory, by segments.

    Attributes:
        depth: messages in the queue.
    """

    __slots__ = ("_segments", "depth")

    def __init__(self, queue: MessageQueue | None = None) -> None:
        """``queue``: its messages are taken over."""
        self._segments: deque[Segment] = deque() if queue is None else queue.release()
        self.depth: int = 0 if queue is None else queue.depth

    def __repr__(self) -> str:
        return f"<MessageQueue depth={self.depth} segments={len(self._segments)}>"

    def __len__(self) -> int:
        """Messages in the queue, as `depth`."""
        return self.depth

    def release(self) -> deque[Segment]:
        """Return the segments in order; the queue is not used any more."""
        return self._segments

    def has_room(self, segment: Segment, limit: int) -> bool:
        """Return whether there are no more than ``limit`` messages with those of a segment."""
        return segment.count <= limit - self.depth

    def append(self, segment: Segment) -> None:
        """Add at the tail. The segment belongs to the queue from now on."""
        self._segments.append(segment)
        self.depth += segment.last - segment.first

    def put_back(self, segment: Segment) -> None:
        """Add a segment at the head, after `pop_segment` returned it."""
        self._segments.appendleft(segment)
        self.depth += segment.last - segment.first

    def pop_segment(self, max_count: int, max_bytes: int) -> Segment:
        """Pop messages of the first segment: at least one, and within both limits.

        Raises:
            IndexError: the queue is empty.
        """
        head = self._segments[0]
        first = head.first
        count = head.last - first
        if count > max_count:
            count = max_count
        if head.batch.bodies.nbytes > max_bytes:
            count = count_fitting(head.batch.bodies, first, count, max_bytes)
        self.depth -= count
        last = first + count
        if last == head.last:
            return self._segments.popleft()
        head.first = last
        return Segment(head.batch, first, last, head.attempts)

    def peek(self) -> Iterator[Segment]:
        """Return the segments in order. Neither they nor the queue may change meanwhile."""
        return iter(self._segments)

    def drop(self, max_count: int, max_bytes: int) -> int:
        """Drop segments at the head, within about these limits; returns how many."""
        segments = self._segments
        dropped = nbytes = 0
        while segments and dropped < max_count and nbytes < max_bytes:
            segment = segments.popleft()
            self.depth -= segment.last - segment.first
            nbytes += segment.batch.bodies.nbytes
            dropped += 1
        return dropped


class Store:
    """The queue of a topic or channel.

    Attributes:
        limit: messages that memory may hold (--mem-queue-size); none of those that are published
            if the backend takes them all.
        memory: the memory queue.
        backend: the messages over the limit.
        backend_in_count: messages appended to the backend.
        backend_out_count: messages read from the backend.
        dropped: messages given up on purpose, by reason. The backend counts its own here as well.
        dropped_count: messages given up on purpose, but for those that the backend dropped.
        bounds: what a policy needs to know of the queue; None without one.
    """

    __slots__ = ("_append_limit", "backend", "backend_in_count", "backend_out_count", "bounds",
                 "dropped", "dropped_count", "limit", "memory")  # fmt: skip

    def __init__(self, limit: int, backend: Backend) -> None:
        self.limit = limit
        self.memory = MessageQueue()
        self.backend_in_count = 0
        self.backend_out_count = 0
        self.dropped: Counter[str] = Counter()
        self.dropped_count = 0
        self.bounds: Bounds | None = None
        self.change_backend(backend)

    def __repr__(self) -> str:
        return f"<Store {self.memory} backend={self.backend.depth}>"

    def change_limit(self, limit: int) -> None:
        """Let memory hold so many messages from now on; what is in it stays."""
        self.limit = limit
        self._append_limit = 0 if self.backend.has_published else limit

    def change_backend(self, backend: Backend) -> None:
        self.backend = backend
        self._append_limit = 0 if backend.has_published else self.limit
        backend.dropped = self.dropped

    @property
    def depth(self) -> int:
        """Messages that wait, in memory and in the backend; without those left out by a policy."""
        depth = self.memory.depth + self.backend.depth
        return depth if self.bounds is None else depth - self.bounds.left.count

    @property
    def room(self) -> int:
        """Messages that memory has room for."""
        return self.limit - self.memory.depth

    def oldest_ns(self) -> int | None:
        """Return when the next message was published, in nanoseconds since the epoch.

        Memory and the backend each have a next message; the older one counts. None if no message
        waits, or its time is not known.
        """
        head = next(self.memory.peek(), None)
        stored_ns = self.backend.oldest_ns() if self.backend.depth else None
        if head is None or stored_ns is None:
            return stored_ns if head is None else head.first_ns
        return min(head.first_ns, stored_ns)

    def append(self, segment: Segment) -> int:
        """Queue all messages of ``segment`` or none: in memory, and what is over in the backend.

        Returns how many messages are in memory.

        Raises:
            BackendBusy: memory is full and the backend is behind; nothing changed.
            BackendError: memory is full and the backend refused; nothing changed.
        """
        memory = self.memory
        room = self._append_limit - memory.depth
        count = segment.last - segment.first
        if count <= room:
            memory.append(segment)
            return count
        if self.backend.behind:
            raise BackendBusy("waiting for the disk")
        if room <= 0:
            self.overflow(segment)
            return 0
        middle = segment.first + room
        self.overflow(Segment(segment.batch, middle, segment.last, segment.attempts))
        memory.append(Segment(segment.batch, segment.first, middle, segment.attempts))
        return room

    def overflow(self, segment: Segment) -> None:
        """Append to the backend, with the delay that the batch was published with.

        Raises:
            BackendError: nothing was stored.
        """
        batch, due_ns = segment.batch, None
        if batch.defer_ms:
            due_ns = [batch.timestamp_ns + batch.defer_ms * 1_000_000] * segment.count
        self.append_to_backend(segment, due_ns)

    def append_to_backend(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        """As `Backend.append`, and counted."""
        self.backend.append(segment, due_ns)
        self.backend_in_count += segment.last - segment.first
        if self.bounds is not None:
            self.bounds.backend_nbytes += weight(segment)

    def read_backend(self, max_count: int, max_bytes: int) -> Segment | None:
        """As `Backend.read`, and counted."""
        if (segment := self.backend.read(max_count, max_bytes)) is not None:
            self.backend_out_count += segment.last - segment.first
            if self.bounds is not None:
                self.bounds.note_read(segment, self.backend.depth)
        return segment

    def read_segment(self, max_count: int) -> Segment | None:
        """Read the next messages of the backend, as many as may be dropped at once."""
        return self.read_backend(max_count, _MAX_DROP_BYTES)

    def restore(self, segment: Segment) -> None:
        """Append messages that were in the queue before. They are never refused."""
        if self.memory.has_room(segment, self.limit):
            self.memory.append(segment)
            return
        try:
            self.append_to_backend(segment)
        except BackendError:
            # Over the limit by no more than what was in flight or deferred.
            self.memory.append(segment)
        except Exception:
            self.memory.append(segment)  # a defect loses no message
            raise

    def save_memory(self) -> None:
        """Move the memory queue to the backend.

        Raises:
            BackendError: the rest is still in memory.
        """
        while self.memory.depth:
            self.move_to_backend()

    def move_to_backend(self) -> tuple[int, int]:
        """Move the next messages of the memory queue to the backend; count and bytes.

        Raises:
            BackendError: they are still in memory.
        """
        segment = self.memory.pop_segment(_MAX_SAVE_MESSAGES, _MAX_SAVE_BYTES)
        try:
            self.overflow(segment)
        except Exception:  # a defect loses no message either
            self.memory.put_back(segment)
            raise
        return segment.count, weight(segment)

    def drop(self, reason: str, count: int) -> None:
        """Count messages that are given up on purpose."""
        self.dropped[reason] += count
        self.dropped_count += count

    def empty(self, empty_backend: Callable[[], int] | None = None) -> MessageQueue:
        """Drop everything. Returns the old memory queue, which the caller frees in turns.

        ``empty_backend`` takes the place of `Backend.empty`.
        """
        memory, self.memory = self.memory, type(self.memory)()
        self.drop("emptied", memory.depth)
        self.dropped["emptied"] += (empty_backend or self.backend.empty)()
        if self.bounds is not None:
            self.dropped["emptied"] -= self.bounds.forget()
        return memory

    def check(self) -> str | None:
        """Return what is wrong with the counters, None if nothing is."""
        if self.memory.depth < 0:
            return f"negative depth: {self.memory.depth} messages in memory"
        return self.backend.check()
