"""How many connections there may be (--max-connections), and how many were refused."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["Admission"]

log = logging.getLogger("trionsq")

# A log line for each refusal would be one more thing that a flood of connections costs.
_LOG_INTERVAL_S: Final = 1.0


class Admission:
    """The count of TCP connections; those of HTTP are not in it, so that the operator gets in.

    Attributes:
        limit: connections that there may be, 0: any number.
        connections: open now, also those that are only told of their end.
        refused: connections that were closed at once, since the start.
    """

    __slots__ = ("_log_from_s", "_refused_logged", "connections", "limit", "refused")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.connections = 0
        self.refused = 0
        self._refused_logged = 0
        self._log_from_s = float("-inf")

    def __repr__(self) -> str:
        return f"<Admission {self.connections} of {self.limit}, {self.refused} refused>"

    @property
    def has_room(self) -> bool:
        """Whether one more connection may come."""
        return not self.limit or self.connections < self.limit

    def refuse(self, peer: str, now_s: float) -> None:
        """Count a refusal; at most once a second it is logged, with those that were not."""
        self.refused += 1
        if now_s < self._log_from_s:
            return
        self._log_from_s = now_s + _LOG_INTERVAL_S
        log.warning(
            "TCP: client(%s) refused, there are %d connections (--max-connections); "
            "%d refused since the last such line",
            peer,
            self.connections,
            self.refused - self._refused_logged,
        )
        self._refused_logged = self.refused
