"""Frames that nsqd writes: ``[size:4][frame type:4][data]``, and constant frames.

Spec: tcp-protocol, sections 4 (frames) and 5 (message frame data).
"""

from __future__ import annotations

import struct

from trionsq.wire.errors import ProtocolError

__all__ = [
    "CLOSE_WAIT",
    "FRAME_ERROR",
    "FRAME_MESSAGE",
    "FRAME_RESPONSE",
    "HEARTBEAT",
    "HEARTBEAT_DATA",
    "MESSAGE_ID_BYTES",
    "MESSAGE_META_BYTES",
    "NON_FATAL_CODES",
    "OK",
    "error",
    "message_frame",
    "response",
]

FRAME_RESPONSE = 0
FRAME_ERROR = 1
FRAME_MESSAGE = 2

MESSAGE_ID_BYTES = 16
MESSAGE_META_BYTES = 26
"""Size of the fields before the body in a message frame: timestamp, attempts and id."""

HEARTBEAT_DATA = b"_heartbeat_"

NON_FATAL_CODES = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
"""Codes of the errors after which the connection stays open."""

_HEADER = struct.Struct(">ii")
_MESSAGE = struct.Struct(">iiqH16s")


def response(data: bytes) -> bytes:
    """Return the response frame that carries `data`."""
    return _frame(FRAME_RESPONSE, data)


def error(refusal: ProtocolError) -> bytes:
    """Return the error frame of `refusal`: its code, a space and its text.

    The space stays when the text is empty, but for E_BAD_PROTOCOL, which nsqd sends bare
    (tcp-protocol, section 2).
    """
    code = refusal.code.encode()
    if not refusal.text and refusal.code == "E_BAD_PROTOCOL":
        return _frame(FRAME_ERROR, code)
    return _frame(FRAME_ERROR, code + b" " + refusal.text)


def message_frame(timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    """Return the frame of one message.

    Args:
        timestamp_ns: time of publishing, nanoseconds since the epoch.
        attempts: how often the message was delivered, this time included; wraps at 16 bits.
        message_id: 16 hex digits.
        body: the message body.

    Raises:
        ValueError: the id is not 16 bytes long.
    """
    if len(message_id) != MESSAGE_ID_BYTES:
        raise ValueError(f"message id must be 16 bytes: {message_id!r}")
    size = _HEADER.size - 4 + MESSAGE_META_BYTES + len(body)
    head = _MESSAGE.pack(size, FRAME_MESSAGE, timestamp_ns, attempts & 0xFFFF, message_id)
    return head + body


def _frame(frame_type: int, data: bytes) -> bytes:
    return _HEADER.pack(len(data) + 4, frame_type) + data


OK = response(b"OK")
HEARTBEAT = response(HEARTBEAT_DATA)
CLOSE_WAIT = response(b"CLOSE_WAIT")
