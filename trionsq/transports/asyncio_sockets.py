"""Sockets as asyncio waits for them, on any loop that watches descriptors (uvloop does)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, Final

import anyio

from trionsq.transports.runtime import checkpoint
from trionsq.transports.transport import BaseSocketTransport

__all__ = ["AsyncioSocketTransport", "connect"]

_READ_BYTES: Final = 128 * 1024
# The next address is tried beside the first one after this time, as RFC 8305 advises.
_NEXT_ADDRESS_S: Final = 0.25

_AddressInfo = tuple[int, int, int, str, Any]


class AsyncioSocketTransport(BaseSocketTransport):
    """A connected stream socket, in an asyncio program.

    Not an asyncio stream, whose buffers and locks cost more than what they do. The loop watches the
    socket all the time, and its callback reads: to watch it anew for each read would be two system
    calls. What came while nobody waited is kept, and the loop watches no more.
    """

    __slots__ = ("_error", "_is_watched", "_loop", "_reader", "_received", "_writer")

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._loop = asyncio.get_running_loop()
        self._is_watched = False
        self._received: bytes | None = None
        self._error: OSError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    def receive_nowait(self, max_bytes: int) -> bytes | None:
        if self._error is not None:
            raise self._error
        data = self._received
        if data is None:
            return super().receive_nowait(max_bytes)
        # The end of the stream stays.
        self._received = data[max_bytes:] or None if data else data
        return data[:max_bytes]

    async def wait_readable(self) -> None:
        """Wait for input, the end or an error. Cancelling loses nothing."""
        if self._received is not None or self._error is not None:
            await checkpoint()
            return
        if self._reader is not None:
            raise anyio.BusyResourceError("reading from")
        if not self._is_watched:
            self._loop.add_reader(self._socket.fileno(), self._read)
            self._is_watched = True
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _read(self) -> None:
        if self._received is not None or self._error is not None or self._reader is None:
            self._unwatch()
            return
        try:
            self._received = super().receive_nowait(_READ_BYTES)
        except OSError as error:
            self._error = error
        if (self._received is not None or self._error is not None) and not self._reader.done():
            self._reader.set_result(None)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._socket.fileno())

    async def wait_writable(self) -> None:
        """Wait until the kernel takes more, or an error."""
        if self._writer is not None:
            raise anyio.BusyResourceError("writing to")
        self._writer = writer = self._loop.create_future()
        fd = self._socket.fileno()
        self._loop.add_writer(fd, _finish, writer)
        try:
            await writer
        finally:
            self._writer = None
            self._loop.remove_writer(fd)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._unwatch()
            self._socket.close()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def connect(host: str, port: int, local_host: str | None) -> AsyncioSocketTransport:
    """Connect by TCP, to the first of the host's addresses that answers. Raises OSError."""
    infos = await _resolve(host, port)
    errors: list[OSError] = []
    winners: list[socket.socket] = []

    async def attempt(info: _AddressInfo, failed: asyncio.Event) -> None:
        try:
            sock = await _connect_one(info, local_host)
        except OSError as error:
            errors.append(error)
            failed.set()
        else:
            winners.append(sock)
            group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for info in _interleaved(infos):
                failed = asyncio.Event()
                group.start_soon(attempt, info, failed)
                with anyio.move_on_after(_NEXT_ADDRESS_S):
                    await failed.wait()
        if not winners:
            raise errors[0] if len(errors) == 1 else OSError("; ".join(map(str, errors)))
        return AsyncioSocketTransport(winners.pop(0))
    finally:
        for loser in winners:
            loser.close()


async def _resolve(host: str, port: int) -> Sequence[_AddressInfo]:
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    try:
        # Without a thread: none can be started at the exit of the program.
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _connect_one(info: _AddressInfo, local_host: str | None) -> socket.socket:
    family, kind, protocol, _, address = info
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        if local_host is not None:
            sock.bind((local_host, 0))
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _interleaved(infos: Sequence[_AddressInfo]) -> list[_AddressInfo]:
    """The addresses in the system's order, with one of the other family in second place."""
    ordered = list(infos)
    others = [info for info in ordered if info[0] != ordered[0][0]]
    if others:
        ordered.remove(others[0])
        ordered.insert(1, others[0])
    return ordered
