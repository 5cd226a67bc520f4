"""Request bodies: read piece by piece, and never held beyond what a request may have.

Spec: nsqd-http, sections 3 and 4.
"""

from __future__ import annotations

from typing import Final

import trio
from quart import request
from quart_trio.wrappers.request import TrioBody, TrioRequest

from trionsq.web.errors import HttpError

__all__ = ["LIMIT_KEY", "STALL_S", "BoundedBody", "BoundedRequest", "next_piece", "read_body"]

# quart hands the value of this key to the body of each request.
LIMIT_KEY: Final = "MAX_CONTENT_LENGTH"
# A sender that is silent for so long in the midst of a body is given up.
STALL_S: Final = 30.0


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
        with trio.fail_after(STALL_S):
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
