"""The slots of one series of the history: a fixed number, the oldest is overwritten."""

from __future__ import annotations

import math
from array import array
from typing import Final

__all__ = ["COLUMNS", "Ring"]

COLUMNS: Final = 3
"""Values of a slot."""


class Ring:
    """The slots of one series, written in order of time."""

    __slots__ = ("data", "polls", "slot")

    def __init__(self, points: int) -> None:
        self.data = array("f", [math.nan]) * (points * COLUMNS)
        self.slot = -1
        # Polls written into the newest slot.
        self.polls = 0

    def write(
        self, slot: int, depth: float, rate_in: float, rate_out: float, filled: int = 0
    ) -> None:
        """Write a poll into ``slot``, and into up to ``filled`` empty ones before it."""
        if 0 < slot - self.slot - 1 <= filled and self.slot >= 0:
            # The rates of a poll are means since the previous poll.
            for empty in range(self.slot + 1, slot):
                self.write(empty, depth, rate_in, rate_out)
        data = self.data
        at = slot * COLUMNS % len(data)
        if slot != self.slot:
            self._skip(slot)
            data[at], data[at + 1], data[at + 2] = depth, rate_in, rate_out
            self.slot, self.polls = slot, 1
            return
        self.polls += 1
        if depth > data[at] or math.isnan(data[at]):
            data[at] = depth
        data[at + 1] = _mean(data[at + 1], rate_in, self.polls)
        data[at + 2] = _mean(data[at + 2], rate_out, self.polls)

    def value(self, slot: int, column: int) -> float:
        """A value; NaN if the slot is later, or its place has one of the round before."""
        points = len(self.data) // COLUMNS
        if not self.slot - points < slot <= self.slot:
            return math.nan
        return self.data[slot % points * COLUMNS + column]

    def _skip(self, slot: int) -> None:
        """Clear the slots in between, which hold values of the previous round."""
        data = self.data
        points = len(data) // COLUMNS
        missed = min(slot - self.slot - 1, points - 1)
        if self.slot < 0 or missed <= 0:
            return
        first, end = (slot - missed) % points * COLUMNS, slot % points * COLUMNS
        if first < end:
            data[first:end] = array("f", [math.nan]) * (end - first)
        else:
            data[first:] = array("f", [math.nan]) * (len(data) - first)
            data[:end] = array("f", [math.nan]) * end


def _mean(mean: float, value: float, count: int) -> float:
    if math.isnan(value):
        return mean
    return value if math.isnan(mean) else mean + (value - mean) / count
