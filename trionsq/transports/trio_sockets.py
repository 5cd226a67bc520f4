"""Sockets as trio waits for them: `SocketTransport`, and transports as trio's streams.

Spec: tcp-protocol, section 8 (upgrade order).
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable
from typing import Final

import trio
from trio.socket import SocketType

from trionsq.transports.transport import BaseSocketTransport, Transport

__all__ = ["SocketTransport", "TransportStream", "connect"]

_STREAM_READ_BYTES: Final = 64 * 1024


async def connect(host: str, port: int, local_host: str | None) -> SocketTransport:
    """Connect by TCP, to the first of the host's addresses that answers. Raises OSError."""
    stream = await trio.open_tcp_stream(host, port, local_address=local_host)
    return SocketTransport(socket.socket(fileno=stream.socket.detach()))


class SocketTransport(BaseSocketTransport):
    """A connected stream socket, in a trio program.

    Not a `trio.SocketStream`, whose checkpoints and locks cost a multiple of the one system call
    that reads data which has already come.
    """

    __slots__ = ()

    # Not coroutines: this saves a frame for each waiting connection.
    def wait_readable(self) -> Awaitable[None]:
        return trio.lowlevel.wait_readable(self._socket)  # noqa: ASYNC105

    def wait_writable(self) -> Awaitable[None]:
        return trio.lowlevel.wait_writable(self._socket)  # noqa: ASYNC105

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()


class TransportStream(trio.abc.HalfCloseableStream):
    """A transport as a trio stream. One task may send and one may receive.

    Attributes:
        socket: the socket under the transport, for the addresses of both ends.
    """

    def __init__(self, transport: Transport, socket: SocketType) -> None:
        self.socket = socket
        self._transport = transport
        self._closed = False

    def __repr__(self) -> str:
        return f"<TransportStream {self._transport!r}>"

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream`."""
        self._check()
        transport = self._transport
        await trio.lowlevel.checkpoint()
        view = memoryview(data)
        try:
            while view := view[transport.send_nowait(view) :]:
                await transport.wait_writable()
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        self._check()
        await self._transport.wait_writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See `trio.abc.ReceiveStream`."""
        self._check()
        transport = self._transport
        await trio.lowlevel.checkpoint()
        try:
            while (data := transport.receive_nowait(max_bytes or _STREAM_READ_BYTES)) is None:
                await transport.wait_readable()
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        return data

    async def send_eof(self) -> None:
        """See `trio.abc.HalfCloseableStream`."""
        self._check()
        self._transport.end_sending()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """See `trio.abc.AsyncResource`."""
        if not self._closed:
            self._closed = True
            self._transport.close()
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
