"""How slowly a request's body may come. Any size may take its time; a trickle is no upload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["PACE", "Pace", "PaceWatch"]


@dataclass(frozen=True, slots=True)
class Pace:
    """The least that has to come: ``nbytes`` in each ``window_s``, or the end of the body."""

    window_s: float
    nbytes: int


# 273 bytes a second, which a modem can do. A body of 5 MiB holds it for 5.3 hours at most.
PACE: Final = Pace(window_s=120.0, nbytes=32 * 1024)


class PaceWatch:
    """One body, as it comes. Time is an argument.

    Attributes:
        due_s: when to ask `keeps_up` again.
    """

    __slots__ = ("_nbytes_due", "_pace", "due_s")

    def __init__(self, pace: Pace, now_s: float, nbytes: int = 0) -> None:
        """``nbytes`` of it are there now."""
        self._pace = pace
        self._begin(now_s, nbytes)

    def _begin(self, now_s: float, nbytes: int) -> None:
        self.due_s = now_s + self._pace.window_s
        self._nbytes_due = nbytes + self._pace.nbytes

    def keeps_up(self, now_s: float, nbytes: int) -> bool:
        """Whether it may go on, now that ``nbytes`` of it are there."""
        if now_s < self.due_s:
            return True
        if nbytes < self._nbytes_due:
            return False
        self._begin(now_s, nbytes)
        return True
