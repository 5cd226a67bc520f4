"""Messages handed to one consumer at once, and the frames that carry them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.column import Column

__all__ = ["Delivery"]

_HEADER: Final = Struct(">iiqH")
_SIZE_AND_TYPE: Final = Struct(">ii")
_TIMESTAMP_AND_ATTEMPTS: Final = Struct(">qH")
_ATTEMPTS: Final = Struct(">H")
_FRAME_TYPE: Final = 2
# A frame's size field counts the type, the timestamp, the attempts and the id.
_FRAME_EXTRA: Final = 4 + 8 + 2 + 16
_ATTEMPTS_MASK: Final = 0xFFFF
# Size fields of small bodies come from a table: packing one costs more than looking it up.
_SMALL: Final = 4096
_SIZES: Final = [_SIZE_AND_TYPE.pack(_FRAME_EXTRA + size, _FRAME_TYPE) for size in range(_SMALL)]


def _sizes(bodies: Sequence[bytes]) -> list[bytes]:
    """The size and type fields of the frames."""
    sizes = list(map(len, bodies))
    if max(sizes) < _SMALL:
        return list(map(_SIZES.__getitem__, sizes))
    return [_SIZE_AND_TYPE.pack(_FRAME_EXTRA + size, _FRAME_TYPE) for size in sizes]


class Delivery:
    """Consecutive messages in flight at one consumer, with one deadline.

    The in-flight entries of all these messages are this one object.

    Attributes:
        batch, first, last: the messages.
        ids: their ids.
        attempts: deliveries, this one included.
        started_s: monotonic time of the hand-over, in seconds.
        deadline_s: monotonic time at which the messages time out, in seconds.
        written: whether the frames were given to the socket.
        some_gone: whether messages left (by time-out or by emptying) before they were written.
    """

    __slots__ = ("attempts", "batch", "deadline_s", "first", "ids", "last", "some_gone",
                 "started_s", "written")  # fmt: skip

    def __init__(self, segment: Segment, now_s: float, deadline_s: float) -> None:
        self.batch = segment.batch
        self.first = segment.first
        self.last = segment.last
        self.ids = segment.batch.ids.cut(segment.first, segment.last)
        self.attempts = segment.attempts + 1
        self.started_s = now_s
        self.deadline_s = deadline_s
        self.written = False
        self.some_gone = False

    def __repr__(self) -> str:
        return f"<Delivery {self.first}:{self.last} attempts={self.attempts} of {self.batch}>"

    @property
    def nbytes(self) -> int:
        """Size of the bodies; of equal ones exactly, of others their share of the batch."""
        batch = self.batch
        return batch.bodies.nbytes * (self.last - self.first) // batch.count

    def frames(self) -> bytes:
        """The message frames of all messages."""
        ids = self.ids
        bodies = self.batch.bodies
        attempts = self.attempts & _ATTEMPTS_MASK
        size = bodies.size
        if self.batch.stamps is not None:
            return self._stamped_frames(self.batch.stamps, attempts)
        if size:
            header = _HEADER.pack(
                _FRAME_EXTRA + size, _FRAME_TYPE, self.batch.timestamp_ns, attempts
            )
            if len(ids) == 1:
                return header + ids[0] + bodies.one(self.first)
            parts = [header] * (3 * len(ids))
            parts[1::3] = ids
            parts[2::3] = bodies.cut(self.first, self.last)
            return b"".join(parts)
        cut = bodies.cut(self.first, self.last)
        parts = [_TIMESTAMP_AND_ATTEMPTS.pack(self.batch.timestamp_ns, attempts)] * (4 * len(ids))
        parts[0::4] = _sizes(cut)
        parts[2::4] = ids
        parts[3::4] = cut
        return b"".join(parts)

    def _stamped_frames(self, stamps: Column, attempts: int) -> bytes:
        cut = self.batch.bodies.cut(self.first, self.last)
        parts = [_ATTEMPTS.pack(attempts)] * (5 * len(cut))
        parts[0::5] = _sizes(cut)
        parts[1::5] = stamps.cut(self.first, self.last)
        parts[3::5] = self.ids
        parts[4::5] = cut
        return b"".join(parts)

    def extract(self, ids: list[bytes]) -> Segment:
        """Copies of the messages with these ids, as a segment that pins nothing of the batch."""
        if len(ids) == 1:
            places = [self.first + self.ids.index(ids[0])]
        else:
            place_of = dict(zip(self.ids, range(self.first, self.last), strict=True))
            places = [place_of[id_] for id_ in ids]
        return Segment(self.batch.extract(places, ids), 0, len(ids), self.attempts)

    def keep_only(self, ids: list[bytes]) -> None:
        """Forget all messages but these, and let go of the batch: the entries stay valid."""
        segment = self.extract(ids)
        self.batch = segment.batch
        self.first, self.last, self.ids = 0, len(ids), ids
