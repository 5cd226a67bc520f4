"""The byte stream under a client connection: try at once, wait only if that would block.

A TLS or compression layer wraps one transport in another; what is above does not change.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable
from typing import Final, Protocol

import trio

from trionsq.hostport import format_address

__all__ = ["SocketTransport", "Transport"]

_KEEPALIVE_S_MAX: Final = 32767  # the kernel's


class Transport(Protocol):
    """A bidirectional byte stream.

    Each `wait_*` may be awaited by one task at a time.

    Attributes:
        peer: the remote address, ``host:port`` (IPv6 hosts in brackets); ``@`` for unix sockets.
        host: the remote host alone.
    """

    @property
    def peer(self) -> str: ...
    @property
    def host(self) -> str: ...

    def receive_nowait(self, nbytes_max: int) -> bytes | None:
        """What is there: ``b""`` at the end of the stream, None if nothing is there yet.

        Raises:
            OSError: the connection broke.
        """

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Give bytes to the peer; how many of them were taken, 0 if none could be.

        Raises:
            OSError: the connection broke.
        """

    def wait_readable(self) -> Awaitable[None]: ...
    def wait_writable(self) -> Awaitable[None]: ...

    def end_sending(self) -> None:
        """Tell the peer that nothing more comes. Does nothing on a broken connection."""

    def close(self) -> None:
        """Let go of the connection. No task may be waiting for it."""


class SocketTransport:
    """A connected stream socket.

    Not a `trio.SocketStream`: one system call for what is already there costs a fraction of its
    checkpoints and locks.
    """

    __slots__ = ("_socket", "host", "peer")

    def __init__(self, sock: socket.socket) -> None:
        """``sock`` is connected; it belongs to the transport from now on."""
        sock.setblocking(False)
        self._socket = sock
        self.peer, self.host = "@", ""
        if sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # not every stack can; it is only about latency
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.host, port = sock.getpeername()[:2]
            self.peer = format_address(self.host, port)

    def __repr__(self) -> str:
        return f"<SocketTransport {self.peer}>"

    def set_user_timeout(self, timeout_s: float) -> None:
        """Let the kernel break the connection when the peer's machine is gone.

        That is, when it acknowledges nothing of what was sent for ``timeout_s``, nor answers the
        probes of a connection that was idle for so long. A program that is only slow is spared:
        its kernel answers; unless it has read nothing for so long that there is no room for what
        was sent. Does nothing where there is no TCP_USER_TIMEOUT (but Linux).
        """
        if self._socket.family == socket.AF_UNIX or not hasattr(socket, "TCP_USER_TIMEOUT"):
            return
        idle_s = min(max(1, round(timeout_s)), _KEEPALIVE_S_MAX)
        with contextlib.suppress(OSError):  # it is only about how soon it is noticed
            for option, value in (
                (socket.TCP_USER_TIMEOUT, round(timeout_s * 1000)),
                (socket.TCP_KEEPIDLE, idle_s),
                (socket.TCP_KEEPINTVL, idle_s),
            ):
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def receive_nowait(self, nbytes_max: int) -> bytes | None:
        try:
            return self._socket.recv(nbytes_max)
        except BlockingIOError:
            return None

    def send_nowait(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    # Not coroutines: a frame less for each connection that waits.
    def wait_readable(self) -> Awaitable[None]:
        return trio.lowlevel.wait_readable(self._socket)  # noqa: ASYNC105

    def wait_writable(self) -> Awaitable[None]:
        return trio.lowlevel.wait_writable(self._socket)  # noqa: ASYNC105

    def end_sending(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
