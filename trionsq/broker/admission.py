"""Limits on TCP connections: a number of them at once, and a rate for each address.

HTTP connections are not counted here, so that operators and probes get in during a flood. PHP and
curl open a connection for each message, so a rate that suits consumers would cut them off.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from trionsq.daemon.token_buckets import TokenBuckets

__all__ = ["Admission"]

log = logging.getLogger("trionsq")

# A log line for each refusal would add to the cost of a flood.
_LOG_INTERVAL_S: Final = 1.0
_MAX_ORIGINS: Final = 65_536
_COUNT_FLAG: Final = "--max-connections"
_RATE_FLAG: Final = "--max-connection-rate"


class Admission:
    """Counts TCP connections, and refuses those above a limit.

    Attributes:
        limit: maximum open connections, 0: no limit.
        connections: open connections, those included that are about to be closed.
        refused_by: refused connections since the start, by the name of the limit.
    """

    __slots__ = (
        "_buckets",
        "_log_from_s",
        "_refused_logged",
        "connections",
        "limit",
        "refused_by",
    )

    def __init__(self, limit: int, rate: int = 0, burst: int = 0) -> None:
        """Set the limits.

        Args:
            limit: maximum open connections, 0: no limit.
            rate: maximum connections per second from one address, 0: no limit.
            burst: maximum connections at once from one address, 0: twice the rate.
        """
        self.limit = limit
        self.connections = 0
        self.refused_by: Counter[str] = Counter(max_connections=0, max_connection_rate=0)
        self._buckets = TokenBuckets(1 / rate, burst or 2 * rate, _MAX_ORIGINS) if rate else None
        self._refused_logged = 0
        self._log_from_s = float("-inf")

    def __repr__(self) -> str:
        return f"<Admission {self.connections} of {self.limit}, {self.refused} refused>"

    @property
    def refused(self) -> int:
        """Refused connections since the start."""
        return self.refused_by.total()

    @property
    def has_room(self) -> bool:
        """Whether one more connection is allowed."""
        return not self.limit or self.connections < self.limit

    def admit(self, host: str, peer: str, now_s: float) -> bool:
        """Whether a connection is allowed. A refusal is counted, and logged once a second at most.

        Args:
            host: the remote host. It is empty for a unix socket, whose rate is not limited: file
                permissions say who may connect.
            peer: the remote address for the log.
            now_s: monotonic time in seconds.
        """
        if not self.has_room:
            self._refuse("max_connections", _COUNT_FLAG, peer, now_s)
            return False
        if self._buckets is None or not host or not self._buckets.take_token(host, now_s):
            return True
        self._refuse("max_connection_rate", _RATE_FLAG, peer, now_s)
        return False

    def _refuse(self, limit: str, flag: str, peer: str, now_s: float) -> None:
        self.refused_by[limit] += 1
        if now_s < self._log_from_s:
            return
        self._log_from_s = now_s + _LOG_INTERVAL_S
        refused = self.refused
        log.warning(
            "TCP: client(%s) refused by %s, there are %d connections; "
            "%d refused since the last such line",
            peer,
            flag,
            self.connections,
            refused - self._refused_logged,
        )
        self._refused_logged = refused
