"""When a client gets a heartbeat, and when it has been silent or blocked for too long.

A heartbeat is sent at most a twentieth of the interval late. A client is checked a few times in
each of its intervals, so silence is noticed up to a sixth of the interval late (or
`CHECK_INTERVAL_S`, if that is longer). Time is an argument. Spec: tcp-protocol, section 14.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from heapq import heappop, heappush
from math import ceil, inf
from typing import Final, Generic, TypeVar

__all__ = ["CHECK_INTERVAL_S", "Finding", "Heartbeats", "TimingWheel"]

T = TypeVar("T", bound=Hashable)

CHECK_INTERVAL_S: Final = 0.25
"""Minimum time between two checks of a client, unless a heartbeat is due."""

# Checks of a client in each heartbeat interval. More of them would notice silence sooner, but cost
# more with thousands of idle connections.
_CHECKS_PER_INTERVAL: Final = 6
# Ticks per second. The shortest heartbeat interval is 1 s; a tick is 3 % of it.
_TICKS: Final = 32
# Times are rounded up by at most this part of the interval. The event loop may use the rest of the
# twentieth.
_ROUNDED_PART: Final = 0.04
# From this interval on, times are rounded up by CHECK_INTERVAL_S at most.
_LONG_S: Final = CHECK_INTERVAL_S / _ROUNDED_PART
_MAX_STEP: Final = int(CHECK_INTERVAL_S * _TICKS)


class Finding(Enum):
    """The result of a check."""

    FINE = "nothing"
    DUE = "a heartbeat is due"
    SILENT = "no command for two heartbeat intervals"
    STUCK = "took no data for a heartbeat interval"


class Heartbeats:
    """The times of one client, monotonic and in seconds.

    Attributes:
        next_check_s: when the next `check` is due.
    """

    __slots__ = ("_commands_seen", "_last_command_s", "_next_s", "next_check_s")

    def __init__(self, now_s: float) -> None:
        self._commands_seen = 0
        self._last_command_s = now_s
        self._next_s = self.next_check_s = now_s

    def restart(self, interval_s: float, now_s: float) -> None:
        """Start an interval now."""
        self._next_s = now_s + interval_s
        self.next_check_s = now_s + CHECK_INTERVAL_S

    def stop(self) -> None:
        """Do no checks until `restart`."""
        self.next_check_s = inf

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, and not `restart` after it."""
        return self.next_check_s == inf

    def check(
        self,
        interval_s: float,
        now_s: float,
        *,
        commands: int,
        is_read: bool,
        blocked_since_s: float | None,
    ) -> Finding:
        """Decide what to do about the client now.

        Args:
            interval_s: the heartbeat interval of the client.
            now_s: the time.
            commands: number of commands that it has sent.
            is_read: whether nsqd reads from it; if not, its silence means nothing.
            blocked_since_s: when it last accepted data, None if no data is pending.
        """
        if commands != self._commands_seen or not is_read:
            self._commands_seen = commands
            self._last_command_s = now_s
        finding = Finding.FINE
        if now_s - self._last_command_s >= 2 * interval_s:
            finding = Finding.SILENT
        elif blocked_since_s is not None and now_s - blocked_since_s > interval_s:
            finding = Finding.STUCK
        elif now_s >= self._next_s:
            finding = Finding.DUE
            self._next_s = max(now_s, self._next_s + interval_s)
        self.next_check_s = min(
            self._next_s,
            self._last_command_s + 2 * interval_s,
            now_s + max(interval_s / _CHECKS_PER_INTERVAL, CHECK_INTERVAL_S),
        )
        return finding


class TimingWheel(Generic[T]):
    """Items by the time at which they are due. Each item is in it at most once.

    Times are rounded up to ticks, and items of one tick are due together. So a change costs the
    same however many items there are, and thousands of idle connections wake the timer a few times
    a second, not once for each.
    """

    def __init__(self) -> None:
        self._items: dict[int, dict[T, None]] = {}
        self._tick_of: dict[T, int] = {}
        # A heap of the keys of `_items`, each once.
        self._ticks: list[int] = []

    def __len__(self) -> int:
        return len(self._tick_of)

    @property
    def next_s(self) -> float:
        """The time of the next tick, infinite if there is none. Its items may have been removed."""
        return self._ticks[0] / _TICKS if self._ticks else inf

    def schedule(self, item: T, at_s: float, interval_s: float) -> None:
        """Have `pop_due` return ``item`` at ``at_s``, and not at a time that was set before.

        It may be late by a small part of ``interval_s``, `CHECK_INTERVAL_S` at most.
        """
        if interval_s >= _LONG_S:
            step = _MAX_STEP
        else:
            step = max(1, int(interval_s * _ROUNDED_PART * _TICKS))
        tick = ceil(at_s * _TICKS / step) * step
        tick_of = self._tick_of
        if item in tick_of:
            del self._items[tick_of[item]][item]
        tick_of[item] = tick
        items = self._items.get(tick)
        if items is None:
            items = self._items[tick] = {}
            heappush(self._ticks, tick)
        items[item] = None

    def remove(self, item: T) -> None:
        """Remove ``item`` if it is in the wheel."""
        tick = self._tick_of.pop(item, None)
        if tick is not None:
            del self._items[tick][item]

    def pop_due(self, now_s: float, max_count: int) -> list[T]:
        """Remove and return up to ``max_count`` items that are due."""
        items_due: list[T] = []
        while self._ticks and self._ticks[0] <= now_s * _TICKS and len(items_due) < max_count:
            items = self._items[self._ticks[0]]
            while items and len(items_due) < max_count:
                item = items.popitem()[0]
                del self._tick_of[item]
                items_due.append(item)
            if not items:
                del self._items[heappop(self._ticks)]
        return items_due
