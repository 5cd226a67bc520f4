"""Counts of durations by upper bounds, as monitoring systems want them.

PROM
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["Histogram"]


class Histogram:
    """Counts of observed values, for one thread.

    Attributes:
        bounds: inclusive upper bounds, ascending; a last bucket without a bound is implied.
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
        """Add a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def cumulative(self) -> list[int]:
        """The number of values up to each bound, and last the number of all values."""
        return list(accumulate(self._counts))
