"""A connection in memory: bounded in both directions, and it breaks when told to.

`memory_connection` gives the two ends: a `MemoryStream` for the client, a `MemoryTransport` for
the broker (a `trionsq.transports.transport.Transport`). Between them lie two `Pipe`s. Unlike
`trio.testing.memory_stream_pair` a pipe holds a limited number of bytes, as a socket does, so that
a peer who does not read is noticed; and it can be made to break or to stall.

As with sockets, whoever closes with input unread resets the connection: what is under way to the
peer is lost. (A kernel may lose it; this one always does, so that tests see it.)
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

__all__ = ["CAPACITY_NBYTES", "MemoryStream", "MemoryTransport", "Pipe", "memory_connection"]

CAPACITY_NBYTES: Final = 64 * 1024
"""Bytes that each direction holds unless told otherwise."""

_RECEIVE_NBYTES_MAX: Final = 64 * 1024
_PORTS = count(50_001)


class Pipe:
    """One direction of a connection.

    Attributes:
        capacity_nbytes: bytes it holds at most; may be changed at any time.
        passed_nbytes: bytes that the reader has taken so far.
        faults: how often an end felt what `break_with` or `stall` brought about.
    """

    def __init__(self, capacity_nbytes: int) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.passed_nbytes = 0
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
        return f"<Pipe {len(self)}/{self.capacity_nbytes} {' '.join(flags)}>"

    def __len__(self) -> int:
        """Bytes under way."""
        return len(self._data)

    # Faults

    def break_with(self, error: OSError) -> None:
        """Lose what is under way; from now on reading and writing raise ``error``."""
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

    # What the two ends do

    @property
    def is_readable(self) -> bool:
        """Whether `read` would have an answer: bytes, the end, or an error."""
        if self._error is not None:
            return True
        return not self._stalled and bool(self._data or self._ended)

    @property
    def is_writable(self) -> bool:
        """Whether `write` would take something, or raise."""
        if self._error is not None or self._abandoned:
            return True
        return len(self._data) < self.capacity_nbytes

    def read(self, nbytes_max: int) -> bytes | None:
        """Up to ``nbytes_max`` bytes, ``b""`` at the end, None if nothing has arrived.

        Raises:
            OSError: the pipe is broken.
        """
        self._check()
        if self._stalled:
            self.faults += 1
            return None
        if not self._data:
            return b"" if self._ended else None
        data = bytes(self._data[:nbytes_max])
        del self._data[:nbytes_max]
        self.passed_nbytes += len(data)
        self._changed.unpark_all()
        return data

    def write(self, data: bytes | memoryview) -> int:
        """Put in as much of ``data`` as there is room for; the number of bytes.

        Raises:
            OSError: the pipe is broken, or the reader is gone (EPIPE).
        """
        self._check()
        if self._abandoned:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        taken = max(0, min(len(data), self.capacity_nbytes - len(self._data)))
        self._data += data[:taken]
        self._changed.unpark_all()
        return taken

    def end(self) -> None:
        """Nothing more will be written: the reader sees the end after what is under way."""
        self._ended = True
        self._changed.unpark_all()

    def abandon(self) -> bool:
        """Nothing more will be read; whether something was left unread."""
        was_unread = bool(self._data)
        self._abandoned = True
        self._data.clear()
        self._changed.unpark_all()
        return was_unread

    def reset(self) -> None:
        """Lose what is under way, as when the peer closed with input unread."""
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
        peer, host: the address that the client is said to have.
        incoming, outgoing: the two directions; to be broken, stalled and looked at.
        is_closed: whether the broker has let go of it.
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

    def receive_nowait(self, nbytes_max: int) -> bytes | None:
        self._check_open()
        return self.incoming.read(nbytes_max)

    def send_nowait(self, data: bytes | memoryview) -> int:
        self._check_open()
        return self.outgoing.write(data)

    async def wait_readable(self) -> None:
        """Wait for input, the end or an error.

        Raises:
            trio.BusyResourceError: another task waits already.
        """
        await self._wait("readable", self.incoming)

    async def wait_writable(self) -> None:
        """Wait for room or an error.

        Raises:
            trio.BusyResourceError: another task waits already.
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
        """Let go of the connection; again is harmless.

        Raises:
            RuntimeError: a task waits for it: with a socket, its descriptor could be another's
                by the time that the task is woken.
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
    """The client's end: a trio stream, with ways that need no waiting.

    Errors are those of `trio.SocketStream`: BrokenResourceError once the broker's end is closed or
    the connection broke, ClosedResourceError after one's own `close`.

    Attributes:
        incoming, outgoing: the two directions; to be broken, stalled and looked at.
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
        """Send what there is room for; the number of bytes.

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
        """Send everything, waiting for room. On cancellation a part may be sent.

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
        """What has arrived, at least one byte; ``b""`` at the end. Cancelling loses nothing.

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
                    data = self.incoming.read(max_bytes or _RECEIVE_NBYTES_MAX)
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
        """Half close: the broker reads the end after what was sent.

        Raises:
            trio.ClosedResourceError: see the class.
        """
        self._check_open()
        self._is_ended = True
        self.outgoing.end()

    async def send_eof(self) -> None:
        """The same, as trio's streams have it."""
        with self._only_task("send"):
            await trio.lowlevel.checkpoint()
            self.end_sending()

    def close(self) -> None:
        """Close both ways; again is harmless."""
        if not self._is_closed:
            self._is_closed = True
            _close(self.incoming, self.outgoing)

    async def aclose(self) -> None:
        """The same, as trio's streams have it."""
        self.close()
        await trio.lowlevel.checkpoint()


def memory_connection(
    capacity_nbytes: int = CAPACITY_NBYTES, *, host: str = "127.0.0.1"
) -> tuple[MemoryStream, MemoryTransport]:
    """The two ends of a new connection: the client's and the broker's.

    Args:
        capacity_nbytes: that each direction holds.
        host: the address that the client is said to have.
    """
    upward, downward = Pipe(capacity_nbytes), Pipe(capacity_nbytes)
    return MemoryStream(downward, upward), MemoryTransport(upward, downward, host)
