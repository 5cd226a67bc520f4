"""An envelope for messages that need headers, which NSQ's messages don't have. Opt-in.

The body of such a message is a line, and then the body proper::

    NSQ-Envelope/1 {"traceparent":"00-4bf9...-01"}<LF>...

The line is the 15 bytes ``NSQ-Envelope/1 ``, a JSON object whose values are strings, without a
line break, and one LF; it has at most 64 KiB. A body that begins otherwise has no headers: programs
that know the envelope read messages of those that don't. The other way round they must agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from trionsq.client.codecs import Codec, T

__all__ = ["MAGIC", "EnvelopeCodec", "EnvelopeError", "Enveloped"]

MAGIC: Final = b"NSQ-Envelope/1 "
_MAX_LINE: Final = 64 * 1024


class EnvelopeError(ValueError):
    """A body begins as an envelope does, and is none; or headers are too long."""


@dataclass(frozen=True, slots=True)
class Enveloped(Generic[T]):
    """A value with headers.

    Attributes:
        value: what the inner codec makes of the body proper.
        headers: names and values.
    """

    value: T
    headers: Mapping[str, str] = field(default_factory=dict)


class EnvelopeCodec(Generic[T]):
    """Puts the values of another codec into envelopes."""

    def __init__(self, codec: Codec[T] | None = None) -> None:
        """``codec`` None: the bodies proper are bytes."""
        self._codec = codec

    def encode(self, value: Enveloped[T]) -> bytes:
        """Raises EnvelopeError: headers too long; also what the inner codec raises."""
        codec = self._codec
        body: Any = value.value if codec is None else codec.encode(value.value)
        line = MAGIC + json.dumps(dict(value.headers), separators=(",", ":")).encode() + b"\n"
        if len(line) > _MAX_LINE:
            raise EnvelopeError(f"headers of {len(line)} bytes; at most {_MAX_LINE} are allowed")
        enveloped: bytes = line + body
        return enveloped

    def decode(self, body: bytes) -> Enveloped[T]:
        """Raises EnvelopeError: a broken envelope; also what the inner codec raises."""
        headers, proper = split(body)
        value: Any = proper if self._codec is None else self._codec.decode(proper)
        return Enveloped(value, headers)


def split(body: bytes) -> tuple[dict[str, str], bytes]:
    """The headers of a body, and the body proper. Raises EnvelopeError."""
    if not body.startswith(MAGIC):
        return {}, body
    end = body.find(b"\n", 0, _MAX_LINE)
    if end < 0:
        raise EnvelopeError("an envelope whose line does not end")
    try:
        headers = json.loads(body[len(MAGIC) : end])
    except (ValueError, RecursionError) as error:
        raise EnvelopeError(f"an envelope without JSON: {error}") from error
    if not isinstance(headers, dict) or not all(isinstance(one, str) for one in headers.values()):
        raise EnvelopeError("an envelope whose headers are no object of strings")
    return headers, body[end + 1 :]
