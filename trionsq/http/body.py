"""Request bodies: read piece by piece, and never held beyond what a request may have.

Spec: nsqd-http, sections 3 and 4.
"""

from __future__ import annotations

from typing import Final

import trio
from quart import request
from quart_trio.wrappers.request import TrioBody, TrioRequest

from trionsq.http.errors import HttpError

__all__ = ["LIMIT_KEY", "BoundedBody", "BoundedRequest", "LineSplitter", "next_piece", "read_body"]

# quart hands the value of this key to the body of each request.
LIMIT_KEY: Final = "MAX_CONTENT_LENGTH"
# A sender that is silent for so long in the midst of a body is given up.
_STALL_S: Final = 30.0


class BoundedBody(TrioBody):
    """A body of which no more than a limit waits to be read; what is over is thrown away.

    quart's own limit would answer by itself; here the reader learns of it and chooses the answer.

    Attributes:
        overflowed: something was thrown away.
    """

    def __init__(self, expected_nbytes: int | None, limit: int | None) -> None:
        assert limit is not None
        super().__init__(None, None)
        self._limit = limit
        self.overflowed = False

    def append(self, data: bytes) -> None:
        if self.overflowed:
            return
        room = self._limit - len(self._data)
        super().append(data[:room])
        if len(data) > room:
            self.overflowed = True
            self.set_complete()


class BoundedRequest(TrioRequest):
    """A request whose body is a `BoundedBody`."""

    body_class: type[TrioBody] = BoundedBody


async def next_piece() -> bytes:
    """The next piece of the request's body, ``b""`` at its end.

    Raises:
        HttpError: INTERNAL_ERROR if the sender stalls.
        OverflowError: this is not the end, but the rest was thrown away.
    """
    body = request.body
    assert isinstance(body, BoundedBody)
    try:
        with trio.fail_after(_STALL_S):
            piece = await anext(body, b"")
    except trio.TooSlowError:
        raise HttpError(500, "INTERNAL_ERROR") from None
    if not piece and body.overflowed:
        raise OverflowError("the body is larger than any may be")
    return piece


async def read_body(nbytes_max: int) -> bytes | None:
    """The whole body, or None as soon as it is known to be larger than ``nbytes_max``.

    Raises:
        HttpError: INTERNAL_ERROR if the sender stalls.
    """
    body = bytearray()
    try:
        while piece := await next_piece():
            body += piece
            if len(body) > nbytes_max:
                return None
    except OverflowError:
        return None
    return bytes(body)


class LineSplitter:
    """Cuts a text body into messages while it comes in: one for each line that is not empty."""

    def __init__(self, msg_size_max: int, body_size_max: int) -> None:
        """Both limits are in bytes."""
        self._msg_size_max = msg_size_max
        self._body_size_max = body_size_max
        self._bodies: list[bytes] = []
        self._rest = bytearray()
        self._nbytes = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body.

        Raises:
            HttpError: MSG_TOO_BIG or BODY_TOO_BIG, whichever is seen first.
        """
        allowed = self._body_size_max - self._nbytes
        self._nbytes += len(piece)
        first, *more = piece[: max(0, allowed)].split(b"\n")
        self._rest += first
        self._check_size(len(self._rest))
        if more:
            *lines, last = more
            self._end_line()
            self._check_size(max(map(len, more)))
            self._bodies += filter(None, lines)
            self._rest += last
        if len(piece) > allowed:
            raise HttpError(413, "BODY_TOO_BIG")

    def finish(self) -> list[bytes]:
        """All messages; the last line needs no newline."""
        self._end_line()
        return self._bodies

    def _end_line(self) -> None:
        if self._rest:
            self._bodies.append(bytes(self._rest))
            self._rest.clear()

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self._msg_size_max:
            raise HttpError(413, "MSG_TOO_BIG")
