"""The byte stream under a connection: try at once, wait only if that would block.

- `Transport`: the interface; `SocketTransport`: a socket
- `LayeredTransport`: a transport over another one, with a `Layer` (TLS, compression) in between
- `TransportStream`: a transport as a trio stream, for libraries that take streams

Spec: tcp-protocol, section 8 (upgrade order).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable
from typing import Final, Protocol

import trio
from trio.socket import SocketType

from trionsq.hostport import format_address

__all__ = [
    "BrokenStreamError",
    "Layer",
    "LayeredTransport",
    "SocketTransport",
    "Transport",
    "TransportStream",
]

_MAX_KEEPALIVE_S: Final = 32_767  # the kernel's limit
# What a layer reads from below in one go.
_LAYER_READ_BYTES: Final = 128 * 1024
# A layer encodes a write in pieces of this size. What the peer does not take of a piece is held
# here; the rest of the write stays with the caller.
_PIECE_BYTES: Final = 128 * 1024
# Replies of the layer itself (TLS has such) that the peer asks for and does not take.
_MAX_UNSENT_REPLY_BYTES: Final = 256 * 1024
_STREAM_READ_BYTES: Final = 64 * 1024


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

    def receive_nowait(self, max_bytes: int) -> bytes | None:
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
        idle_s = min(max(1, round(timeout_s)), _MAX_KEEPALIVE_S)
        with contextlib.suppress(OSError):  # it is only about how soon it is noticed
            for option, value in (
                (socket.TCP_USER_TIMEOUT, round(timeout_s * 1000)),
                (socket.TCP_KEEPIDLE, idle_s),
                (socket.TCP_KEEPINTVL, idle_s),
            ):
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def receive_nowait(self, max_bytes: int) -> bytes | None:
        try:
            return self._socket.recv(max_bytes)
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


class BrokenStreamError(OSError):
    """What the peer sends is not what was agreed on."""


class Layer(Protocol):
    """A synchronous transform of both directions of a byte stream.

    Attributes:
        has_more: `decode` stopped at its limit and has something to give without further input.
        at_end: the peer ended the stream in the layer's own way.
    """

    has_more: bool
    at_end: bool

    def encode(self, data: bytes | memoryview) -> bytes:
        """Return what to send so that the peer can read all of ``data`` now."""

    def decode(self, data: bytes, max_bytes: int) -> bytes:
        """Take what was received, and return what is readable now, at most about ``max_bytes``.

        It holds back the rest; it is not to be given more while ``has_more``.

        Raises:
            BrokenStreamError: that is not such a stream.
        """

    def take_reply(self) -> bytes:
        """Take what has to be sent because of what was received."""

    def end_stream(self) -> bytes:
        """Return what ends the stream."""


class LayeredTransport:
    """See `Transport`.

    Who gave `send_nowait` more than it took has to offer the rest again, unchanged and first: a
    part of it may be encoded already.
    """

    __slots__ = ("_ahead", "_inner", "_layer", "_received", "_unsent")

    def __init__(self, inner: Transport, layer: Layer, received: bytes = b"") -> None:
        """``received`` was read from ``inner`` already, and is for the layer."""
        self._inner = inner
        self._layer = layer
        self._received = received
        # Encoded, not taken by the inner transport; in it are `_ahead` bytes of the caller's data
        # that are not reported as taken yet.
        self._unsent = b""
        self._ahead = 0

    def __repr__(self) -> str:
        return f"<LayeredTransport {self._layer!r} over {self._inner!r}>"

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def host(self) -> str:
        return self._inner.host

    def receive_nowait(self, max_bytes: int) -> bytes | None:
        layer = self._layer
        if layer.has_more and (plain := self._decode(b"", max_bytes)):
            return plain
        if layer.at_end:
            return b""
        data: bytes | None = self._received
        if data:
            self._received = b""
        else:
            data = self._inner.receive_nowait(_LAYER_READ_BYTES)
            if not data:
                return data
        plain = self._decode(data, max_bytes)
        return plain if plain or layer.at_end else None

    def _decode(self, data: bytes, max_bytes: int) -> bytes:
        try:
            return self._layer.decode(data, max_bytes)
        finally:
            # Also the alert that tells the peer what is wrong.
            if answer := self._layer.take_reply():
                self._send_reply(answer)

    def _send_reply(self, answer: bytes) -> None:
        self._unsent += answer
        if not self._flush() and len(self._unsent) > _MAX_UNSENT_REPLY_BYTES:
            raise ConnectionAbortedError("the peer asks for answers and takes none")

    def send_nowait(self, data: bytes | memoryview) -> int:
        if (before := len(self._unsent)) and not self._flush():
            return self._report_progress(before)
        done, self._ahead = self._ahead, 0
        nbytes = len(data)
        view = data if nbytes <= _PIECE_BYTES else memoryview(data)
        while done < nbytes:
            piece = view[done : done + _PIECE_BYTES]
            self._unsent = self._layer.encode(piece)
            if not self._flush():
                self._ahead = len(piece)
                break
            done += len(piece)
        return done

    def _report_progress(self, before: int) -> int:
        """Tell of progress: the part of the caller's bytes that left with the encoded ones.

        Never of all of them while something is held: the caller is to come again.
        """
        taken = self._ahead * (before - len(self._unsent)) // before
        taken = min(max(taken, int(len(self._unsent) < before)), max(self._ahead - 1, 0))
        self._ahead -= taken
        return taken

    def _flush(self) -> bool:
        """Send what is encoded; whether all of it was taken."""
        unsent = self._unsent
        sent = self._inner.send_nowait(unsent)
        self._unsent = unsent[sent:] if sent < len(unsent) else b""
        return not self._unsent

    def wait_readable(self) -> Awaitable[None]:
        if self._layer.has_more or self._layer.at_end or self._received:
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105
        return self._inner.wait_readable()

    def wait_writable(self) -> Awaitable[None]:
        return self._inner.wait_writable()

    def end_sending(self) -> None:
        try:
            self._unsent += self._layer.end_stream()
            self._flush()
        except OSError:
            pass  # broken: there is no one to tell
        self._inner.end_sending()

    def close(self) -> None:
        self._inner.close()


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
