"""What a client reads: bytes from nsqd become responses, errors and messages.

`ClientDecoder` does no I/O. It is given what a read brought, in any fragmentation, and decodes
all frames that are whole at once.

Spec: tcp-protocol, sections 4 (frames) and 5 (message frame data).
"""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple, TypeAlias

from trionsq.wire.errors import ProtocolError
from trionsq.wire.frames import (
    FRAME_ERROR,
    FRAME_MESSAGE,
    FRAME_RESPONSE,
    HEARTBEAT_DATA,
    MESSAGE_META_SIZE_BYTES,
    NON_FATAL_CODES,
)

__all__ = [
    "FRAME_SIZE_BYTES_MAX",
    "ClientDecoder",
    "ErrorFrame",
    "Frame",
    "FrameError",
    "MessageFrame",
    "Response",
]

FRAME_SIZE_BYTES_MAX = 16 * 1024 * 1024
"""Default bound: 16 times nsqd's default --max-msg-size."""

_HTTP_AS_SIZE = int.from_bytes(b"HTTP", "big")
_HEAD_SIZE_BYTES = 8
_MESSAGE_FRAME_SIZE_MIN = 4 + MESSAGE_META_SIZE_BYTES

_unpack_size = struct.Struct(">i").unpack_from
_unpack_head = struct.Struct(">ii").unpack_from
_unpack_message = struct.Struct(">qH16s").unpack_from


class Response(NamedTuple):
    """An answer: ``OK``, ``CLOSE_WAIT``, ``_heartbeat_``, or JSON after IDENTIFY and AUTH."""

    data: bytes

    @property
    def is_heartbeat(self) -> bool:
        """Whether nsqd asks for a sign of life; it answers no command."""
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


Frame: TypeAlias = Response | ErrorFrame | MessageFrame


class FrameError(ValueError):
    """What came is not from nsqd, or the connection's bytes are out of step: close it."""


class ClientDecoder:
    """Decode what nsqd sends.

    ::

        decoder.feed(data)
        for frame in decoder:
            ...

    Iterating takes the frames that are whole so far; `take` hands them over as one list. Both
    raise `FrameError` for nonsense, after the good frames before it; the decoder is of no use
    from there on, and ignores what it is fed.

    Args:
        frame_size_bytes_max: the largest frame size accepted. No more than one frame and what
            one read brought is ever kept.
    """

    def __init__(self, frame_size_bytes_max: int = FRAME_SIZE_BYTES_MAX) -> None:
        self._frame_size_bytes_max = frame_size_bytes_max
        self._partial = bytearray()
        self._partial_needs = 0
        self._frames: deque[Frame] = deque()
        self._failure: str | None = None

    def __repr__(self) -> str:
        state = f"failed={self._failure!r}" if self._failure else f"pending={self.pending}"
        return f"<ClientDecoder frames={len(self._frames)} {state}>"

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet; not zero at EOF means that it was cut off."""
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

    def take(self) -> list[Frame]:
        """Return the frames decoded since the last call, as one batch; empty if there are none.

        Raises:
            FrameError: the frames are used up and what came after them is nonsense.
        """
        if not self._frames:
            self._check()
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def __iter__(self) -> ClientDecoder:
        return self

    def __next__(self) -> Frame:
        if not self._frames:
            self._check()
            raise StopIteration
        return self._frames.popleft()

    def _check(self) -> None:
        if self._failure is not None:
            raise FrameError(self._failure)

    def _decode(self, data: bytes) -> None:
        position = 0
        end = len(data)
        append = self._frames.append
        while end - position >= _HEAD_SIZE_BYTES:
            size, frame_type = _unpack_head(data, position)
            self._check_head(size, frame_type)
            frame_end = position + 4 + size
            if frame_end > end:
                break
            position += _HEAD_SIZE_BYTES
            if frame_type == FRAME_MESSAGE:
                timestamp_ns, attempts, message_id = _unpack_message(data, position)
                body = data[position + MESSAGE_META_SIZE_BYTES : frame_end]
                append(MessageFrame(timestamp_ns, attempts, message_id, body))
            elif frame_type == FRAME_RESPONSE:
                append(Response(data[position:frame_end]))
            else:
                append(_error_frame(data[position:frame_end]))
            position = frame_end
        self._keep(data, position)

    def _keep(self, data: bytes, position: int) -> None:
        left = len(data) - position
        if left >= 4:
            (size,) = _unpack_size(data, position)
            self._check_size(size)
            # The type is checked as soon as it is there, before room is given to the frame.
            self._partial_needs = 4 + size if left >= _HEAD_SIZE_BYTES else _HEAD_SIZE_BYTES
        else:
            self._partial_needs = 4
        if left:
            self._partial += memoryview(data)[position:]

    def _check_head(self, size: int, frame_type: int) -> None:
        self._check_size(size)
        if frame_type not in (FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE):
            raise FrameError(f"unknown frame type {frame_type}")
        if frame_type == FRAME_MESSAGE and size < _MESSAGE_FRAME_SIZE_MIN:
            raise FrameError(f"message frame of {size} bytes is too short")

    def _check_size(self, size: int) -> None:
        if 4 <= size <= self._frame_size_bytes_max:
            return
        if size == _HTTP_AS_SIZE:
            raise FrameError("an HTTP server answered: is this nsqd's HTTP port?")
        raise FrameError(f"frame size {size} is not within 4-{self._frame_size_bytes_max}")


def _error_frame(data: bytes) -> ErrorFrame:
    code_bytes, _, text = data.partition(b" ")
    code = code_bytes.decode("ascii", "replace")
    return ErrorFrame(code, text, code not in NON_FATAL_CODES)
