"""Counts of durations by upper bounds, as monitoring systems want them.

This is not the histogram of prometheus_client, for two reasons. It observes in 0.25 us instead of
1.4 to 2 us, and it takes no lock: the garbage collector observes from its callback, which may run
while the same thread holds such a lock. And prometheus_client adds 28 ms of processor time to the
460 ms of importing nsqd; today a thread loads it after the first connections are served.
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
