"""The messages of a text body. Spec: nsqd-http, section 4."""

from __future__ import annotations

from trionsq.web.errors import HttpError
from trionsq.wire.bodies import Bodies, ListBodies

__all__ = ["LineSplitter"]


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

    def finish(self) -> Bodies | None:
        """All messages, None if there are none; the last line needs no newline."""
        self._end_line()
        return ListBodies(self._bodies) if self._bodies else None

    def _end_line(self) -> None:
        if self._rest:
            self._bodies.append(bytes(self._rest))
            self._rest.clear()

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self._msg_size_max:
            raise HttpError(413, "MSG_TOO_BIG")
