"""The unit in which messages travel: a batch, and a segment of one in a queue.

A batch has the messages that one command, or one run of commands, published: bodies, ids, one
timestamp. All channels share the batch, so no object is made for a single message before delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from trionsq.core.keys import PublishKey
from trionsq.wire.bodies import Bodies, ListBodies

__all__ = ["Column", "ListColumn", "MessageBatch", "Segment", "join_segments", "sampled"]


class Column(Protocol):
    """Values of one size, one for each message of a batch."""

    def slice(self, first: int, last: int) -> list[bytes]:
        """Return the values ``first`` to ``last`` (exclusive)."""


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
        timestamp_ns: when the first message was published, in nanoseconds since the epoch.
        stamps: when each message was published, 8 bytes each (big endian); None if all are equal.
        defer_ms: delay before the first delivery on each channel (DPUB), else 0.
        sequences: the place of each message in its topic's log; None if there is no log.
        key: with which they were published, None without.
    """

    __slots__ = ("bodies", "count", "defer_ms", "ids", "key", "sequences", "stamps",
                 "timestamp_ns")  # fmt: skip

    def __init__(
        self,
        bodies: Bodies,
        ids: Column,
        timestamp_ns: int,
        defer_ms: int = 0,
        stamps: Column | None = None,
        sequences: Sequence[int] | None = None,
        key: PublishKey | None = None,
    ) -> None:
        self.bodies = bodies
        self.count = bodies.count
        self.ids = ids
        self.timestamp_ns = timestamp_ns
        self.defer_ms = defer_ms
        self.stamps = stamps
        self.sequences = sequences
        self.key = key

    def __repr__(self) -> str:
        return f"<MessageBatch of {self.count}, {self.bodies.nbytes} bytes>"

    def placed_at(self, sequence: int) -> MessageBatch:
        """Return the same messages in a log, where the first one has ``sequence``."""
        places = range(sequence, sequence + self.count)
        return MessageBatch(
            self.bodies, self.ids, self.timestamp_ns, self.defer_ms, self.stamps, places, self.key
        )

    def extract(self, indexes: list[int], ids: list[bytes]) -> MessageBatch:
        """Return a batch with copies of some messages; it keeps no memory of this one."""
        bodies = ListBodies([self.bodies.body_at(index) for index in indexes])
        stamps: ListColumn | None = None
        first_ns = self.timestamp_ns
        if self.stamps is not None:
            values = [self.stamp(index) for index in indexes]
            first_ns, stamps = int.from_bytes(values[0], signed=True), ListColumn(values)
        known = self.sequences
        sequences = None if known is None else [known[index] for index in indexes]
        return MessageBatch(bodies, ListColumn(ids), first_ns, 0, stamps, sequences)

    def stamp(self, index: int) -> bytes:
        """Return when one message was published: 8 bytes, as in `stamps`."""
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
        """When the first message was published, in nanoseconds since the epoch."""
        if self.batch.stamps is None:
            return self.batch.timestamp_ns
        return int.from_bytes(self.batch.stamp(self.first), signed=True)

    def ids(self) -> list[bytes]:
        """Return the ids of the messages, 16 bytes each."""
        return self.batch.ids.slice(self.first, self.last)


def join_segments(segments: Sequence[Segment]) -> MessageBatch:
    """Return one batch with the messages of segments that have one message each."""
    bodies = [segment.batch.bodies.body_at(segment.first) for segment in segments]
    ids = [segment.ids()[0] for segment in segments]
    stamps = [segment.batch.stamp(segment.first) for segment in segments]
    first_ns = int.from_bytes(stamps[0], signed=True)
    sequences = [one.batch.sequences[one.first] for one in segments if one.batch.sequences]
    return MessageBatch(
        ListBodies(bodies), ListColumn(ids), first_ns, 0, ListColumn(stamps), sequences or None
    )


def sampled(segment: Segment, rate: int, random: Random) -> Segment | None:
    """Return the messages of ``segment`` that sampling at ``rate`` percent keeps, None if none."""
    # The original keeps a message if a number of 0..99 is not above the rate.
    kept = [index for index in range(segment.first, segment.last) if random.randrange(100) <= rate]
    if not kept:
        return None
    if len(kept) == segment.count:
        return segment
    ids = segment.ids()
    kept_ids = [ids[index - segment.first] for index in kept]
    return Segment(segment.batch.extract(kept, kept_ids), 0, len(kept), segment.attempts)
