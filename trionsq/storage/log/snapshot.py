"""What the state has to know of a channel: where it reads, and what it has read and not finished.

A snapshot is taken in one step of the event loop, so it is consistent: each message of the channel
is in exactly one of its parts, or finished.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from trionsq.core.batch import Segment
from trionsq.core.channel import ChannelState
from trionsq.core.in_flight import InFlight
from trionsq.core.queue import MessageQueue
from trionsq.core.round import Round
from trionsq.core.subscription import Delivery, Subscription
from trionsq.core.topic import TopicState
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.ranges import MessageRange, ranges_of, segment_ranges
from trionsq.storage.log.retention import Retentions
from trionsq.storage.log.rows import Change, UpdateChannel, UpdateTopic
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["ChannelSnapshot", "Snapshots", "take_snapshot"]


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
    cursor: Cursor,
    topic: int,
    memory: MessageQueue,
    in_flight: InFlight,
    others: Iterable[Segment] = (),
) -> ChannelSnapshot:
    """Return what the state should have of a channel now; ``others`` are open, too."""
    ranges = _merge(
        [
            *_in_flight(in_flight),
            *_of_segments(memory.peek()),
            *_of_segments(others),
            *cursor.returned(),
        ]
    )
    held_first = cursor.held.min_sequence
    low = min([cursor.next, *(one.sequence for one in ranges[:1])])
    row = cursor.row(topic, ranges)
    changes: list[Change] = [UpdateChannel(row), *cursor.held.changes(cursor.number)]
    return ChannelSnapshot(
        changes,
        low if held_first is None else min(low, held_first),
        sum(one.count for one in ranges),
    )


class Snapshots:
    """What the state lacks of channels and topics, gathered one by one and committed at once."""

    def __init__(self, retentions: Retentions | None = None) -> None:
        self.retentions = retentions or Retentions()
        # What the last snapshot of each channel saw.
        self._seen: WeakKeyDictionary[Cursor, tuple[int, ...]] = WeakKeyDictionary()
        self._changes: list[Change] = []
        self._removed: list[str] = []

    def __repr__(self) -> str:
        return f"<Snapshots {len(self._changes)} changes>"

    def add_channel(self, core: ChannelState, topic: int) -> None:
        """Take a snapshot of a channel if it has changed; ``topic`` is the number of its log."""
        cursor = core.store.backend
        if not isinstance(cursor, Cursor):
            return
        cursor.is_paused = core.paused
        cursor.step_over_held()
        seen = (
            cursor.next,
            cursor.frontier,
            cursor.depth,
            core.finish_count,
            core.requeue_count,
            core.timeout_count,
            core.in_flight.count,
            core.in_flight.epoch,
            core.store.memory.depth,
            core.paused,
        )
        if self._seen.get(cursor) == seen and not cursor.held.has_changed:
            return
        snapshot = take_snapshot(cursor, topic, core.store.memory, core.in_flight)
        self._seen[cursor] = seen
        cursor.low = snapshot.low
        self._changes += snapshot.changes

    def add_topic(self, core: TopicState, topic_log: TopicLog) -> None:
        """Take a topic's snapshot, after those of its channels; it leaves segments nobody needs."""
        topic_log.is_paused = core.paused
        lows = [cursor.low for cursor in topic_log.cursors.values()]
        low = min([topic_log.handed_on, *lows])
        self._removed += topic_log.retire_segments(self.retentions.low(topic_log, low))
        row = topic_log.row()
        if topic_log.stored != row:
            topic_log.stored = row
            self._changes.append(UpdateTopic(row))

    def commit(self, node: LogNode) -> Round | None:
        """Commit what was added; return the round, None if nothing has changed.

        Files of the segments that were left go after that.
        """
        changes, self._changes = self._changes, []
        removed, self._removed = self._removed, []
        if not changes:
            return None
        committed = node.commit(changes)
        if removed:
            node.remove_after(committed, lambda: removed, lambda: None)
        return committed


def _of_segments(segments: Iterable[Segment]) -> Iterator[MessageRange]:
    for segment in segments:
        yield from segment_ranges(segment)


def _in_flight(in_flight: InFlight) -> Iterator[MessageRange]:
    for subscription in in_flight.walk_holders():
        if subscription.epoch == in_flight.epoch:
            # Most deliveries of a channel that keeps up have one message; there may be many.
            alone: defaultdict[int, list[int]] = defaultdict(list)
            others: list[Delivery] = []
            for delivery in subscription.in_flight.values():
                if delivery.last - delivery.first == 1:
                    sequences = delivery.batch.sequences
                    assert sequences is not None, "the messages are of no log"
                    alone[delivery.attempts].append(sequences[delivery.first])
                else:
                    others.append(delivery)
            for attempts, found in alone.items():
                found.sort()
                yield from ranges_of(found, attempts)
            for delivery, count in Counter(others).items():
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
    first = end = tried = -1
    for sequence, count, attempts in sorted(ranges):
        if sequence == end and attempts == tried:
            end += count
            continue
        if first >= 0:
            merged.append(MessageRange(first, end - first, tried))
        first, end, tried = sequence, sequence + count, attempts
    if first >= 0:
        merged.append(MessageRange(first, end - first, tried))
    return merged
