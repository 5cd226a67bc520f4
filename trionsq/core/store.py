"""The queue of a topic or channel: memory up to a limit, its backend for what is over."""

from __future__ import annotations

from trionsq.core.backend import Backend, BackendError
from trionsq.core.batch import Segment
from trionsq.core.queue import MessageQueue

__all__ = ["Store"]


class Store:
    """Where messages wait.

    Messages may be *carried*: admitted, but on their way to the queue through a memory channel.
    They count as depth from the moment they are admitted.

    Attributes:
        memory: the memory queue.
        backend: the overflow.
        carried: messages admitted that are not in the memory queue yet.
    """

    __slots__ = ("_limit", "backend", "carried", "memory")

    def __init__(self, limit: int, backend: Backend) -> None:
        """``limit`` is the number of messages that memory may hold (--mem-queue-size)."""
        self._limit = limit
        self.memory = MessageQueue()
        self.backend = backend
        self.carried = 0

    def __repr__(self) -> str:
        return f"<Store {self.memory} carried={self.carried} backend={self.backend.depth}>"

    @property
    def depth(self) -> int:
        """Messages that wait, in memory and in the backend."""
        return self.memory.depth + self.carried + self.backend.depth

    @property
    def room(self) -> int:
        """Messages that memory has room for."""
        return self._limit - self.memory.depth - self.carried

    def admit(self, segment: Segment) -> Segment | None:
        """Make sure of a place for all messages of ``segment``, or of none.

        Returns the part that is to be put in memory (by `memory.append`, or carried), None if the
        backend took it all.

        Raises:
            BackendError: memory is full and the backend refused; nothing changed.
        """
        room = self._limit - self.memory.depth - self.carried
        count = segment.last - segment.first
        if count <= room:
            return segment
        if room <= 0:
            self.backend.append(segment)
            return None
        middle = segment.first + room
        self.backend.append(Segment(segment.batch, middle, segment.last, segment.attempts))
        return Segment(segment.batch, segment.first, middle, segment.attempts)

    def restore(self, segment: Segment) -> None:
        """Put messages at the tail that were in the queue before: they are never refused."""
        if segment.count > self.room:
            try:
                self.backend.append(segment)
            except BackendError:
                # Over the limit by no more than what was in flight or deferred.
                self.memory.append(segment)
        else:
            self.memory.append(segment)

    def empty(self) -> int:
        """Drop all but what is being carried; the number of messages dropped."""
        return self.memory.clear() + self.backend.empty()
