"""The messages of a text body. Spec: nsqd-http, section 4."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Final

from trionsq.web.errors import HttpError
from trionsq.wire.bodies import Bodies, ListBodies, PackedBodies

__all__ = ["LineSplitter"]

# A body of more than this is kept in one object: to free a million small ones takes 20 ms.
_LIST_NBYTES_MAX: Final = 64 * 1024


class LineSplitter:
    """Cuts a text body into messages while it comes in: one for each line that is not empty."""

    def __init__(self, msg_size_max: int, body_size_max: int) -> None:
        """Both limits are in bytes."""
        self._msg_size_max = msg_size_max
        self._body_size_max = body_size_max
        self._bodies: list[bytes] = []
        # Of a large body: its messages, each after a newline, and where each of them ends.
        self._packed = bytearray()
        self._ends = array("I", [0])
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
            if self._nbytes > _LIST_NBYTES_MAX:
                self._pack()
        if len(piece) > allowed:
            raise HttpError(413, "BODY_TOO_BIG")

    def finish(self) -> Bodies | None:
        """All messages, None if there are none; the last line needs no newline."""
        self._end_line()
        if len(self._ends) > 1:
            self._pack()
            return PackedBodies(bytes(self._packed), self._ends, 1)
        return ListBodies(self._bodies) if self._bodies else None

    def _pack(self) -> None:
        if not self._bodies:
            return
        self._packed += b"\n"
        self._packed += b"\n".join(self._bodies)
        sizes = [1 + len(body) for body in self._bodies]
        sizes[0] += self._ends[-1]
        self._ends.extend(accumulate(sizes))
        self._bodies.clear()

    def _end_line(self) -> None:
        if self._rest:
            self._bodies.append(bytes(self._rest))
            self._rest.clear()

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self._msg_size_max:
            raise HttpError(413, "MSG_TOO_BIG")
