"""How often something took how long: counts by upper bounds, as monitoring systems want them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["Histogram"]


class Histogram:
    """Counts of observed values. For one thread.

    Attributes:
        bounds: inclusive upper ones, ascending; a last one without a bound is implied.
        total: sum of the values.
    """

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def __repr__(self) -> str:
        return f"<Histogram of {self.count}>"

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def cumulative(self) -> list[int]:
        """How many values do not exceed each bound, and last how many there are."""
        return list(accumulate(self._counts))
