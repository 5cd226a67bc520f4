"""Request bodies: read piece by piece, and never held beyond what a request may have.

Spec: nsqd-http, sections 3 and 4.
"""

from __future__ import annotations

import logging
from typing import Final

import trio
from quart import request
from quart_trio.wrappers.request import TrioBody, TrioRequest

from trionsq.web import limits
from trionsq.web.errors import HttpError
from trionsq.web.pace import PACE, PaceWatch

__all__ = ["LIMIT_KEY", "BoundedBody", "BoundedRequest", "next_piece", "read_body"]

log = logging.getLogger("trionsq")

# quart hands the value of this key to the body of each request.
LIMIT_KEY: Final = "MAX_CONTENT_LENGTH"


class BoundedBody(TrioBody):
    """A body of which no more than a limit waits to be read; what is over is thrown away.

    quart's own limit would answer by itself; here the reader learns of it and chooses the answer.

    Attributes:
        overflowed: something was thrown away.
        came_nbytes: so much has come.
    """

    def __init__(self, expected_nbytes: int | None, limit: int | None) -> None:
        assert limit is not None
        super().__init__(None, None)
        self._limit = limit
        self.overflowed = False
        self.came_nbytes = 0
        self._watch: PaceWatch | None = None

    def append(self, data: bytes) -> None:
        self.came_nbytes += len(data)
        if self.overflowed:
            return
        room = self._limit - len(self._data)
        super().append(data[:room])
        if len(data) > room:
            self.overflowed = True
            self.set_complete()

    async def next_piece(self) -> bytes:
        """What has come since the last time, as soon as there is something; ``b""`` at the end.

        Raises:
            trio.TooSlowError: the sender stalls, or only trickles.
        """
        now_s = trio.current_time()
        watch = self._watch = self._watch or PaceWatch(PACE, now_s)
        stalled_s = now_s + limits.STALL_S
        while watch.keeps_up(now_s, self.came_nbytes):
            with trio.move_on_at(min(stalled_s, watch.due_s)):
                return await anext(self, b"")
            now_s = trio.current_time()
            if now_s >= stalled_s:
                break
        raise trio.TooSlowError


class BoundedRequest(TrioRequest):
    """A request whose body is a `BoundedBody`."""

    body_class: type[TrioBody] = BoundedBody


async def next_piece() -> bytes:
    """The next piece of the request's body, ``b""`` at its end.

    Raises:
        HttpError: INTERNAL_ERROR if the sender stalls, or only trickles.
        OverflowError: this is not the end, but the rest was thrown away.
    """
    body = request.body
    assert isinstance(body, BoundedBody)
    try:
        piece = await body.next_piece()
    except trio.TooSlowError:
        log.info(
            "HTTP: %s %s - gave up a body that does not come on, after %d bytes",
            request.method,
            request.path,
            body.came_nbytes,
        )
        raise HttpError(500, "INTERNAL_ERROR") from None
    if not piece and body.overflowed:
        raise OverflowError("the body is larger than any may be")
    return piece


async def read_body(nbytes_max: int) -> bytes | None:
    """The whole body, or None as soon as it is known to be larger than ``nbytes_max``.

    Raises:
        HttpError: INTERNAL_ERROR if the sender stalls, or only trickles.
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
