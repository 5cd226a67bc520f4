"""Messages of a log as bytes of an answer: lines of JSON, or NSQ's frames.

docs/replay.md describes both forms.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from trionsq.core.batch import MessageBatch, Segment
from trionsq.core.subscription import Delivery
from trionsq.storage.log.segmentfile import sequences_of
from trionsq.wire.logstream import encode_note

__all__ = ["Frames", "Lines", "LogForm", "slice_end"]

# What is encoded in one step of the event loop.
_SLICE_MESSAGES: Final = 512
_SLICE_BYTES: Final = 128 * 1024
_MS_NS: Final = 1_000_000


class LogForm(Protocol):
    """A form of the answer.

    Attributes:
        content_type: of the answer.
        work: to encode a message, in times of what a frame costs.
    """

    content_type: str
    work: int

    def note(self, fields: Mapping[str, object]) -> bytes:
        """Return what stands between messages."""

    def messages(self, segment: Segment) -> bytes:
        """Return messages; with what their reader has to know of them."""


def slice_end(segment: Segment, first: int) -> int:
    """Return up to where the messages of a batch from ``first`` on are encoded in one step."""
    bodies = segment.batch.bodies
    last = min(segment.last, first + _SLICE_MESSAGES)
    if bodies.nbytes <= _SLICE_BYTES:
        return last
    if bodies.size:
        return min(last, first + max(1, _SLICE_BYTES // bodies.size))
    average = bodies.nbytes // bodies.count + 1
    last = min(last, first + 2 * (_SLICE_BYTES // average) + 1)
    nbytes = 0
    for at, body in enumerate(bodies.slice(first, last), first):
        nbytes += len(body)
        if nbytes > _SLICE_BYTES:
            return max(at, first + 1)
    return last


class _Line(msgspec.Struct, gc=False):
    sequence: int
    id: str
    timestamp: int
    body: str
    body_encoding: str
    due: int | msgspec.UnsetType = msgspec.UNSET


class Lines:
    """A JSON object a line."""

    content_type = "application/x-ndjson"
    work = 8

    def __init__(self, *, text: bool = True) -> None:
        """``text``: bodies that are UTF-8 are shown as it; all others as base64."""
        self._encode_body: Callable[[bytes], tuple[str, str]] = _text if text else _base64
        self._encoder = msgspec.json.Encoder()

    def note(self, fields: Mapping[str, object]) -> bytes:
        return self._encoder.encode(fields) + b"\n"

    def messages(self, segment: Segment) -> bytes:
        batch, first, last = segment.batch, segment.first, segment.last
        delay_ns = batch.defer_ms * _MS_NS
        encode_body = self._encode_body
        lines = [
            _Line(sequence, id_.decode("ascii", "backslashreplace"), stamp, *encode_body(body))
            for sequence, id_, stamp, body in zip(
                sequences_of(batch)[first:last],
                batch.ids.slice(first, last),
                _stamps(batch, first, last),
                batch.bodies.slice(first, last),
                strict=True,
            )
        ]
        if delay_ns:
            for line in lines:
                line.due = line.timestamp + delay_ns
        return self._encoder.encode_lines(lines)


def _stamps(batch: MessageBatch, first: int, last: int) -> list[int]:
    if batch.stamps is None:
        return [batch.timestamp_ns] * (last - first)
    return [int.from_bytes(stamp, signed=True) for stamp in batch.stamps.slice(first, last)]


def _text(body: bytes) -> tuple[str, str]:
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return _base64(body)


def _base64(body: bytes) -> tuple[str, str]:
    return base64.b64encode(body).decode("ascii"), "base64"


class Frames:
    """NSQ's frames: see `trionsq.wire.logstream`."""

    content_type = "application/octet-stream"
    work = 1

    def __init__(self) -> None:
        # What the reader takes for the next message, and for its delay.
        self._expected = (-1, 0)

    def note(self, fields: Mapping[str, object]) -> bytes:
        return encode_note(fields)

    def messages(self, segment: Segment) -> bytes:
        batch = segment.batch
        sequence = sequences_of(batch)[segment.first]
        run = b""
        if self._expected != (sequence, batch.defer_ms):
            run = encode_note({"note": "run", "sequence": sequence, "defer_ms": batch.defer_ms})
        self._expected = (sequence + segment.count, batch.defer_ms)
        return run + Delivery(segment, 0.0, 0.0).frames()
