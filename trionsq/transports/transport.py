"""The byte stream under a connection: try at once, wait only if that would block.

- `Transport`: the interface
- `BaseSocketTransport`: a socket, but for waiting: `trio_sockets` and `asyncio_sockets` have that
- `LayeredTransport`: a transport over another one, with a `Layer` (TLS, compression) in between

Spec: tcp-protocol, section 8 (upgrade order).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable
from typing import Final, Protocol

from trionsq.hostport import format_address
from trionsq.transports.runtime import checkpoint

__all__ = [
    "MAX_FULL_READS",
    "BaseSocketTransport",
    "BrokenStreamError",
    "Layer",
    "LayeredTransport",
    "Transport",
]

MAX_FULL_READS: Final = 4
"""Full reads in a row before other tasks get their turn."""
_MAX_KEEPALIVE_S: Final = 32_767  # the kernel's limit
# Bytes that a layer reads from the transport below in one call.
_LAYER_READ_BYTES: Final = 128 * 1024
# A layer encodes a write in pieces of this size. It holds the unsent part of one piece; the rest of
# the write stays with the caller.
_PIECE_BYTES: Final = 128 * 1024
# Replies of the layer itself, such as TLS key updates, that the peer does not read.
_MAX_UNSENT_REPLY_BYTES: Final = 256 * 1024


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
        """Read without waiting: ``b""`` at the end of the stream, None if nothing has come yet.

        Raises:
            OSError: the connection broke.
        """

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Write without waiting, and return how many bytes were accepted, perhaps 0.

        Raises:
            OSError: the connection broke.
        """

    def wait_readable(self) -> Awaitable[None]: ...
    def wait_writable(self) -> Awaitable[None]: ...

    def end_sending(self) -> None:
        """Close the sending half. Does nothing on a broken connection."""

    def close(self) -> None:
        """Close the connection. No task may be waiting on it."""


class BaseSocketTransport:
    """A connected stream socket, read and written without waiting; see `Transport`."""

    __slots__ = ("_socket", "host", "peer")

    def __init__(self, sock: socket.socket) -> None:
        """``sock`` is connected; it belongs to the transport from now on."""
        sock.setblocking(False)
        self._socket = sock
        self.peer, self.host = "@", ""
        if not self.is_unix:
            with contextlib.suppress(OSError):  # not every stack has it; it affects latency only
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.host, port = sock.getpeername()[:2]
            self.peer = format_address(self.host, port)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.peer}>"

    def set_user_timeout(self, timeout_s: float) -> None:
        """Have the kernel break the connection when the peer's machine is gone.

        The connection breaks if sent data is not acknowledged for ``timeout_s``, or if the peer
        answers no keep-alive probe after an idle time as long as that. The kernel of a slow program
        still acknowledges, until the program's receive buffer has been full for ``timeout_s``.
        Systems other than Linux have no TCP_USER_TIMEOUT; there this does nothing.
        """
        if self.is_unix or not hasattr(socket, "TCP_USER_TIMEOUT"):
            return
        idle_s = min(max(1, round(timeout_s)), _MAX_KEEPALIVE_S)
        with contextlib.suppress(OSError):  # without it the loss is noticed later
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

    @property
    def is_unix(self) -> bool:
        """Whether it is a unix socket."""
        return self._socket.family == socket.AF_UNIX

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return self._socket.fileno()

    def end_sending(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def abandon(self) -> None:
        """Close this process's descriptor and nothing else: for a child after a fork."""
        self._socket.close()


class BrokenStreamError(OSError):
    """The peer sent bytes that are not valid in the layer that was agreed on."""


class Layer(Protocol):
    """A synchronous transform of both directions of a byte stream.

    Attributes:
        has_more: `decode` stopped at its limit, and can return more without further input.
        at_end: the peer ended the stream by the layer's own means.
    """

    has_more: bool
    at_end: bool

    def encode(self, data: bytes | memoryview) -> bytes:
        """Encode ``data``, flushed: the peer can decode all of it from the result."""

    def decode(self, data: bytes, max_bytes: int) -> bytes:
        """Decode received bytes, up to about ``max_bytes`` of output.

        The layer keeps the rest. While `has_more` is set, ``data`` has to be empty.

        Raises:
            BrokenStreamError: the bytes are not a valid stream of this layer.
        """

    def take_reply(self) -> bytes:
        """Return and forget the bytes that the layer has to send because of received ones."""

    def end_stream(self) -> bytes:
        """Return the bytes that end the stream."""


class LayeredTransport:
    """A transport that sends and receives through a `Layer`; see `Transport`.

    If `send_nowait` accepts a part of the data, the caller has to offer the rest again, unchanged
    and before other data: some of it may be encoded already.
    """

    __slots__ = ("_ahead", "_inner", "_layer", "_received", "_unsent")

    def __init__(self, inner: Transport, layer: Layer, received: bytes = b"") -> None:
        """``received``: bytes for the layer that were already read from ``inner``."""
        self._inner = inner
        self._layer = layer
        self._received = received
        # Encoded bytes that the inner transport has not accepted. They hold `_ahead` bytes of the
        # caller's data that have not been reported as accepted.
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
            # After an error too: TLS sends an alert that names it.
            if reply := self._layer.take_reply():
                self._send_reply(reply)

    def _send_reply(self, reply: bytes) -> None:
        self._unsent += reply
        if not self._flush() and len(self._unsent) > _MAX_UNSENT_REPLY_BYTES:
            raise ConnectionAbortedError("the peer asks for replies and does not read them")

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
        """Return how many of the caller's bytes have left, in proportion to the encoded ones.

        Never all of them while encoded bytes are unsent, so that the caller calls again.
        """
        taken = self._ahead * (before - len(self._unsent)) // before
        taken = min(max(taken, int(len(self._unsent) < before)), max(self._ahead - 1, 0))
        self._ahead -= taken
        return taken

    def _flush(self) -> bool:
        """Send the encoded bytes, and return whether all of them were accepted."""
        unsent = self._unsent
        sent = self._inner.send_nowait(unsent)
        self._unsent = unsent[sent:] if sent < len(unsent) else b""
        return not self._unsent

    def wait_readable(self) -> Awaitable[None]:
        if self._layer.has_more or self._layer.at_end or self._received:
            return checkpoint()
        return self._inner.wait_readable()

    def wait_writable(self) -> Awaitable[None]:
        return self._inner.wait_writable()

    def end_sending(self) -> None:
        try:
            self._unsent += self._layer.end_stream()
            self._flush()
        except OSError:
            pass  # the connection is broken
        self._inner.end_sending()

    def close(self) -> None:
        self._inner.close()
