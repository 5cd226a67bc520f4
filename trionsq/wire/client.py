"""What a client reads: bytes from nsqd become responses, errors and messages.

The decoders do no I/O. They take the data of each read, in any fragmentation, and decode all frames
that are whole. `ColumnDecoder` has the only loop over frames. It gives messages in columns: where
frames of equal size follow each other they are decoded together, and each message costs a third
of what one frame costs. `ClientDecoder` gives all frames one by one, in their order.

Spec: tcp-protocol, sections 4 (frames) and 5 (message frame data).
"""

from __future__ import annotations

import struct
from collections import deque
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from trionsq.wire.errors import ProtocolError
from trionsq.wire.frames import (
    FRAME_ERROR,
    FRAME_MESSAGE,
    FRAME_RESPONSE,
    HEARTBEAT_DATA,
    MESSAGE_META_BYTES,
    NON_FATAL_CODES,
)

__all__ = [
    "MAX_FRAME_BYTES",
    "ClientDecoder",
    "ColumnDecoder",
    "Columns",
    "ErrorFrame",
    "Frame",
    "FrameError",
    "MessageFrame",
    "Response",
]

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Default limit: 16 times nsqd's default --max-msg-size."""

_HTTP_AS_SIZE: Final = int.from_bytes(b"HTTP", "big")
_HEAD_BYTES: Final = 8
_MIN_MESSAGE_FRAME_BYTES: Final = 4 + MESSAGE_META_BYTES
# Messages decoded together at first; four times as many after each success.
_RUN: Final = 4

_unpack_size = struct.Struct(">i").unpack_from
_unpack_head = struct.Struct(">ii").unpack_from
_unpack_message = struct.Struct(">qH16s").unpack_from


class Response(NamedTuple):
    """A response: ``OK``, ``CLOSE_WAIT``, ``_heartbeat_``, or JSON after IDENTIFY and AUTH."""

    data: bytes

    @property
    def is_heartbeat(self) -> bool:
        """Whether this is a heartbeat, which answers no command."""
        return self.data == HEARTBEAT_DATA


class ErrorFrame(NamedTuple):
    """A refused command; after a fatal error nsqd closes the connection."""

    code: str
    text: bytes
    fatal: bool

    def as_error(self) -> ProtocolError:
        """Return the same error as an exception."""
        return ProtocolError(self.code, self.text, self.fatal)


class MessageFrame(NamedTuple):
    """A message of the subscribed channel.

    `timestamp_ns` is the time of publishing in nanoseconds since the epoch; `attempts` is 1 at
    the first delivery; `message_id` is what FIN, REQ and TOUCH take.
    """

    timestamp_ns: int
    attempts: int
    message_id: bytes
    body: bytes


class Columns(NamedTuple):
    """Messages, as lists of equal length.

    `timestamps_ns`: time of publishing in nanoseconds since the epoch. `attempts`: 1 at the first
    delivery. `ids`: 16 hex digits each.
    """

    timestamps_ns: list[int]
    attempts: list[int]
    ids: list[bytes]
    bodies: list[bytes]


Frame: TypeAlias = Response | ErrorFrame | MessageFrame


class FrameError(ValueError):
    """The bytes are not from nsqd, or they are out of step: close the connection."""


class ColumnDecoder:
    """Decodes frames: messages are had from `pop_columns`, the other frames by iterating.

    ::

        decoder.feed(data)
        columns = decoder.pop_columns()
        for frame in decoder:
            ...

    Iterating raises `FrameError` for nonsense, after the good frames before it. From there on the
    decoder is of no use, and ignores what it is fed.

    Args:
        max_frame_bytes: the largest frame size accepted. The decoder never keeps more than
            one frame and the data of one read.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._partial = bytearray()
        self._partial_needs = 0
        self._columns = Columns([], [], [], [])
        # Frames that are no messages, each with the number of messages in `_columns` before it.
        self._others: deque[tuple[int, Frame]] = deque()
        self._failure: str | None = None

    def __repr__(self) -> str:
        state = f"failed={self._failure!r}" if self._failure else f"pending={self.pending}"
        return f"<{type(self).__name__} messages={len(self._columns.ids)} {state}>"

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet; above 0 at EOF if a frame was cut off."""
        return len(self._partial)

    def feed(self, data: bytes) -> None:
        """Decode all frames that are whole with `data`, keep the rest for the next call."""
        if self._failure is not None:
            return
        if self._partial:
            self._partial += data
            # Nothing is copied or tried before the frame is whole: small reads stay cheap.
            if len(self._partial) < self._partial_needs:
                return
            data = bytes(self._partial)
            self._partial.clear()
        try:
            self._decode(data)
        except FrameError as error:
            self._failure = str(error)

    def pop_columns(self) -> Columns:
        """Return the messages decoded since the last call; there may be none."""
        columns = self._columns
        if columns.ids:
            self._columns = Columns([], [], [], [])
        return columns

    def pop_others(self) -> list[tuple[int, Frame]]:
        """Return the frames that are no messages, each with the number of messages before it, as of
        the last `pop_columns`. To be called right behind that."""
        others = list(self._others)
        self._others.clear()
        return others

    def __iter__(self) -> ColumnDecoder:
        return self

    def __next__(self) -> Frame:
        if not self._others:
            self._raise_failure()
            raise StopIteration
        return self._others.popleft()[1]

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise FrameError(self._failure)

    def _decode(self, data: bytes) -> None:
        position = 0
        end = len(data)
        timestamps_ns, attempts, ids, bodies = self._columns
        while end - position >= _HEAD_BYTES:
            size, frame_type = _unpack_head(data, position)
            self._check_head(size, frame_type)
            frame_end = position + 4 + size
            if frame_end > end:
                break
            start = position + _HEAD_BYTES
            if frame_type == FRAME_MESSAGE:
                timestamp_ns, attempt, message_id = _unpack_message(data, start)
                timestamps_ns.append(timestamp_ns)
                attempts.append(attempt)
                ids.append(message_id)
                bodies.append(data[start + MESSAGE_META_BYTES : frame_end])
                head = data[position:start]
                if data.startswith(head, frame_end):
                    frame_end = self._decode_run(data, frame_end, head, size)
            elif frame_type == FRAME_RESPONSE:
                self._others.append((len(ids), Response(data[start:frame_end])))
            else:
                self._others.append((len(ids), _error_frame(data[start:frame_end])))
            position = frame_end
        self._keep(data, position)

    def _decode_run(self, data: bytes, position: int, head: bytes, size: int) -> int:
        """Decode the message frames with this ``head`` that follow; where they end."""
        row = _row(size - 4 - MESSAGE_META_BYTES)
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

    def _keep(self, data: bytes, position: int) -> None:
        left = len(data) - position
        if left >= 4:
            (size,) = _unpack_size(data, position)
            self._check_size(size)
            # The type is checked as soon as it is there, before room is given to the frame.
            self._partial_needs = 4 + size if left >= _HEAD_BYTES else _HEAD_BYTES
        else:
            self._partial_needs = 4
        if left:
            self._partial += memoryview(data)[position:]

    def _check_head(self, size: int, frame_type: int) -> None:
        self._check_size(size)
        if frame_type not in (FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE):
            raise FrameError(f"unknown frame type {frame_type}")
        if frame_type == FRAME_MESSAGE and size < _MIN_MESSAGE_FRAME_BYTES:
            raise FrameError(f"message frame of {size} bytes is too short")

    def _check_size(self, size: int) -> None:
        if 4 <= size <= self._max_frame_bytes:
            return
        if size == _HTTP_AS_SIZE:
            raise FrameError("an HTTP server answered: is this nsqd's HTTP port?")
        raise FrameError(f"frame size {size} is not within 4-{self._max_frame_bytes}")


class ClientDecoder(ColumnDecoder):
    """Decodes frames one by one, in their order; messages come as `MessageFrame`.

    Use either iterating or `pop_frames`; `pop_columns` is always empty.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        super().__init__(max_frame_bytes)
        self._frames: deque[Frame] = deque()

    def __repr__(self) -> str:
        state = f"failed={self._failure!r}" if self._failure else f"pending={self.pending}"
        return f"<ClientDecoder frames={len(self._frames)} {state}>"

    def feed(self, data: bytes) -> None:
        """As `ColumnDecoder.feed`."""
        super().feed(data)
        messages = list(map(MessageFrame, *self.pop_columns()))
        first = 0
        for count, frame in self._others:
            self._frames.extend(messages[first:count])
            self._frames.append(frame)
            first = count
        self._frames.extend(messages[first:])
        self._others.clear()

    def pop_frames(self) -> list[Frame]:
        """Return the frames decoded since the last call; the list may be empty.

        Raises:
            FrameError: all frames were returned and what came after them is nonsense.
        """
        if not self._frames:
            self._raise_failure()
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def __next__(self) -> Frame:
        if not self._frames:
            self._raise_failure()
            raise StopIteration
        return self._frames.popleft()


@lru_cache(maxsize=256)
def _row(body_nbytes: int) -> struct.Struct:
    return struct.Struct(f">8sqH16s{body_nbytes}s")


def _error_frame(data: bytes) -> ErrorFrame:
    code_bytes, _, text = data.partition(b" ")
    code = code_bytes.decode("ascii", "replace")
    return ErrorFrame(code, text, code not in NON_FATAL_CODES)
