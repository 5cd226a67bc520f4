"""A column of a batch: one value of fixed size for each message, cut out in bulk."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Column", "ListColumn"]


class Column(Protocol):
    """Values of one size, one for each message of a batch."""

    def cut(self, first: int, last: int) -> list[bytes]:
        """The values ``first`` to ``last`` (exclusive)."""


class ListColumn:
    """Values that are objects of their own."""

    __slots__ = ("_values",)

    def __init__(self, values: list[bytes]) -> None:
        self._values = values

    def cut(self, first: int, last: int) -> list[bytes]:
        return self._values[first:last]
