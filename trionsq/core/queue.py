"""The memory queue of a topic or a channel: segments in order, depth in messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from trionsq.core.batch import Segment

__all__ = ["MessageQueue"]


class MessageQueue:
    """A FIFO of messages that holds them by segments.

    Attributes:
        depth: messages in the queue.
    """

    __slots__ = ("_segments", "depth")

    def __init__(self) -> None:
        self._segments: deque[Segment] = deque()
        self.depth = 0

    def __repr__(self) -> str:
        return f"<MessageQueue depth={self.depth} segments={len(self._segments)}>"

    def __len__(self) -> int:
        """Messages in the queue, as `depth`."""
        return self.depth

    def append(self, segment: Segment) -> None:
        """Add at the tail. The segment belongs to the queue from now on."""
        self._segments.append(segment)
        self.depth += segment.last - segment.first

    def put_back(self, segment: Segment) -> None:
        """Add at the head what `take` gave."""
        self._segments.appendleft(segment)
        self.depth += segment.last - segment.first

    def take(self, count_max: int, nbytes_max: int) -> Segment:
        """Take from the head: messages of one segment, at least one, within both limits.

        Raises:
            IndexError: the queue is empty.
        """
        head = self._segments[0]
        first = head.first
        count = head.last - first
        if count > count_max or head.batch.bodies.nbytes > nbytes_max:
            count = self._fit(head, min(count, count_max), nbytes_max)
        self.depth -= count
        last = first + count
        if last == head.last:
            return self._segments.popleft()
        head.first = last
        return Segment(head.batch, first, last, head.attempts)

    @staticmethod
    def _fit(head: Segment, count: int, nbytes_max: int) -> int:
        bodies = head.batch.bodies
        if bodies.nbytes <= nbytes_max:
            return count
        if bodies.size:
            return min(count, max(1, nbytes_max // bodies.size))
        nbytes = fit = 0
        for body in bodies.cut(head.first, head.first + count):
            nbytes += len(body)
            if nbytes > nbytes_max:
                break
            fit += 1
        return max(1, fit)

    def peek(self) -> Iterator[Segment]:
        """The segments in order, to be looked at only. Nothing may change meanwhile."""
        return iter(self._segments)

    def drop(self, count_max: int, nbytes_max: int) -> int:
        """Forget segments from the head, within about these limits; how many."""
        segments = self._segments
        dropped = nbytes = 0
        while segments and dropped < count_max and nbytes < nbytes_max:
            one = segments.popleft()
            self.depth -= one.last - one.first
            nbytes += one.batch.bodies.nbytes
            dropped += 1
        return dropped
