"""Connecting to an nsqd."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from trionsq.hostport import parse_address
from trionsq.transports.transport import SocketTransport, Transport

__all__ = ["Dial", "dial_tcp"]


Dial: TypeAlias = Callable[[str, int, str], Awaitable[Transport]]
"""Connects to a host and port, from a local address ("" is any). Raises OSError."""


async def dial_tcp(host: str, port: int, local_address: str) -> Transport:
    """Connect; names are resolved anew each time. Raises OSError."""
    local = parse_address(local_address)[0] if ":" in local_address else local_address
    stream = await trio.open_tcp_stream(host, port, local_address=local or None)
    return SocketTransport(socket.socket(fileno=stream.socket.detach()))
