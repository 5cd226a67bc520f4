"""A transport as a stream, for those who take no transports."""

from __future__ import annotations

import trio
from trio.socket import SocketType

from trionsq.transports.transport import Transport

__all__ = ["TransportStream"]

_RECEIVE_NBYTES: int = 64 * 1024


class TransportStream(trio.abc.HalfCloseableStream):
    """See there. One task may send and one may receive.

    Attributes:
        socket: under the transport; tells the addresses of both ends.
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
            while (data := transport.receive_nowait(max_bytes or _RECEIVE_NBYTES)) is None:
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
