"""A connection in memory, bounded in both directions, that a test can stall or break.

`memory_connection` returns the two ends: a `MemoryStream` for the client, a `MemoryTransport` for
the broker (a `trionsq.transports.transport.Transport`). Two `Pipe`s connect them. Unlike
`trio.testing.memory_stream_pair` a pipe holds a limited number of bytes, as a socket does, so that
tests notice a peer that does not read. A pipe can also break or stall.

As with sockets, an end that closes with unread input resets the connection, and bytes on their way
to the peer are lost. (A kernel may lose them; a pipe always does, so that tests notice it.)
"""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

import trio

__all__ = ["CAPACITY_BYTES", "MemoryStream", "MemoryTransport", "Pipe", "memory_connection"]

CAPACITY_BYTES: Final = 64 * 1024
"""Bytes that each direction holds by default."""

_MAX_RECEIVE_BYTES: Final = 64 * 1024
_PORTS = count(50_001)


class Pipe:
    """One direction of a connection.

    Attributes:
        capacity_bytes: bytes that it can hold; may be changed at any time.
        passed_bytes: bytes read so far.
        faults: how often `break_with` or `stall` affected a read or write.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.passed_bytes = 0
        self.faults = 0
        self._data = bytearray()
        self._ended = False
        self._abandoned = False
        self._stalled = False
        self._error: OSError | None = None
        self._changed = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        flags = [
            name
            for name, is_set in (
                ("ended", self._ended),
                ("abandoned", self._abandoned),
                ("stalled", self._stalled),
                (repr(self._error), self._error),
            )
            if is_set
        ]
        return f"<Pipe {len(self)}/{self.capacity_bytes} {' '.join(flags)}>"

    def __len__(self) -> int:
        """Bytes written and not yet read."""
        return len(self._data)

    # Faults

    def break_with(self, error: OSError) -> None:
        """Discard the bytes in the pipe; from now on reading and writing raise ``error``."""
        self._error = error
        self._data.clear()
        self._changed.unpark_all()

    def stall(self) -> None:
        """Let nothing arrive until `resume`; the writer may fill the pipe."""
        self._stalled = True

    def resume(self) -> None:
        """End a stall."""
        self._stalled = False
        self._changed.unpark_all()

    # For the two ends

    @property
    def is_readable(self) -> bool:
        """Whether `read` would return bytes or the end, or raise."""
        if self._error is not None:
            return True
        return not self._stalled and bool(self._data or self._ended)

    @property
    def is_writable(self) -> bool:
        """Whether `write` would accept a byte, or raise."""
        if self._error is not None or self._abandoned:
            return True
        return len(self._data) < self.capacity_bytes

    def read(self, max_bytes: int) -> bytes | None:
        """Up to ``max_bytes`` bytes; ``b""`` at the end, None if nothing has arrived.

        Raises:
            OSError: the pipe is broken.
        """
        self._check()
        if self._stalled:
            self.faults += 1
            return None
        if not self._data:
            return b"" if self._ended else None
        data = bytes(self._data[:max_bytes])
        del self._data[:max_bytes]
        self.passed_bytes += len(data)
        self._changed.unpark_all()
        return data

    def write(self, data: bytes | memoryview) -> int:
        """Write as much of ``data`` as there is room for. Return the number of bytes.

        Raises:
            OSError: the pipe is broken, or the reader has closed (EPIPE).
        """
        self._check()
        if self._abandoned:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        count = max(0, min(len(data), self.capacity_bytes - len(self._data)))
        self._data += data[:count]
        self._changed.unpark_all()
        return count

    def end(self) -> None:
        """End writing: the reader gets the bytes in the pipe, then the end."""
        self._ended = True
        self._changed.unpark_all()

    def abandon(self) -> bool:
        """End reading. Return whether unread bytes were discarded."""
        was_unread = bool(self._data)
        self._abandoned = True
        self._data.clear()
        self._changed.unpark_all()
        return was_unread

    def reset(self) -> None:
        """Discard the bytes in the pipe, as when the peer closes with unread input."""
        if self._error is None:
            self._error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self._data.clear()
        self._changed.unpark_all()

    def _check(self) -> None:
        if self._error is not None:
            self.faults += 1
            raise self._error

    async def changed(self) -> None:
        """Wait until anything about the pipe changes."""
        await self._changed.park()


def _close(incoming: Pipe, outgoing: Pipe) -> None:
    if incoming.abandon():
        outgoing.reset()
    else:
        outgoing.end()


class MemoryTransport:
    """The broker's end. See `trionsq.transports.transport.Transport`.

    Attributes:
        peer, host: the simulated address of the client.
        incoming, outgoing: the two directions, for tests to break, stall and inspect.
        is_closed: whether the broker has closed its end.
    """

    def __init__(self, incoming: Pipe, outgoing: Pipe, host: str = "127.0.0.1") -> None:
        self.host = host
        self.peer = f"{host}:{next(_PORTS)}"
        self.incoming = incoming
        self.outgoing = outgoing
        self.is_closed = False
        self._waiting: set[str] = set()

    def __repr__(self) -> str:
        return f"<MemoryTransport {self.peer} in={self.incoming} out={self.outgoing}>"

    def receive_nowait(self, max_bytes: int) -> bytes | None:
        self._check_open()
        return self.incoming.read(max_bytes)

    def send_nowait(self, data: bytes | memoryview) -> int:
        self._check_open()
        return self.outgoing.write(data)

    async def wait_readable(self) -> None:
        """Wait for input, the end or an error.

        Raises:
            trio.BusyResourceError: another task is already waiting.
        """
        await self._wait("readable", self.incoming)

    async def wait_writable(self) -> None:
        """Wait for room or an error.

        Raises:
            trio.BusyResourceError: another task is already waiting.
        """
        await self._wait("writable", self.outgoing)

    async def _wait(self, what: str, pipe: Pipe) -> None:
        self._check_open()
        if what in self._waiting:
            raise trio.BusyResourceError(f"another task waits until this is {what}")
        self._waiting.add(what)
        try:
            await trio.lowlevel.checkpoint()
            while not (pipe.is_readable if what == "readable" else pipe.is_writable):
                await pipe.changed()
        finally:
            self._waiting.remove(what)

    def end_sending(self) -> None:
        if not self.is_closed:
            self.outgoing.end()

    def close(self) -> None:
        """Close the connection. May be called again.

        Raises:
            RuntimeError: a task waits for the connection. With a socket, the descriptor could
                belong to another file by the time that the task wakes.
        """
        if self._waiting:
            raise RuntimeError(f"{self!r} closed while a task waits until it is {self._waiting}")
        if not self.is_closed:
            self.is_closed = True
            _close(self.incoming, self.outgoing)

    def _check_open(self) -> None:
        if self.is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class MemoryStream(trio.abc.HalfCloseableStream):
    """The client's end: a trio stream, with additional methods that do not wait.

    Errors are those of `trio.SocketStream`: BrokenResourceError once the broker's end is closed or
    the connection broke, ClosedResourceError after `close`.

    Attributes:
        incoming, outgoing: the two directions, for tests to break, stall and inspect.
    """

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self._is_closed = False
        self._is_ended = False
        self._busy: set[str] = set()

    def __repr__(self) -> str:
        return f"<MemoryStream in={self.incoming} out={self.outgoing}>"

    def send_nowait(self, data: bytes) -> int:
        """Send as much as there is room for. Return the number of bytes.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: see the class.
        """
        if self._is_closed or self._is_ended:
            raise trio.ClosedResourceError
        try:
            return self.outgoing.write(data)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of ``data``, waiting for room. When cancelled, a part may have been sent.

        Raises:
            trio.BusyResourceError: another task is sending.
        """
        with self._only_task("send"):
            await trio.lowlevel.checkpoint()
            rest = bytes(data)
            while True:
                rest = rest[self.send_nowait(rest) :]
                if not rest:
                    return
                await self._writable()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait for room, or an error.

        Raises:
            trio.BusyResourceError: another task is sending.
        """
        with self._only_task("send"):
            await trio.lowlevel.checkpoint()
            await self._writable()

    async def _writable(self) -> None:
        self._check_open()
        while not self.outgoing.is_writable:
            await self.outgoing.changed()
            self._check_open()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive at least one byte; ``b""`` at the end. Cancelling loses nothing.

        Raises:
            trio.BusyResourceError: another task is receiving.
        """
        if max_bytes is not None and operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be >= 1")
        with self._only_task("receive"):
            await trio.lowlevel.checkpoint()
            while True:
                self._check_open()
                try:
                    data = self.incoming.read(max_bytes or _MAX_RECEIVE_BYTES)
                except OSError as error:
                    raise trio.BrokenResourceError(str(error)) from error
                if data is not None:
                    return data
                await self.incoming.changed()

    @contextmanager
    def _only_task(self, what: str) -> Iterator[None]:
        if what in self._busy:
            raise trio.BusyResourceError(f"another task wants to {what}")
        self._busy.add(what)
        try:
            yield
        finally:
            self._busy.remove(what)

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this stream was closed")

    def end_sending(self) -> None:
        """Half close: the broker reads what was sent, then the end.

        Raises:
            trio.ClosedResourceError: see the class.
        """
        self._check_open()
        self._is_ended = True
        self.outgoing.end()

    async def send_eof(self) -> None:
        """`end_sending`, in the form of trio's streams."""
        with self._only_task("send"):
            await trio.lowlevel.checkpoint()
            self.end_sending()

    def close(self) -> None:
        """Close both directions. May be called again."""
        if not self._is_closed:
            self._is_closed = True
            _close(self.incoming, self.outgoing)

    async def aclose(self) -> None:
        """`close`, in the form of trio's streams."""
        self.close()
        await trio.lowlevel.checkpoint()


def memory_connection(
    capacity_bytes: int = CAPACITY_BYTES, *, host: str = "127.0.0.1"
) -> tuple[MemoryStream, MemoryTransport]:
    """Return the two ends of a new connection: the client's and the broker's.

    Args:
        capacity_bytes: bytes that each direction can hold.
        host: the simulated address of the client.
    """
    upward, downward = Pipe(capacity_bytes), Pipe(capacity_bytes)
    return MemoryStream(downward, upward), MemoryTransport(upward, downward, host)
