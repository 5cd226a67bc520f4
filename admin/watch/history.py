"""Depths and rates of the last hour (--history), in a bounded amount of memory.

Time is divided into `POINTS` slots. A series has the highest depth and the mean rates of each slot.
Polls are less frequent while no page is open, so a poll also fills empty slots up to the previous
such poll. A longer time without an answer stays empty, never zero. There is one series for the
cluster, and one for each node, topic and channel, up to `MAX_SERIES`; beyond that one
with messages takes the place of the one that had none for longest. A series takes 3 kB.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import trio

from admin.watch.snapshot import Row, Snapshot

__all__ = [
    "MAX_SERIES",
    "POINTS",
    "WHOLE",
    "History",
    "Key",
    "Series",
    "channel_key",
    "node_key",
    "topic_key",
]

Key: TypeAlias = tuple[str, ...]
WHOLE: Final[Key] = ("whole",)

POINTS: Final = 240
"""Maximum slots: a chart has hardly more pixels."""
MAX_SERIES: Final = 10_000
"""30 MB."""

_NAN: Final = math.nan
_COLUMNS: Final = 3
# Series written per turn of the event loop: half a millisecond.
_SERIES_PER_TURN: Final = 200


def node_key(node: str) -> Key:
    """The series of a node."""
    return ("node", node)


def topic_key(topic: str) -> Key:
    """The series of a topic."""
    return ("topic", topic)


def channel_key(topic: str, channel: str) -> Key:
    """The series of a channel."""
    return ("channel", topic, channel)


@dataclass(frozen=True, slots=True)
class Series:
    """Equally long columns, the oldest slot first; NaN where nothing is known.

    Attributes:
        times: middle of each slot, in seconds since 1970; of the last one, its newest poll.
        depth: messages.
        rate_in, rate_out: messages per second.
    """

    times: list[float]
    depth: list[float]
    rate_in: list[float]
    rate_out: list[float]


class _Ring:
    """The slots of one series, written in order of time."""

    __slots__ = ("data", "polls", "slot")

    def __init__(self, points: int) -> None:
        self.data = array("f", [_NAN]) * (points * _COLUMNS)
        self.slot = -1
        # Polls written into the newest slot.
        self.polls = 0

    def write(
        self, slot: int, depth: float, rate_in: float, rate_out: float, filled: int = 0
    ) -> None:
        """Write a poll into ``slot``, and into up to ``filled`` empty ones before it."""
        if 0 < slot - self.slot - 1 <= filled and self.slot >= 0:
            # The rates of a poll are means since the previous poll.
            for empty in range(self.slot + 1, slot):
                self.write(empty, depth, rate_in, rate_out)
        data = self.data
        at = slot * _COLUMNS % len(data)
        if slot != self.slot:
            self._skip(slot)
            data[at], data[at + 1], data[at + 2] = depth, rate_in, rate_out
            self.slot, self.polls = slot, 1
            return
        self.polls += 1
        if depth > data[at]:
            data[at] = depth
        data[at + 1] = _mean(data[at + 1], rate_in, self.polls)
        data[at + 2] = _mean(data[at + 2], rate_out, self.polls)

    def _skip(self, slot: int) -> None:
        """Clear the slots in between, which hold values of the previous round."""
        data = self.data
        points = len(data) // _COLUMNS
        missed = min(slot - self.slot - 1, points - 1)
        if self.slot < 0 or missed <= 0:
            return
        first, end = (slot - missed) % points * _COLUMNS, slot % points * _COLUMNS
        if first < end:
            data[first:end] = array("f", [_NAN]) * (end - first)
        else:
            data[first:] = array("f", [_NAN]) * (len(data) - first)
            data[:end] = array("f", [_NAN]) * end


def _mean(mean: float, value: float, count: int) -> float:
    if math.isnan(value):
        return mean
    return value if math.isnan(mean) else mean + (value - mean) / count


class History:
    """Series by key."""

    def __init__(
        self,
        window_s: float,
        interval_s: float,
        *,
        idle_interval_s: float = 0.0,
        series_max: int = MAX_SERIES,
    ) -> None:
        """Remember ``window_s`` of polls that come every ``interval_s``.

        They may also come every ``idle_interval_s``, without leaving empty slots.
        """
        self.points = max(2, min(POINTS, math.ceil(window_s / interval_s)))
        self.slot_s = max(interval_s, window_s / self.points)
        self._filled = min(math.ceil(idle_interval_s / self.slot_s), self.points // 2)
        self._series_max = series_max
        # In the order of their last message, the latest last.
        self._rings: OrderedDict[Key, _Ring] = OrderedDict()
        self._slot = -1
        self._taken_s = 0.0

    def __len__(self) -> int:
        return len(self._rings)

    @property
    def nbytes(self) -> int:
        """Of all points."""
        return len(self._rings) * self.points * _COLUMNS * 4

    async def add_snapshot(self, snapshot: Snapshot) -> None:
        """Add a poll. A poll with an earlier time than the last one is ignored."""
        slot = int(snapshot.taken_s // self.slot_s)
        if slot < self._slot or snapshot.taken_s < self._taken_s:
            self._begin_anew_if_far_back(snapshot.taken_s)
            return
        if slot != self._slot:
            await self._forget_the_gone(slot)
        self._slot, self._taken_s = slot, snapshot.taken_s
        for number, (key, depth, row) in enumerate(_rows(snapshot)):
            self._write(slot, key, depth, row)
            if number % _SERIES_PER_TURN == _SERIES_PER_TURN - 1:
                await trio.lowlevel.checkpoint()

    def series(self, key: Key) -> Series | None:
        """The points of ``key`` up to the last poll; None if there are none."""
        ring = self._rings.get(key)
        if ring is None or ring.slot <= self._slot - self.points:
            return None
        times = list[float]()
        columns = list[float](), list[float](), list[float]()
        for slot in range(self._slot - self.points + 1, self._slot + 1):
            times.append((slot + 0.5) * self.slot_s)
            # The value in the ring may be from the previous round.
            known = ring.slot - self.points < slot <= ring.slot
            at = slot % self.points * _COLUMNS
            for number, column in enumerate(columns):
                column.append(ring.data[at + number] if known else _NAN)
        times[-1] = self._taken_s
        return Series(times, *columns)

    def last_depths(self, key: Key, span_s: float) -> list[float]:
        """The depths of the slots of the last ``span_s``, as in `series`."""
        ring = self._rings.get(key)
        if ring is None:
            return []
        count = min(self.points, math.ceil(span_s / self.slot_s))
        return [
            ring.data[slot % self.points * _COLUMNS]
            if ring.slot - self.points < slot <= ring.slot
            else _NAN
            for slot in range(self._slot - count + 1, self._slot + 1)
        ]

    def _write(self, slot: int, key: Key, depth: int, row: Row) -> None:
        rings = self._rings
        active = bool(depth or row.rate_in or row.rate_out)
        ring = rings.get(key)
        if ring is None:
            if len(rings) >= self._series_max and not (active and self._make_room(slot)):
                return
            ring = rings[key] = _Ring(self.points)
        elif active:
            rings.move_to_end(key)
        rate_in, rate_out = row.rate_in, row.rate_out
        ring.write(
            slot,
            depth,
            _NAN if rate_in is None else rate_in,
            _NAN if rate_out is None else rate_out,
            self._filled,
        )

    def _make_room(self, slot: int) -> bool:
        """Drop the series that had no messages for longest; False if all had some recently."""
        key, ring = next(iter(self._rings.items()))
        at = ring.slot % self.points * _COLUMNS
        busy = ring.slot >= slot - 1 and any(value > 0 for value in ring.data[at : at + _COLUMNS])
        if busy or key == WHOLE:
            return False
        del self._rings[key]
        return True

    async def _forget_the_gone(self, slot: int) -> None:
        gone = list[Key]()
        for number, (key, ring) in enumerate(list(self._rings.items())):
            if ring.slot <= slot - self.points:
                gone.append(key)
            if number % 5000 == 4999:
                await trio.lowlevel.checkpoint()
        for key in gone:
            del self._rings[key]

    def _begin_anew_if_far_back(self, taken_s: float) -> None:
        """Start again if the wall clock was set back by more than two slots."""
        if taken_s < self._taken_s - 2 * self.slot_s:
            self._rings.clear()
            self._slot, self._taken_s = -1, 0.0


def _rows(snapshot: Snapshot) -> Iterator[tuple[Key, int, Row]]:
    if not _is_unknown(snapshot.total):
        yield WHOLE, snapshot.total.depth, snapshot.total
    for node, node_row in snapshot.nodes.items():
        if node_row.up:
            yield node_key(node), node_row.depth, node_row
    for topic, topic_row in snapshot.topics.items():
        if _is_unknown(topic_row):
            continue
        yield topic_key(topic), topic_row.depth + topic_row.channels_depth, topic_row
    for (topic, channel), channel_row in snapshot.channels.items():
        if _is_unknown(channel_row):
            continue
        yield channel_key(topic, channel), channel_row.depth, channel_row


def _is_unknown(row: Row) -> bool:
    """Whether no node that has it answered, so that its values are unknown, not zero."""
    return not row.nodes and row.missing_nodes > 0
