"""The gate before a daemon's HTTP: a limit on connections, and a guard against other sites' pages.

HTTP connections have a limit of their own: publishers that open one for each message must not use
up the places, or the memory, of consumers.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from trionsq.web.protocol import json_bytes
from trionsq.web.sites import SiteGuard, is_loopback

__all__ = ["ConnectionLimit", "Gate", "GateOptions"]

log = logging.getLogger("trionsq")

_FLAG: Final = "--max-http-connections"
# Places beyond the limit for this machine, so that its operators and probes get in.
_RESERVE: Final = 16
# One line a second at most: during a flood of connections the log must not add to the load.
_LOG_INTERVAL_S: Final = 1.0
_MAX_UNREAD_BYTES: Final = 64 * 1024
_BODY: Final = json_bytes({"message": f"TOO_MANY_CONNECTIONS, see {_FLAG}"})
_ANSWER: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: %d\r\n"
    b"content-type: application/json; charset=utf-8\r\nretry-after: 1\r\n"
    b"connection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)


class GateOptions(Protocol):
    """The options of a daemon for its gate."""

    @property
    def max_http_connections(self) -> int: ...
    @property
    def http_allow_origin(self) -> Sequence[str]: ...
    @property
    def http_allow_host(self) -> Sequence[str]: ...


class ConnectionLimit:
    """Counts the HTTP connections of a daemon, on all its listeners.

    Attributes:
        limit: maximum connections, 0: no limit. Connections from this machine have a few more.
        open: connections now.
        refused: connections closed at once since the start.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open = 0
        self.refused = 0
        self._refused_logged = 0
        self._log_from_s = float("-inf")

    def __repr__(self) -> str:
        return f"<ConnectionLimit {self.open} of {self.limit}, {self.refused} refused>"

    def admit(self, accepted: socket.socket, *, is_plain: bool = True) -> bool:
        """Count a connection until `leave` and return True, or close it and return False.

        ``is_plain``: it speaks HTTP without TLS, so a refusal can be sent.
        """
        if self.limit and self.open >= self.limit:
            of_this_machine = _is_of_this_machine(accepted)
            if not of_this_machine or self.open >= self.limit + _RESERVE:
                self._refuse(accepted, is_plain=is_plain)
                return False
        self.open += 1
        return True

    def leave(self) -> None:
        """Count a connection that was admitted as ended."""
        self.open -= 1

    def _refuse(self, accepted: socket.socket, *, is_plain: bool) -> None:
        self.refused += 1
        self._log()
        with contextlib.suppress(OSError):
            accepted.setblocking(False)
            if is_plain:
                accepted.send(_ANSWER)
                accepted.shutdown(socket.SHUT_WR)
                # Closing a socket with unread input resets it, and the response would be lost.
                accepted.recv(_MAX_UNREAD_BYTES)
        accepted.close()

    def _log(self) -> None:
        now_s = trio.current_time()
        if now_s < self._log_from_s:
            return
        self._log_from_s = now_s + _LOG_INTERVAL_S
        log.warning(
            "HTTP: refused %d connections since the last such line; %d are open, the maximum by %s",
            self.refused - self._refused_logged,
            self.open,
            _FLAG,
        )
        self._refused_logged = self.refused


def _is_of_this_machine(accepted: socket.socket) -> bool:
    if accepted.family == socket.AF_UNIX:
        return True
    try:
        return is_loopback(accepted.getpeername()[0])
    except OSError:
        return False


class Gate:
    """One gate for all listeners of a daemon.

    Attributes:
        connections: the limit on connections.
        sites: refuses requests of other sites' pages.
    """

    def __init__(
        self, connections: ConnectionLimit | None = None, sites: SiteGuard | None = None
    ) -> None:
        """Without arguments: any number of connections, no requests of other sites' pages."""
        self.connections = ConnectionLimit(0) if connections is None else connections
        self.sites = SiteGuard() if sites is None else sites

    @classmethod
    def of(
        cls,
        options: GateOptions,
        *own_names: str,
        checks_hosts: bool = True,
        checks_writes: bool = True,
    ) -> Gate:
        """Return the gate for these options.

        Args:
            options: of the daemon.
            own_names: names of this machine beside its host name.
            checks_hosts, checks_writes: see `SiteGuard`.
        """
        sites = SiteGuard(
            (socket.gethostname(), *own_names),
            options.http_allow_origin,
            options.http_allow_host,
            checks_hosts=checks_hosts,
            checks_writes=checks_writes,
        )
        return cls(ConnectionLimit(options.max_http_connections), sites)
