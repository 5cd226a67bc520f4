"""What is due when: one entry for each item, however often its time changes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

__all__ = ["NEVER", "TimerQueue"]

T = TypeVar("T", bound=Hashable)

NEVER = float("inf")


class TimerQueue(Generic[T]):
    """Items by the monotonic time at which each is due, in seconds; the earliest first.

    A sorted list: a change costs a search in it, and moves the pointers of what is due earlier.
    """

    __slots__ = ("_entries", "_entry_of", "_order")

    def __init__(self) -> None:
        # Times are negated, so that what is due next stands at the cheap end.
        self._entries: list[tuple[float, int, T]] = []
        self._entry_of: dict[T, tuple[float, int, T]] = {}
        self._order = count(0, -1)

    def __repr__(self) -> str:
        return f"<TimerQueue of {len(self)}, next at {self.next_s}>"

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_s(self) -> float:
        """When the first one is due; `NEVER` if there is none."""
        return -self._entries[-1][0] if self._entries else NEVER

    def set(self, item: T, at_s: float) -> None:
        """Make ``item`` due at that time, and at no other."""
        self.discard(item)
        entry = (-at_s, next(self._order), item)
        self._entry_of[item] = entry
        insort(self._entries, entry)

    def discard(self, item: T) -> None:
        """Take ``item`` out, if it is in."""
        entry = self._entry_of.pop(item, None)
        if entry is not None:
            del self._entries[bisect_left(self._entries, entry)]

    def pop_due(self, now_s: float) -> T | None:
        """Take out the first item if it is due, else None."""
        if not self._entries or -self._entries[-1][0] > now_s:
            return None
        item = self._entries.pop()[2]
        del self._entry_of[item]
        return item
