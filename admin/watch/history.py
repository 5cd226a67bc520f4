"""Depths, rates and latencies of the last day (--history), in a bounded amount of memory.

The last hour is divided into `POINTS` slots, the whole time into `LONG_POINTS` longer ones. A
series has the highest depth and the mean rates of each slot. Polls are less frequent while no page
is open, so a poll also fills empty slots up to the previous such poll. A longer time without an
answer stays empty, never zero. There is one series for the cluster, and one for each node, topic
and channel, and for the latencies of a channel, up to `MAX_SERIES`; beyond that one with messages
takes the place of the one that had none for longest. A series takes 6 kB.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import trio

from admin.watch.ring import COLUMNS, Ring
from admin.watch.snapshot import Row, Snapshot

__all__ = [
    "LONG_POINTS",
    "MAX_SERIES",
    "POINTS",
    "SHORT_S",
    "WHOLE",
    "Block",
    "History",
    "Key",
    "Series",
    "Tier",
    "channel_key",
    "latency_key",
    "node_key",
    "topic_key",
]

Key: TypeAlias = tuple[str, ...]
WHOLE: Final[Key] = ("whole",)

POINTS: Final = 240
"""Maximum slots of the last hour."""
SHORT_S: Final = 3600.0
"""The last hour, in seconds; a longer time has slots of its own."""
LONG_POINTS: Final = 288
"""Slots of the whole time: of five minutes, if it is a day."""
MAX_SERIES: Final = 10_000
"""64 MB."""

_Values: TypeAlias = tuple[float, float, float]
_NAN: Final = math.nan
# Series written per turn of the event loop: half a millisecond.
_SERIES_PER_TURN: Final = 150
# Slots that wait for the disk; earlier ones are left out.
_MAX_FINISHED: Final = 16


def node_key(node: str) -> Key:
    """The series of a node."""
    return ("node", node)


def topic_key(topic: str) -> Key:
    """The series of a topic."""
    return ("topic", topic)


def channel_key(topic: str, channel: str) -> Key:
    """The series of a channel."""
    return ("channel", topic, channel)


def latency_key(topic: str, channel: str) -> Key:
    """The series of the latencies of a channel, or of a topic (``""``).

    Its columns are up to three quantiles, in seconds, the highest first.
    """
    return ("latency", topic, channel)


@dataclass(frozen=True, slots=True)
class Tier:
    """``points`` slots of ``slot_s`` seconds; a poll fills up to ``filled`` empty ones."""

    slot_s: float
    points: int
    filled: int

    @property
    def window_s(self) -> float:
        """The time of all slots."""
        return self.slot_s * self.points


@dataclass(slots=True)
class Block:
    """A slot of all series: the keys, and three values of each."""

    tier: int
    slot: int
    keys: list[Key]
    values: array[float]


@dataclass(frozen=True, slots=True)
class Series:
    """Equally long columns, the oldest slot first; NaN where nothing is known.

    Attributes:
        times: middle of each slot, in seconds since 1970; of the last one, its newest poll.
        depth: messages.
        rate_in, rate_out: messages per second.
        slot_s: the length of a slot, in seconds.
    """

    times: list[float]
    depth: list[float]
    rate_in: list[float]
    rate_out: list[float]
    slot_s: float


class History:
    """Series by key.

    Attributes:
        tiers: the last hour, and the whole time if it is longer.
        finished: slots that will not change any more: place of the tier, and slot.
        slot_ended: set when a slot is added to ``finished``.
    """

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
        short_s = min(window_s, max(SHORT_S, 2 * interval_s))
        points = max(2, min(POINTS, math.ceil(short_s / interval_s)))
        slot_s = max(interval_s, short_s / points)
        filled = min(math.ceil(idle_interval_s / slot_s), points // 2)
        self.tiers = [Tier(slot_s, points, filled)]
        if window_s > short_s:
            self.tiers.append(Tier(max(slot_s, window_s / LONG_POINTS), LONG_POINTS, 0))
        self.finished: deque[tuple[int, int]] = deque(maxlen=_MAX_FINISHED)
        self.slot_ended = trio.Event()
        self._series_max = series_max
        # In the order of their last message, the latest last.
        self._rings: OrderedDict[Key, Sequence[Ring]] = OrderedDict()
        self._slots = [-1] * len(self.tiers)
        self._taken_s = 0.0

    def __len__(self) -> int:
        return len(self._rings)

    @property
    def points(self) -> int:
        """Slots of the last hour."""
        return self.tiers[0].points

    @property
    def slot_s(self) -> float:
        """The length of each of them, in seconds."""
        return self.tiers[0].slot_s

    @property
    def window_s(self) -> float:
        """The whole time."""
        return self.tiers[-1].window_s

    @property
    def nbytes(self) -> int:
        """Of all points."""
        return len(self._rings) * sum(tier.points for tier in self.tiers) * COLUMNS * 4

    async def add_snapshot(self, snapshot: Snapshot) -> None:
        """Add a poll. A poll with an earlier time than the last one is ignored."""
        slots = [int(snapshot.taken_s // tier.slot_s) for tier in self.tiers]
        if slots[0] < self._slots[0] or snapshot.taken_s < self._taken_s:
            self._begin_anew_if_far_back(snapshot.taken_s)
            return
        if slots[0] != self._slots[0]:
            await self._forget_the_gone(slots)
        before, self._slots, self._taken_s = self._slots, slots, snapshot.taken_s
        for number, (key, values) in enumerate(_rows(snapshot)):
            self._write(slots, key, values)
            if number % _SERIES_PER_TURN == _SERIES_PER_TURN - 1:
                await trio.lowlevel.checkpoint()
        self._note_finished(before)

    def series(self, key: Key, span_s: float = SHORT_S) -> Series | None:
        """The points of ``key`` in the last ``span_s`` before the last poll; None: there are none.

        A span of more than an hour has longer slots.
        """
        place = 0 if span_s <= self.tiers[0].window_s or len(self.tiers) == 1 else 1
        tier, last = self.tiers[place], self._slots[place]
        rings = self._rings.get(key)
        if rings is None or rings[place].slot <= last - tier.points:
            return None
        ring, count = rings[place], min(tier.points, math.ceil(span_s / tier.slot_s))
        times = list[float]()
        columns = list[float](), list[float](), list[float]()
        for slot in range(last - count + 1, last + 1):
            times.append((slot + 0.5) * tier.slot_s)
            for number, column in enumerate(columns):
                column.append(ring.value(slot, number))
        times[-1] = self._taken_s
        return Series(times, *columns, tier.slot_s)

    def last_depths(self, key: Key, span_s: float) -> list[float]:
        """The depths of the slots of the last ``span_s``, as in `series`."""
        rings = self._rings.get(key)
        if rings is None:
            return []
        count = min(self.points, math.ceil(span_s / self.slot_s))
        last = self._slots[0]
        return [rings[0].value(slot, 0) for slot in range(last - count + 1, last + 1)]

    async def block(self, place: int, slot: int) -> Block:
        """A slot of a tier, for the disk; other tasks get their turn in between."""
        block = Block(place, slot, [], array("f"))
        for number, (key, rings) in enumerate(list(self._rings.items())):
            values = [rings[place].value(slot, column) for column in range(COLUMNS)]
            if not all(math.isnan(value) for value in values):
                block.keys.append(key)
                block.values.extend(values)
            if number % _SERIES_PER_TURN == _SERIES_PER_TURN - 1:
                await trio.lowlevel.checkpoint()
        return block

    def like(self) -> History:
        """An empty history with the same slots, for `restore` in a thread and `adopt`."""
        new = History(1.0, 1.0, series_max=self._series_max)
        new.tiers, new._slots = list(self.tiers), [-1] * len(self.tiers)
        return new

    def restore(self, block: Block) -> None:
        """Add a block of an earlier nsqadmin; those of a tier come in the order of their slots."""
        self._slots[block.tier] = max(self._slots[block.tier], block.slot)
        tier = self.tiers[block.tier]
        self._taken_s = max(self._taken_s, (block.slot + 0.5) * tier.slot_s)
        for number, key in enumerate(block.keys):
            rings = self._rings.get(key)
            if rings is None:
                if len(self._rings) >= self._series_max:
                    continue
                rings = self._rings[key] = self._new_rings()
            first, second, third = block.values[number * COLUMNS : (number + 1) * COLUMNS]
            rings[block.tier].write(block.slot, first, second, third)

    def adopt(self, other: History) -> None:
        """Take over what was restored to `like`; only before the first poll."""
        if not self._rings:
            self._rings, self._slots = other._rings, other._slots
            self._taken_s = other._taken_s

    def finish_all(self) -> None:
        """Add the current slots to ``finished``, because nsqadmin stops."""
        self.finished.extend((place, slot) for place, slot in enumerate(self._slots) if slot >= 0)

    def _new_rings(self) -> Sequence[Ring]:
        return [Ring(tier.points) for tier in self.tiers]

    def _write(self, slots: Sequence[int], key: Key, values: _Values) -> None:
        rings = self._rings
        active = any(value > 0 for value in values)
        found = rings.get(key)
        if found is None:
            if len(rings) >= self._series_max and not (active and self._make_room(slots[0])):
                return
            found = rings[key] = self._new_rings()
        elif active:
            rings.move_to_end(key)
        for ring, slot, tier in zip(found, slots, self.tiers, strict=True):
            ring.write(slot, *values, tier.filled)

    def _make_room(self, slot: int) -> bool:
        """Drop the series that had no messages for longest; False if all had some recently."""
        key, rings = next(iter(self._rings.items()))
        ring = rings[0]
        busy = ring.slot >= slot - 1 and any(
            ring.value(ring.slot, column) > 0 for column in range(COLUMNS)
        )
        if busy or key == WHOLE:
            return False
        del self._rings[key]
        return True

    def _note_finished(self, before: Sequence[int]) -> None:
        for place, (was, slot) in enumerate(zip(before, self._slots, strict=True)):
            if was < 0 or was == slot:
                continue
            filled = min(slot - was - 1, self.tiers[place].filled)
            self.finished.extend((place, each) for each in (was, *range(slot - filled, slot)))
            self.slot_ended.set()

    async def _forget_the_gone(self, slots: Sequence[int]) -> None:
        gone = list[Key]()
        oldest = slots[-1] - self.tiers[-1].points
        for number, (key, rings) in enumerate(list(self._rings.items())):
            if rings[-1].slot <= oldest:
                gone.append(key)
            if number % 5000 == 4999:
                await trio.lowlevel.checkpoint()
        for key in gone:
            del self._rings[key]

    def _begin_anew_if_far_back(self, taken_s: float) -> None:
        """Start again if the wall clock was set back by more than two slots."""
        if taken_s < self._taken_s - 2 * self.slot_s:
            self._rings.clear()
            self._slots, self._taken_s = [-1] * len(self.tiers), 0.0


def _rows(snapshot: Snapshot) -> Iterator[tuple[Key, _Values]]:
    if not _is_unknown(snapshot.total):
        yield WHOLE, _values(snapshot.total.depth, snapshot.total)
    for node, node_row in snapshot.nodes.items():
        if node_row.up:
            yield node_key(node), _values(node_row.depth, node_row)
    for topic, topic_row in snapshot.topics.items():
        if not _is_unknown(topic_row):
            depth = topic_row.depth + topic_row.channels_depth
            yield topic_key(topic), _values(depth, topic_row)
    for (topic, channel), channel_row in snapshot.channels.items():
        if not _is_unknown(channel_row):
            yield channel_key(topic, channel), _values(channel_row.depth, channel_row)
    for (topic, channel), quantiles in snapshot.latencies.items():
        first, second, third, *_ = [*(latency_s for _, latency_s in quantiles), *[_NAN] * 3]
        yield latency_key(topic, channel), (first, second, third)


def _values(depth: int, row: Row) -> _Values:
    return (
        depth,
        _NAN if row.rate_in is None else row.rate_in,
        _NAN if row.rate_out is None else row.rate_out,
    )


def _is_unknown(row: Row) -> bool:
    """Whether no node that has it answered, so that its values are unknown, not zero."""
    return not row.nodes and row.missing_nodes > 0
