"""Members in the order in which they came, to be walked in turns while they come and go."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Roster"]

T = TypeVar("T", bound=Hashable)


class _Place(Generic[T]):
    """A link of the chain. One that was taken out still leads on to those behind it."""

    __slots__ = ("behind", "is_member", "member", "number", "previous")

    def __init__(self, member: T | None, number: int, previous: _Place[T] | None) -> None:
        self.member = member
        self.number = number
        self.previous = previous
        self.behind: _Place[T] | None = None
        self.is_member = member is not None


class Roster(Generic[T]):
    """A set that keeps the order of arrival. To add and to remove cost the same for any size."""

    __slots__ = ("_arrivals", "_first", "_last", "_places")

    def __init__(self) -> None:
        # The head of the chain; nobody sits there.
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
        """Add at the end who is no member yet."""
        self._arrivals += 1
        place = _Place(member, self._arrivals, self._last)
        self._places[member] = place
        self._last.behind = place
        self._last = place

    def discard(self, member: T) -> None:
        """Remove a member; nothing happens if it is none."""
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
        """Yield those that are members now, each only if it still is one when its turn comes."""
        last_number = self._arrivals
        place = self._first.behind
        while place is not None and place.number <= last_number:
            if place.is_member:
                yield place.member  # type: ignore[misc]  # only the head has none
            place = place.behind
