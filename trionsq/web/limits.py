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

# The time for a complete request head, idle time included; nginx has the same default.
KEEP_ALIVE_S: float = 75.0
# The longest silence within a request body.
STALL_S: float = 30.0
# The longest time in which a peer accepts no byte of a response.
WRITE_STALL_S: float = 30.0
# After the last response, input is discarded for this time: a reset would lose the response.
LINGER_S: float = 0.5
# The time that requests under way get when the server stops.
GRACE_S: float = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The slowest body allowed: ``min_bytes`` in each ``window_s``, or the end of the body."""

    window_s: float
    min_bytes: int


# 273 bytes a second, which a modem can do. A body of 5 MiB takes 5.3 hours at most.
PACE: Final = Pace(window_s=120.0, min_bytes=32 * 1024)


class PaceWatch:
    """Watches the pace of one body. The time is an argument.

    Attributes:
        due_s: when to call `keeps_up` again.
    """

    __slots__ = ("_due_bytes", "_pace", "due_s")

    def __init__(self, pace: Pace, now_s: float, received_bytes: int = 0) -> None:
        """``received_bytes``: how much of the body is there now."""
        self._pace = pace
        self._begin(now_s, received_bytes)

    def _begin(self, now_s: float, received_bytes: int) -> None:
        self.due_s = now_s + self._pace.window_s
        self._due_bytes = received_bytes + self._pace.min_bytes

    def keeps_up(self, now_s: float, received_bytes: int) -> bool:
        """Whether the body may go on, now that ``received_bytes`` of it are there."""
        if now_s < self.due_s:
            return True
        if received_bytes < self._due_bytes:
            return False
        self._begin(now_s, received_bytes)
        return True
