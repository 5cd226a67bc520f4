"""The queue of a topic or channel: memory up to a limit, its backend for what is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from trionsq.core.backend import Backend, BackendBusy, BackendError
from trionsq.core.batch import Segment
from trionsq.core.queue import MessageQueue

__all__ = ["Droppable", "Store", "free"]

# What is moved to the backend at once when all of memory is.
_SAVE_MESSAGES_MAX: Final = 10_000
_SAVE_NBYTES_MAX: Final = 4 * 1024 * 1024
# What is let go of in one turn: 2,000 objects of the usual size are a millisecond, and the kernel
# takes about as long for so many bytes.
_FREE_COUNT_MAX: Final = 2_000
_FREE_NBYTES_MAX: Final = 16 * 1024 * 1024


class Droppable(Protocol):
    """A holder of messages from which some can be dropped at a time."""

    def __len__(self) -> int: ...
    def drop(self, count_max: int, nbytes_max: int) -> int: ...


def free(holder: Droppable) -> Iterator[None]:
    """Let go of all that ``holder`` has; yields where a turn ends."""
    while holder.drop(_FREE_COUNT_MAX, _FREE_NBYTES_MAX) and len(holder):
        yield


class Store:
    """The queue of a topic or channel.

    Attributes:
        limit: messages that memory may hold (--mem-queue-size).
        memory: the memory queue.
        backend: the overflow.
        backend_in_count: messages appended to the backend.
        backend_out_count: messages read from the backend.
    """

    __slots__ = ("backend", "backend_in_count", "backend_out_count", "limit",
                 "memory")  # fmt: skip

    def __init__(self, limit: int, backend: Backend) -> None:
        self.limit = limit
        self.memory = MessageQueue()
        self.backend = backend
        self.backend_in_count = 0
        self.backend_out_count = 0

    def __repr__(self) -> str:
        return f"<Store {self.memory} backend={self.backend.depth}>"

    @property
    def depth(self) -> int:
        """Messages that wait, in memory and in the backend."""
        return self.memory.depth + self.backend.depth

    @property
    def room(self) -> int:
        """Messages that memory has room for."""
        return self.limit - self.memory.depth

    def oldest_ns(self) -> int | None:
        """When the older was published of the two that are next, in memory and in the backend.

        Nanoseconds since the epoch; None if nothing waits, or it is not known.
        """
        head = next(self.memory.peek(), None)
        stored_ns = self.backend.oldest_ns() if self.backend.depth else None
        if head is None or stored_ns is None:
            return stored_ns if head is None else head.first_ns
        return min(head.first_ns, stored_ns)

    def admit(self, segment: Segment) -> Segment | None:
        """Make sure of a place for all messages of ``segment``, or of none.

        Returns the part that the caller is to append to `memory`, None if the backend took it all.

        Raises:
            BackendBusy: memory is full and the backend is behind; nothing changed.
            BackendError: memory is full and the backend refused; nothing changed.
        """
        room = self.limit - self.memory.depth
        count = segment.last - segment.first
        if count <= room:
            return segment
        if self.backend.behind:
            raise BackendBusy("waiting for the disk")
        if room <= 0:
            self.overflow(segment)
            return None
        middle = segment.first + room
        self.overflow(Segment(segment.batch, middle, segment.last, segment.attempts))
        return Segment(segment.batch, segment.first, middle, segment.attempts)

    def overflow(self, segment: Segment) -> None:
        """Append to the backend, with the delay that the batch was published with.

        Raises:
            BackendError: nothing was stored.
        """
        batch = segment.batch
        due_ns: list[int] | None = None
        if batch.defer_ms:
            due_ns = [batch.timestamp_ns + batch.defer_ms * 1_000_000] * segment.count
        self.append_to_backend(segment, due_ns)

    def append_to_backend(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        """As `Backend.append`, and counted."""
        count = segment.last - segment.first
        self.backend.append(segment, due_ns)
        self.backend_in_count += count

    def read_backend(self, count_max: int, nbytes_max: int) -> Segment | None:
        """As `Backend.read`, and counted."""
        segment = self.backend.read(count_max, nbytes_max)
        if segment is not None:
            self.backend_out_count += segment.last - segment.first
        return segment

    def restore(self, segment: Segment) -> None:
        """Put messages at the tail that were in the queue before: they are never refused."""
        if segment.count > self.room:
            try:
                self.append_to_backend(segment)
            except BackendError:
                # Over the limit by no more than what was in flight or deferred.
                self.memory.append(segment)
            except Exception:
                self.memory.append(segment)  # a defect loses no message
                raise
        else:
            self.memory.append(segment)

    def save_memory(self) -> None:
        """Move the memory queue to the backend.

        Raises:
            BackendError: the rest is still in memory.
        """
        while self.memory.depth:
            segment = self.memory.take(_SAVE_MESSAGES_MAX, _SAVE_NBYTES_MAX)
            try:
                self.overflow(segment)
            except Exception:  # a defect loses no message either
                self.memory.put_back(segment)
                raise

    def empty(self) -> tuple[MessageQueue, int]:
        """Drop everything.

        Returns the memory queue of before, which the caller lets go of by `free`, and the number
        of messages that the backend dropped.
        """
        memory, self.memory = self.memory, MessageQueue()
        return memory, self.backend.empty()

    def check(self) -> str | None:
        """What is wrong with the store's account of itself, None if nothing is."""
        if self.memory.depth < 0:
            return f"negative depth: {self.memory.depth} messages in memory"
        return self.backend.check()
