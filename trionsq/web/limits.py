"""How long HTTP waits for a peer, and how slowly a request's body may arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "GRACE_S",
    "KEEP_ALIVE_S",
    "LINGER_S",
    "PACE",
    "STALL_S",
    "WRITE_STALL_S",
    "Pace",
    "PaceWatch",
]

# A connection without a request, or whose request line and headers do not come, is closed then.
KEEP_ALIVE_S: float = 75.0
# A sender that is silent for so long in the midst of a body is given up.
STALL_S: float = 30.0
# A peer that takes none of a write's bytes for so long is given up.
WRITE_STALL_S: float = 30.0
# After the last answer, what the peer still sends is read and thrown away for so long.
LINGER_S: float = 0.5
# At the end, requests under way get so long.
GRACE_S: float = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The least that has to come: ``min_bytes`` in each ``window_s``, or the end of the body."""

    window_s: float
    min_bytes: int


# 273 bytes a second, which a modem can do. A body of 5 MiB holds it for 5.3 hours at most.
PACE: Final = Pace(window_s=120.0, min_bytes=32 * 1024)


class PaceWatch:
    """One body, as it comes. Time is an argument.

    Attributes:
        due_s: when to ask `keeps_up` again.
    """

    __slots__ = ("_due_bytes", "_pace", "due_s")

    def __init__(self, pace: Pace, now_s: float, received_bytes: int = 0) -> None:
        """``received_bytes`` of it are there now."""
        self._pace = pace
        self._begin(now_s, received_bytes)

    def _begin(self, now_s: float, received_bytes: int) -> None:
        self.due_s = now_s + self._pace.window_s
        self._due_bytes = received_bytes + self._pace.min_bytes

    def keeps_up(self, now_s: float, received_bytes: int) -> bool:
        """Whether it may go on, now that ``received_bytes`` of it are there."""
        if now_s < self.due_s:
            return True
        if received_bytes < self._due_bytes:
            return False
        self._begin(now_s, received_bytes)
        return True
