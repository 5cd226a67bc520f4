"""The byte stream under a connection to nsqd: try at once, wait only if that would block."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import trio

__all__ = ["Dial", "SocketTransport", "Transport", "dial_tcp", "split_address"]


class Transport(Protocol):
    """A bidirectional byte stream. Each `wait_*` may be awaited by one task at a time."""

    def receive_nowait(self, nbytes_max: int) -> bytes | None:
        """What is there: ``b""`` at the end, None if nothing is there yet. Raises OSError."""

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Give bytes to the peer; how many of them were taken. Raises OSError."""

    def wait_readable(self) -> Awaitable[None]: ...
    def wait_writable(self) -> Awaitable[None]: ...

    def end_sending(self) -> None:
        """Tell the peer that nothing more comes. Does nothing on a broken connection."""

    def close(self) -> None:
        """Let go of the connection. No task may be waiting for it."""


Dial: TypeAlias = Callable[[str, int, str], Awaitable[Transport]]
"""Connects to a host and port, from a local address ("" is any). Raises OSError."""


class SocketTransport:
    """A connected stream socket, which belongs to the transport from now on."""

    __slots__ = ("_socket",)

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # not every stack can; it is only about latency
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock

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


async def dial_tcp(host: str, port: int, local_address: str) -> Transport:
    """Connect; names are resolved anew each time. Raises OSError."""
    local = split_address(local_address)[0] if ":" in local_address else local_address
    stream = await trio.open_tcp_stream(host, port, local_address=local or None)
    return SocketTransport(socket.socket(fileno=stream.socket.detach()))


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[::1]:port``.

    Raises:
        ValueError: it is none.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
