"""When a client gets its heartbeat, and when it has been silent, or stuck, for too long.

A heartbeat goes out at most a twentieth of the interval late. A client is looked at a few times in
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
"""Between two looks at a client is at least this much time, but for a heartbeat that is due."""

# Looks at a client in each heartbeat interval. More would notice silence sooner, and cost more for
# thousands of idle connections.
_CHECKS_PER_INTERVAL: Final = 6
# Of a second. A heartbeat interval is 1 s or longer, and a tick 3 % of that.
_TICKS: Final = 32
# A time is rounded up by no more than this part of the interval; the event loop has the rest of
# the twentieth.
_ROUNDED_PART: Final = 0.04
# From this interval on it is rounded up by CHECK_INTERVAL_S at most.
_LONG_S: Final = CHECK_INTERVAL_S / _ROUNDED_PART
_MAX_STEP: Final = int(CHECK_INTERVAL_S * _TICKS)


class Finding(Enum):
    """What a look at a client finds."""

    FINE = "nothing"
    DUE = "a heartbeat is due"
    SILENT = "no command for two heartbeat intervals"
    STUCK = "took no data for a heartbeat interval"


class Heartbeats:
    """The times of one client, all monotonic and in seconds.

    Attributes:
        next_check_s: when `check` is to be called.
    """

    __slots__ = ("_commands_seen", "_last_command_s", "_next_s", "next_check_s")

    def __init__(self, now_s: float) -> None:
        self._commands_seen = 0
        self._last_command_s = now_s
        self._next_s = self.next_check_s = now_s

    def restart(self, interval_s: float, now_s: float) -> None:
        """Count the interval from now on."""
        self._next_s = now_s + interval_s
        self.next_check_s = now_s + CHECK_INTERVAL_S

    def stop(self) -> None:
        """Nothing is to be looked at, until `restart`."""
        self.next_check_s = inf

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, and `restart` was not since."""
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
        """What is to be done now.

        Args:
            interval_s: of the client.
            now_s: the time.
            commands: how many it has sent.
            is_read: whether what it sends is read, so that its silence says something.
            blocked_since_s: since when it has taken no data, None if there is none for it.
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
    """Items by the time at which they are due. Each is there once at most.

    Times are rounded up to ticks, and items of one tick wait together. So a change costs the same
    however many items there are, and thousands of idle connections wake the timer a few times a
    second, not one by one.
    """

    def __init__(self) -> None:
        self._items: dict[int, dict[T, None]] = {}
        self._tick_of: dict[T, int] = {}
        # All keys of `_items`, each once.
        self._ticks: list[int] = []

    def __len__(self) -> int:
        return len(self._tick_of)

    @property
    def next_s(self) -> float:
        """When the next tick with items is, infinite without items. It may have none any more."""
        return self._ticks[0] / _TICKS if self._ticks else inf

    def schedule(self, item: T, at_s: float, interval_s: float) -> None:
        """Have ``item`` come out of `pop_due` at ``at_s``, and at no time that was set before.

        It may come as much later as a heartbeat interval of ``interval_s`` allows,
        `CHECK_INTERVAL_S` at most.
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
        """Forget ``item``, if it is there."""
        tick = self._tick_of.pop(item, None)
        if tick is not None:
            del self._items[tick][item]

    def pop_due(self, now_s: float, max_count: int) -> list[T]:
        """Take up to ``max_count`` items whose time has come; an empty list if there are none."""
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
