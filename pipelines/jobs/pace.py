"""A rate that is kept: how long to wait before so many more may go. No clock of its own."""

from __future__ import annotations

__all__ = ["Pace"]


class Pace:
    """At most ``rate`` messages a second, and never more than a tenth of a second's at once."""

    def __init__(self, rate: float, now_s: float) -> None:
        """*rate*: 0 is none at all: nothing waits."""
        self.rate = rate
        self._next_s = now_s

    @property
    def slice_max(self) -> int | None:
        """How many to hand over at once; None: any number."""
        return max(1, int(self.rate / 10)) if self.rate else None

    def wait_s(self, messages: int, now_s: float) -> float:
        """Seconds until so many may go; they count as gone then.

        Time in which nothing went is not made up for.
        """
        if not self.rate:
            return 0.0
        self._next_s = max(self._next_s, now_s)
        wait = self._next_s - now_s
        self._next_s += messages / self.rate
        return wait
