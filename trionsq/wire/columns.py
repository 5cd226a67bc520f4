"""What a consumer reads, in columns: many messages of one read at a few C calls.

Where frames of equal size follow each other they are taken apart together; each message then costs
a third of what `ClientDecoder` needs for it. The two agree on every input but for the order of
messages and other frames among each other, which columns do not keep.

Spec: tcp-protocol, sections 4 (frames) and 5 (message frame data).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from trionsq.wire.client import FRAME_SIZE_BYTES_MAX, ClientDecoder, ErrorFrame, Response
from trionsq.wire.frames import (
    FRAME_MESSAGE,
    FRAME_RESPONSE,
    MESSAGE_META_SIZE_BYTES,
    NON_FATAL_CODES,
)

__all__ = ["ColumnDecoder", "Columns"]

_HEAD_NBYTES: Final = 8
# Messages tried together at first; four times as many after each success.
_RUN: Final = 4

_unpack_head = struct.Struct(">ii").unpack_from
_unpack_message = struct.Struct(">qH16s").unpack_from


class Columns(NamedTuple):
    """Messages, as lists of equal length.

    `timestamps_ns`: time of publishing in nanoseconds since the epoch. `attempts`: 1 at the first
    delivery. `ids`: 16 hex digits each.
    """

    timestamps_ns: list[int]
    attempts: list[int]
    ids: list[bytes]
    bodies: list[bytes]


class ColumnDecoder(ClientDecoder):
    """A `ClientDecoder` whose messages are had from `take_columns`.

    Iterating, and `take`, give the other frames; they raise FrameError as ever.
    """

    def __init__(self, frame_size_bytes_max: int = FRAME_SIZE_BYTES_MAX) -> None:
        super().__init__(frame_size_bytes_max)
        self._columns = Columns([], [], [], [])

    def take_columns(self) -> Columns:
        """Return the messages decoded since the last call; none is no error."""
        columns = self._columns
        if columns.ids:
            self._columns = Columns([], [], [], [])
        return columns

    def _decode(self, data: bytes) -> None:
        position = 0
        end = len(data)
        timestamps_ns, attempts, ids, bodies = self._columns
        while end - position >= _HEAD_NBYTES:
            size, frame_type = _unpack_head(data, position)
            self._check_head(size, frame_type)
            frame_end = position + 4 + size
            if frame_end > end:
                break
            start = position + _HEAD_NBYTES
            if frame_type == FRAME_MESSAGE:
                timestamp_ns, attempt, message_id = _unpack_message(data, start)
                timestamps_ns.append(timestamp_ns)
                attempts.append(attempt)
                ids.append(message_id)
                bodies.append(data[start + MESSAGE_META_SIZE_BYTES : frame_end])
                head = data[position:start]
                if data.startswith(head, frame_end):
                    frame_end = self._decode_run(data, frame_end, head, size)
            elif frame_type == FRAME_RESPONSE:
                self._frames.append(Response(data[start:frame_end]))
            else:
                self._frames.append(_error_frame(data[start:frame_end]))
            position = frame_end
        self._keep(data, position)

    def _decode_run(self, data: bytes, position: int, head: bytes, size: int) -> int:
        """Decode the message frames with this ``head`` that follow; where they end."""
        row = _row(size - 4 - MESSAGE_META_SIZE_BYTES)
        view = memoryview(data)
        count = _RUN
        while True:
            count = min(count, (len(data) - position) // row.size)
            if not count:
                return position
            rows = row.iter_unpack(view[position : position + count * row.size])
            heads, timestamps_ns, attempts, ids, bodies = zip(*rows, strict=True)
            good = heads.count(head)
            if good < count:
                # What comes after the first other head was read at wrong places.
                good = next(index for index, other in enumerate(heads) if other != head)
            columns = self._columns
            columns.timestamps_ns.extend(timestamps_ns[:good])
            columns.attempts.extend(attempts[:good])
            columns.ids.extend(ids[:good])
            columns.bodies.extend(bodies[:good])
            position += good * row.size
            if good < count:
                return position
            count *= 4


@lru_cache(maxsize=256)
def _row(body_nbytes: int) -> struct.Struct:
    return struct.Struct(f">8sqH16s{body_nbytes}s")


def _error_frame(data: bytes) -> ErrorFrame:
    code_bytes, _, text = data.partition(b" ")
    code = code_bytes.decode("ascii", "replace")
    return ErrorFrame(code, text, code not in NON_FATAL_CODES)
