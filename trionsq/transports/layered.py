"""A transport over a transport, with a transform of the bytes in between.

Spec: tcp-protocol, section 8 (upgrade order).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol

import trio

from trionsq.transports.transport import Transport

__all__ = ["BrokenStreamError", "Layer", "UpgradedTransport"]

_RECEIVE_NBYTES: Final = 128 * 1024
# Encoded at once. What the peer has not taken of it is held here; the rest stays with the caller.
_PIECE_NBYTES: Final = 128 * 1024
# Of answers to the peer's own messages (TLS has such), that it does not take.
_UNSENT_NBYTES_MAX: Final = 256 * 1024


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

    def decode(self, data: bytes, nbytes_max: int) -> bytes:
        """Take what was received, and return what is readable now, at most about ``nbytes_max``.

        It holds back the rest; it is not to be given more while ``has_more``.

        Raises:
            BrokenStreamError: that is not such a stream.
        """

    def answer(self) -> bytes:
        """Take what has to be sent because of what was received."""

    def finish(self) -> bytes:
        """Return what ends the stream."""


class UpgradedTransport:
    """See `trionsq.transports.transport.Transport`.

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
        return f"<UpgradedTransport {self._layer!r} over {self._inner!r}>"

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def host(self) -> str:
        return self._inner.host

    def receive_nowait(self, nbytes_max: int) -> bytes | None:
        layer = self._layer
        if layer.has_more and (plain := self._decode(b"", nbytes_max)):
            return plain
        if layer.at_end:
            return b""
        data: bytes | None = self._received
        if data:
            self._received = b""
        else:
            data = self._inner.receive_nowait(_RECEIVE_NBYTES)
            if not data:
                return data
        plain = self._decode(data, nbytes_max)
        return plain if plain or layer.at_end else None

    def _decode(self, data: bytes, nbytes_max: int) -> bytes:
        try:
            return self._layer.decode(data, nbytes_max)
        finally:
            # Also the alert that tells the peer what is wrong.
            if answer := self._layer.answer():
                self._send_answer(answer)

    def _send_answer(self, answer: bytes) -> None:
        self._unsent += answer
        if not self._flush() and len(self._unsent) > _UNSENT_NBYTES_MAX:
            raise ConnectionAbortedError("the peer asks for answers and takes none")

    def send_nowait(self, data: bytes | memoryview) -> int:
        if (before := len(self._unsent)) and not self._flush():
            return self._part_taken(before)
        done, self._ahead = self._ahead, 0
        nbytes = len(data)
        view = data if nbytes <= _PIECE_NBYTES else memoryview(data)
        while done < nbytes:
            piece = view[done : done + _PIECE_NBYTES]
            self._unsent = self._layer.encode(piece)
            if not self._flush():
                self._ahead = len(piece)
                break
            done += len(piece)
        return done

    def _part_taken(self, before: int) -> int:
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
            self._unsent += self._layer.finish()
            self._flush()
        except OSError:
            pass  # broken: there is no one to tell
        self._inner.end_sending()

    def close(self) -> None:
        self._inner.close()
