"""The unit in which messages travel: a batch, and a segment of one in a queue.

A batch is what one command or one run of commands published: bodies, ids, one timestamp. Every
channel gets the same object, so nothing is made for a single message before it is delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from trionsq.wire.bodies import Bodies, ListBodies

__all__ = ["Column", "ListColumn", "MessageBatch", "Segment", "join_segments", "sampled"]


class Column(Protocol):
    """Values of one size, one for each message of a batch."""

    def slice(self, first: int, last: int) -> list[bytes]:
        """The values ``first`` to ``last`` (exclusive)."""


class ListColumn:
    """Values that are objects of their own."""

    __slots__ = ("_values",)

    def __init__(self, values: list[bytes]) -> None:
        self._values = values

    def slice(self, first: int, last: int) -> list[bytes]:
        return self._values[first:last]


class MessageBatch:
    """Messages published together. Immutable.

    Attributes:
        bodies: the message bodies.
        count: number of messages.
        ids: the message ids, in the order of the bodies.
        timestamp_ns: time of publishing of the first message, nanoseconds since the epoch.
        stamps: the times of all messages, 8 bytes each (big endian), None if they are equal.
        defer_ms: delay that each channel adds before the first delivery (DPUB), else 0.
    """

    __slots__ = ("bodies", "count", "defer_ms", "ids", "stamps", "timestamp_ns")

    def __init__(
        self,
        bodies: Bodies,
        ids: Column,
        timestamp_ns: int,
        defer_ms: int = 0,
        stamps: Column | None = None,
    ) -> None:
        self.bodies = bodies
        self.count = bodies.count
        self.ids = ids
        self.timestamp_ns = timestamp_ns
        self.defer_ms = defer_ms
        self.stamps = stamps

    def __repr__(self) -> str:
        return f"<MessageBatch of {self.count}, {self.bodies.nbytes} bytes>"

    def extract(self, indexes: list[int], ids: list[bytes]) -> MessageBatch:
        """A batch of its own with copies of some messages, which pins nothing of this one."""
        bodies = ListBodies([self.bodies.body_at(index) for index in indexes])
        if self.stamps is None:
            return MessageBatch(bodies, ListColumn(ids), self.timestamp_ns)
        stamps = [self.stamp(index) for index in indexes]
        first_ns = int.from_bytes(stamps[0], signed=True)
        return MessageBatch(bodies, ListColumn(ids), first_ns, stamps=ListColumn(stamps))

    def stamp(self, index: int) -> bytes:
        """The time of publishing of one message, 8 bytes as `stamps` has them."""
        if self.stamps is None:
            return self.timestamp_ns.to_bytes(8, signed=True)
        return self.stamps.slice(index, index + 1)[0]


class Segment:
    """Consecutive messages of a batch, in one queue.

    Attributes:
        batch: the batch.
        first: index of the first message.
        last: index after the last one.
        attempts: deliveries so far.
    """

    __slots__ = ("attempts", "batch", "first", "last")

    def __init__(self, batch: MessageBatch, first: int, last: int, attempts: int = 0) -> None:
        self.batch = batch
        self.first = first
        self.last = last
        self.attempts = attempts

    def __repr__(self) -> str:
        return f"<Segment {self.first}:{self.last} attempts={self.attempts} of {self.batch}>"

    @property
    def count(self) -> int:
        return self.last - self.first

    @property
    def first_ns(self) -> int:
        """When the first message was published, nanoseconds since the epoch."""
        if self.batch.stamps is None:
            return self.batch.timestamp_ns
        return int.from_bytes(self.batch.stamp(self.first), signed=True)

    def ids(self) -> list[bytes]:
        """The ids of the messages, 16 bytes each."""
        return self.batch.ids.slice(self.first, self.last)


def join_segments(singles: Sequence[Segment]) -> MessageBatch:
    """Segments of one message each, as one batch."""
    bodies = [one.batch.bodies.body_at(one.first) for one in singles]
    ids = [one.ids()[0] for one in singles]
    stamps = [one.batch.stamp(one.first) for one in singles]
    first_ns = int.from_bytes(stamps[0], signed=True)
    return MessageBatch(ListBodies(bodies), ListColumn(ids), first_ns, stamps=ListColumn(stamps))


def sampled(segment: Segment, rate: int, random: Random) -> Segment | None:
    """The part of ``segment`` that sampling at ``rate`` percent keeps; None if it keeps nothing."""
    # The original keeps a message if a number of 0..99 is not above the rate.
    kept = [index for index in range(segment.first, segment.last) if random.randrange(100) <= rate]
    if not kept:
        return None
    if len(kept) == segment.count:
        return segment
    ids = segment.ids()
    kept_ids = [ids[index - segment.first] for index in kept]
    return Segment(segment.batch.extract(kept, kept_ids), 0, len(kept), segment.attempts)
