"""Connecting to an nsqd."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from trionsq.transports.transport import SocketTransport, Transport

__all__ = ["Dial", "dial_tcp", "split_address"]


Dial: TypeAlias = Callable[[str, int, str], Awaitable[Transport]]
"""Connects to a host and port, from a local address ("" is any). Raises OSError."""


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
