"""What the state has to know of a channel: where it reads, and what it has read and not finished.

A snapshot is of one moment, so it is consistent: each message of the channel is in exactly one of
its parts, or finished. What was seen in that moment is worked out in turns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.channel import ChannelState
from trionsq.core.in_flight import InFlight
from trionsq.core.queue import MessageQueue
from trionsq.core.round import Round
from trionsq.core.subscription import Delivery
from trionsq.core.topic import TopicState
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.needed import LastSnapshot, NeededMessages
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.ranges import MessageRange, join_ranges, pack_ranges, ranges_of
from trionsq.storage.log.retention import Retentions
from trionsq.storage.log.rows import Change, UpdateChannel, UpdateTopic
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["ChannelSnapshot", "Snapshots"]

# Messages, or ranges of them, that are looked at in one turn of the event loop.
_LOOKED_AT_PER_TURN: Final = 2_000
# What a chunk of held messages costs in these.
_CHUNK_COST: Final = 500


class ChannelSnapshot:
    """A channel at the moment at which this is made.

    The attributes are there when `steps` has ended.

    Attributes:
        changes: for the state.
        low: messages before it are finished.
        open_count: messages that are read and not finished.
        needed: of the log.
    """

    needed: NeededMessages

    def __init__(
        self,
        cursor: Cursor,
        topic: int,
        memory: MessageQueue,
        in_flight: InFlight,
        others: Iterable[Segment] = (),
    ) -> None:
        """Copy what is open; ``others`` are, too. That takes 20 ns for each message in flight."""
        self.changes: list[Change] = []
        self.low = cursor.next
        self.open_count = 0
        self._in_flight = in_flight
        # Deliveries keep their messages until all is looked at.
        in_flight.compacts = False
        self._holders = [
            (list(one.in_flight), list(one.in_flight.values()))
            for one in in_flight.walk_holders()
            if one.in_flight and one.epoch == in_flight.epoch
        ]
        self._segments = [_place_of(segment) for segment in (*memory.peek(), *others)]
        self._returned = list(cursor.returned())
        self._generation = cursor.generation
        self._row = cursor.row(topic)
        held_first = cursor.held.min_sequence
        self._held = cursor.held.changes(cursor.number)
        self._held_ranges = cursor.held.all_ranges()
        if held_first is not None:
            self.low = min(self.low, held_first)

    def __repr__(self) -> str:
        return f"<ChannelSnapshot of {self._row.name}, {self.open_count} open>"

    def steps(self) -> Iterator[None]:
        """Work it out; yields where a turn of the event loop ends."""
        try:
            runs: list[list[MessageRange]] = []
            run: list[MessageRange] = []
            work = 0
            for found, cost in self._parts():
                run += found
                work += cost
                if work >= _LOOKED_AT_PER_TURN:
                    run.sort()
                    runs.append(run)
                    run, work = [], 0
                    yield
            run.sort()
            runs.append(run)
        finally:
            self._in_flight.compacts = True
        packed = [self._row.open]
        merged, last = merge(*map(_drained, runs)), list[MessageRange]()
        while part := list(islice(merged, _LOOKED_AT_PER_TURN)):
            self.low = min(self.low, part[0].sequence)
            self.open_count += sum(one.count for one in part)
            *ranges, end = join_ranges([*last, *part])
            last = [end]  # the next one may go on with it
            packed.append(pack_ranges(ranges))
            if len(part) == _LOOKED_AT_PER_TURN:
                yield
        packed.append(pack_ranges(last))
        row = replace(self._row, open=b"".join(packed))
        self.needed = NeededMessages(
            row.number, self._generation, row.next, row.open, row.fired_ns, *self._held_ranges
        )
        self.changes.append(UpdateChannel(row))
        for change in self._held:
            self.changes.append(change)
            work += _CHUNK_COST
            if work >= _LOOKED_AT_PER_TURN:
                work = 0
                yield

    def _parts(self) -> Iterator[tuple[list[MessageRange], int]]:
        """Yield ranges in any order, and how much was looked at for them."""
        # What has been looked at goes at once: to free all of it together is one long step.
        while self._holders:
            ids, deliveries = self._holders.pop()
            for at in range(0, len(ids), _LOOKED_AT_PER_TURN):
                end = at + _LOOKED_AT_PER_TURN
                yield _in_flight_ranges(ids[at:end], deliveries[at:end]), min(end, len(ids)) - at
        for sequences, first, last, attempts in self._segments:
            found = ranges_of(sequences[first:last], attempts)
            yield found, len(found)
        for at in range(0, len(self._returned), _LOOKED_AT_PER_TURN):
            found = self._returned[at : at + _LOOKED_AT_PER_TURN]
            yield found, len(found)


class Snapshots:
    """What the state lacks of channels and topics, gathered one by one and committed at once."""

    def __init__(self, retentions: Retentions | None = None) -> None:
        self.retentions = retentions or Retentions()
        self._changes: list[Change] = []
        self._removed: list[str] = []

    def __repr__(self) -> str:
        return f"<Snapshots {len(self._changes)} changes>"

    def add_channel(self, core: ChannelState, topic: int) -> Iterator[None]:
        """Take a snapshot of a channel if it has changed; ``topic`` is the number of its log.

        Yields where a turn ends. Nobody may take another one of the channel before all is done.
        """
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
            core.in_flight.epoch,
        )
        last = cursor.last_snapshot
        if last is not None and last.seen == seen and not cursor.held.has_changed:
            return
        epoch = core.in_flight.epoch
        snapshot = ChannelSnapshot(cursor, topic, core.store.memory, core.in_flight)
        yield from snapshot.steps()
        if core.in_flight.epoch != epoch:
            return  # the state has already that it was emptied, or where it goes on
        cursor.low = snapshot.low
        cursor.last_snapshot = LastSnapshot(seen, snapshot.needed)
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

    def needed(self, topic_log: TopicLog) -> list[NeededMessages] | None:
        """Return what the channels need, as of their last snapshots; None if one had none yet."""
        last = [cursor.last_snapshot for cursor in topic_log.cursors.values()]
        return None if None in last else [one.needed for one in last if one is not None]

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


def _drained(run: list[MessageRange]) -> Iterator[MessageRange]:
    """Yield the ranges of a list, which gets empty."""
    run.reverse()
    while run:
        yield run.pop()


def _place_of(segment: Segment) -> tuple[Sequence[int], int, int, int]:
    sequences = segment.batch.sequences
    assert sequences is not None, "the messages are of no log"
    return sequences, segment.first, segment.last, segment.attempts


def _in_flight_ranges(ids: list[bytes], deliveries: list[Delivery]) -> list[MessageRange]:
    """Return the ranges of messages in flight, of which each belongs to a delivery."""
    ranges: list[MessageRange] = []
    # Most deliveries of a channel that keeps up have one message; there may be many.
    alone: defaultdict[int, list[int]] = defaultdict(list)
    others: list[Delivery] = []
    for delivery in deliveries:
        if delivery.last - delivery.first == 1:
            sequences = delivery.batch.sequences
            assert sequences is not None, "the messages are of no log"
            alone[delivery.attempts].append(sequences[delivery.first])
        else:
            others.append(delivery)
    for attempts, found in alone.items():
        found.sort()
        ranges += ranges_of(found, attempts)
    if others:
        holder = dict(zip(ids, deliveries, strict=True))
        for delivery, count in Counter(others).items():
            ranges += _open_ranges(holder, delivery, count)
    return ranges


def _open_ranges(
    holder: dict[bytes, Delivery], delivery: Delivery, count: int
) -> list[MessageRange]:
    sequences = delivery.batch.sequences
    assert sequences is not None, "the messages are of no log"
    if count == len(delivery.ids):
        return ranges_of(sequences[delivery.first : delivery.last], delivery.attempts)
    places = [
        at for at, id_ in enumerate(delivery.ids, delivery.first) if holder.get(id_) is delivery
    ]
    return ranges_of([sequences[place] for place in places], delivery.attempts)
