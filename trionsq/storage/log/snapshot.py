"""What the state has to know of a channel: where it reads, and what it has read and not finished.

A snapshot is taken in one step of the event loop, so it is consistent: each message of the channel
is in exactly one of its parts, or finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trionsq.core.batch import Segment
from trionsq.core.in_flight import InFlight
from trionsq.core.queue import MessageQueue
from trionsq.core.subscription import Delivery, Subscription
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.ranges import MessageRange, pack_open, ranges_of, segment_ranges
from trionsq.storage.log.rows import Change, StoredChannel, UpdateChannel

__all__ = ["ChannelSnapshot", "take_snapshot"]


@dataclass(slots=True)
class ChannelSnapshot:
    """A channel at one moment.

    Attributes:
        changes: for the state.
        low: messages before it are finished.
        open_count: messages that are read and not finished.
    """

    changes: list[Change]
    low: int
    open_count: int


def take_snapshot(
    cursor: Cursor, topic: int, memory: MessageQueue, in_flight: InFlight
) -> ChannelSnapshot:
    """Return what the state should have of a channel now."""
    ranges = _merge(
        [
            *_in_flight(in_flight),
            *_of_segments(memory.peek()),
            *cursor.returned(),
        ]
    )
    held_first = cursor.held.min_sequence
    low = min([cursor.next, *(one.sequence for one in ranges[:1])])
    row = StoredChannel(
        number=cursor.number,
        topic=topic,
        name=cursor.name,
        paused=cursor.is_paused,
        next=cursor.next,
        frontier=cursor.frontier,
        open=pack_open(ranges, cursor.skipped),
        fired_ns=cursor.held.fired_ns,
    )
    changes: list[Change] = [UpdateChannel(row), *cursor.held.changes(cursor.number)]
    return ChannelSnapshot(
        changes,
        low if held_first is None else min(low, held_first),
        sum(one.count for one in ranges),
    )


def _of_segments(segments: Iterable[Segment]) -> Iterator[MessageRange]:
    for segment in segments:
        yield from segment_ranges(segment)


def _in_flight(in_flight: InFlight) -> Iterator[MessageRange]:
    for subscription in in_flight.walk_holders():
        if subscription.epoch == in_flight.epoch:
            for delivery, count in Counter(subscription.in_flight.values()).items():
                yield from _open_ranges(subscription, delivery, count)


def _open_ranges(subscription: Subscription, delivery: Delivery, count: int) -> list[MessageRange]:
    sequences = delivery.batch.sequences
    assert sequences is not None, "the messages are of no log"
    if count == len(delivery.ids):
        return ranges_of(sequences[delivery.first : delivery.last], delivery.attempts)
    held = subscription.in_flight
    places = [
        at for at, id_ in enumerate(delivery.ids, delivery.first) if held.get(id_) is delivery
    ]
    return ranges_of([sequences[place] for place in places], delivery.attempts)


def _merge(ranges: list[MessageRange]) -> list[MessageRange]:
    """Return the ranges in order; neighbours with equal attempts are one."""
    merged: list[MessageRange] = []
    for one in sorted(ranges):
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.sequence + last.count == one.sequence
            and last.attempts == one.attempts
        ):
            merged[-1] = MessageRange(last.sequence, last.count + one.count, last.attempts)
        else:
            merged.append(one)
    return merged
