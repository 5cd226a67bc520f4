"""Containers of the broker: members in order of arrival, and items in order of time.

And how the content of a large one is freed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

__all__ = ["NEVER", "Droppable", "Roster", "TimerQueue", "free"]

T = TypeVar("T", bound=Hashable)

NEVER = float("inf")

# Memory freed in one turn: 2,000 objects of the usual size take a millisecond, and the kernel takes
# about as long for so many bytes.
_MAX_FREE_COUNT: Final = 2_000
_MAX_FREE_BYTES: Final = 16 * 1024 * 1024


class _Place(Generic[T]):
    """A link of the chain. A removed link still leads to the links behind it."""

    __slots__ = ("behind", "is_member", "member", "number", "previous")

    def __init__(self, member: T | None, number: int, previous: _Place[T] | None) -> None:
        self.member = member
        self.number = number
        self.previous = previous
        self.behind: _Place[T] | None = None
        self.is_member = member is not None


class Roster(Generic[T]):
    """A set in order of arrival, to be walked in turns while members come and go.

    Adding and removing cost the same for any size.
    """

    __slots__ = ("_arrivals", "_first", "_last", "_places")

    def __init__(self) -> None:
        # The head of the chain, which has no member.
        self._first: _Place[T] = _Place(None, 0, None)
        self._last = self._first
        self._arrivals = 0
        self._places: dict[T, _Place[T]] = {}

    def __repr__(self) -> str:
        return f"<Roster of {len(self)}>"

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, member: object) -> bool:
        return member in self._places

    def __iter__(self) -> Iterator[T]:
        return self.walk()

    def add(self, member: T) -> None:
        """Add a new member at the end."""
        self._arrivals += 1
        place = _Place(member, self._arrivals, self._last)
        self._places[member] = place
        self._last.behind = place
        self._last = place

    def discard(self, member: T) -> None:
        """Remove a member; does nothing if there is no such member."""
        place = self._places.pop(member, None)
        if place is None:
            return
        place.is_member = False
        before = place.previous
        assert before is not None
        before.behind = place.behind
        if place.behind is None:
            self._last = before
        else:
            place.behind.previous = before
        place.previous = None

    def walk(self) -> Iterator[T]:
        """Yield all present members, except those removed before their turn."""
        last_number = self._arrivals
        place = self._first.behind
        while place is not None and place.number <= last_number:
            if place.is_member:
                yield place.member  # type: ignore[misc]  # only the head has none
            place = place.behind


class TimerQueue(Generic[T]):
    """Items by the monotonic time at which each is due, in seconds; the earliest first.

    Each item has one entry, however often its time changes. The entries are a sorted list: a change
    costs a binary search, and moves the pointers of all items that are due earlier.
    """

    __slots__ = ("_entries", "_entry_of", "_order")

    def __init__(self) -> None:
        # Times are negated: the next item stands at the end, where removing is cheap.
        self._entries: list[tuple[float, int, T]] = []
        self._entry_of: dict[T, tuple[float, int, T]] = {}
        self._order = count(0, -1)

    def __repr__(self) -> str:
        return f"<TimerQueue of {len(self)}, next at {self.next_s}>"

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_s(self) -> float:
        """When the first item is due; `NEVER` if there is none."""
        return -self._entries[-1][0] if self._entries else NEVER

    def set(self, item: T, at_s: float) -> None:
        """Make ``item`` due at that time, in place of any other time."""
        self.discard(item)
        entry = (-at_s, next(self._order), item)
        self._entry_of[item] = entry
        insort(self._entries, entry)

    def set_all(self, at_s: float) -> None:
        """Make all items due at that time, in their order of entry."""
        self._entries = sorted((-at_s, order, item) for _, order, item in self._entries)
        self._entry_of = {entry[2]: entry for entry in self._entries}

    def discard(self, item: T) -> None:
        """Remove ``item``, if it is in the queue."""
        entry = self._entry_of.pop(item, None)
        if entry is not None:
            del self._entries[bisect_left(self._entries, entry)]

    def pop_due(self, now_s: float) -> T | None:
        """Remove and return the first item if it is due, else return None."""
        if not self._entries or -self._entries[-1][0] > now_s:
            return None
        item = self._entries.pop()[2]
        del self._entry_of[item]
        return item


class Droppable(Protocol):
    """A container of messages that can be dropped in parts."""

    def __len__(self) -> int: ...
    def drop(self, max_count: int, max_bytes: int) -> int: ...


def free(holder: Droppable) -> Iterator[None]:
    """Drop all messages of ``holder``; yields where a turn ends."""
    while holder.drop(_MAX_FREE_COUNT, _MAX_FREE_BYTES) and len(holder):
        yield
