"""Memory queues that know their size; and one whose retried messages may overtake the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.bounds import weight
from trionsq.core.queue import MessageQueue

__all__ = ["RetryQueue", "WeighedQueue"]

# Segments that are weighed when a queue is taken over: a few milliseconds. Those behind are taken
# for as large as these.
_MAX_WEIGHED: Final = 10_000


class WeighedQueue(MessageQueue):
    """A memory queue that knows its size.

    Attributes:
        nbytes: size of the bodies; of a long queue that was taken over an estimate, until it has
            been empty.
        is_plain: whether it has one order alone.
    """

    __slots__ = ("nbytes",)

    is_plain = True

    def __init__(self, queue: MessageQueue | None = None) -> None:
        """``queue``: its messages are taken over."""
        super().__init__(queue)
        self.nbytes: int
        if isinstance(queue, WeighedQueue):
            self.nbytes = queue.nbytes
        else:
            self.nbytes = self._estimate()

    def _estimate(self) -> int:
        head = list(islice(self._segments, _MAX_WEIGHED))
        nbytes = sum(map(weight, head))
        if len(head) == len(self._segments):
            return nbytes
        return nbytes * self.depth // sum(segment.count for segment in head)

    # Whole batches are what mostly comes and goes; no call is made for them.

    def append(self, segment: Segment) -> None:
        batch = segment.batch
        count = segment.last - segment.first
        self.nbytes += batch.bodies.nbytes if count == batch.count else weight(segment)
        self.depth += count
        self._segments.append(segment)

    def put_back(self, segment: Segment) -> None:
        self.nbytes += weight(segment)
        MessageQueue.put_back(self, segment)

    def pop_segment(self, max_count: int, max_bytes: int) -> Segment:
        head = self._segments[0]
        batch = head.batch
        count = head.last - head.first
        nbytes = batch.bodies.nbytes
        if count == batch.count and count <= max_count and nbytes <= max_bytes:
            self.depth -= count
            self.nbytes = self.nbytes - nbytes if self.depth else 0
            return self._segments.popleft()
        segment = MessageQueue.pop_segment(self, max_count, max_bytes)
        self.nbytes = self.nbytes - weight(segment) if self.depth else 0
        return segment


class RetryQueue(WeighedQueue):
    """A queue that keeps messages with attempts apart from those without.

    As a `MessageQueue` it has both, the one with the older head first.

    Attributes:
        retried: the messages with attempts. They count in ``depth`` and ``nbytes``, too.
    """

    __slots__ = ("_debt", "retried")

    is_plain = False

    def __init__(self, queue: MessageQueue | None = None) -> None:
        """``queue``: its messages are taken over, and wait among the fresh ones."""
        super().__init__(queue)
        self.retried = WeighedQueue()
        # What retried messages are behind their share, in percent of a message.
        self._debt = 0

    @property
    def fresh_depth(self) -> int:
        """Messages without attempts."""
        return self.depth - self.retried.depth

    def release(self) -> deque[Segment]:
        self._segments.extendleft(reversed(self.retried.release()))
        return self._segments

    def has_room(self, segment: Segment, limit: int) -> bool:
        # To retried messages only these count: on disk they would wait behind the whole backlog.
        used = self.retried.depth if segment.attempts else self.depth
        return segment.count <= limit - used

    def append(self, segment: Segment) -> None:
        if segment.attempts:
            self.retried.append(segment)
            self._count_retried(segment, 1)
        else:
            super().append(segment)

    def put_back(self, segment: Segment) -> None:
        if segment.attempts:
            self.retried.put_back(segment)
            self._count_retried(segment, 1)
        else:
            super().put_back(segment)

    def pop_segment(self, max_count: int, max_bytes: int) -> Segment:
        if self._is_retried_first():
            return self.pop_retried(max_count, max_bytes)
        return super().pop_segment(max_count, max_bytes)

    def pop_fresh(self, max_count: int, max_bytes: int) -> Segment:
        """As `pop_segment`, of the messages without attempts."""
        return super().pop_segment(max_count, max_bytes)

    def pop_retried(self, max_count: int, max_bytes: int) -> Segment:
        """As `pop_segment`, of the messages with attempts."""
        segment = self.retried.pop_segment(max_count, max_bytes)
        self._count_retried(segment, -1)
        return segment

    def _count_retried(self, segment: Segment, sign: int) -> None:
        self.depth += sign * segment.count
        self.nbytes += sign * weight(segment)

    def is_retried_due(self) -> bool:
        """Return whether a retried message is next, if both kinds wait."""
        return self._debt >= 0

    def note_delivery(self, segment: Segment, share: int, *, is_retried: bool) -> None:
        """Note messages that were popped while both kinds waited; ``share`` is in percent."""
        self._debt += segment.count * (share - 100 if is_retried else share)

    def _is_retried_first(self) -> bool:
        retried = next(self.retried.peek(), None)
        if retried is None or not self._segments:
            return retried is not None
        return retried.first_ns <= self._segments[0].first_ns

    def peek(self) -> Iterator[Segment]:
        if self._is_retried_first():
            return chain(self.retried.peek(), super().peek())
        return chain(super().peek(), self.retried.peek())

    def drop(self, max_count: int, max_bytes: int) -> int:
        depth = self.retried.depth
        dropped = self.retried.drop(max_count, max_bytes)
        self.depth -= depth - self.retried.depth
        return dropped or super().drop(max_count, max_bytes)
