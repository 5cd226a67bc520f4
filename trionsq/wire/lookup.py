"""The client's side of nsqlookupd's TCP protocol V1: commands of nsqd, and the answers.

No I/O. Spec: nsqlookupd, section 1; nsqd-internals, section 9.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from trionsq.hostport import format_address

__all__ = [
    "MAGIC_V1",
    "OK",
    "PING",
    "SIZE_BYTES",
    "LookupAnswerError",
    "LookupdInfo",
    "answer_size",
    "identify",
    "parse_identify_answer",
    "register",
    "unregister",
]

MAGIC_V1: Final = b"  V1"
"""The first bytes of every connection."""
PING: Final = b"PING\n"
OK: Final = b"OK"
"""The answer to every command but IDENTIFY."""
SIZE_BYTES: Final = 4
"""Each answer begins with its size; it has no frame type."""

_MAX_SHOWN_BYTES: Final = 100
# Characters of a host in a URL: none that could end the host, or its line.
_HOST: Final = re.compile(r"[A-Za-z0-9._~:%-]{1,255}")
_SIZE: Final = struct.Struct(">i")


class LookupAnswerError(ValueError):
    """The answer is not from an nsqlookupd."""


class LookupdInfo(NamedTuple):
    """The HTTP address of an nsqlookupd."""

    host: str
    http_port: int

    @property
    def http_address(self) -> str:
        """``host:port`` as URLs have it."""
        return format_address(self.host, self.http_port)


def identify(fields: Mapping[str, str | int]) -> bytes:
    """Return IDENTIFY with these fields as its JSON body."""
    body = json.dumps(dict(fields), separators=(",", ":")).encode()
    return b"IDENTIFY\n" + _SIZE.pack(len(body)) + body


def register(topic: str, channel: str = "") -> bytes:
    """Return REGISTER of a topic, or of a channel with its topic. The names must be valid."""
    return _named(b"REGISTER", topic, channel)


def unregister(topic: str, channel: str = "") -> bytes:
    """Return UNREGISTER of a channel, or of a topic with all channels. The names must be valid."""
    return _named(b"UNREGISTER", topic, channel)


def _named(command: bytes, topic: str, channel: str) -> bytes:
    names = f"{topic} {channel}" if channel else topic
    return b"%b %b\n" % (command, names.encode("ascii"))


def answer_size(head: bytes, max_bytes: int) -> int:
    """Return the size of an answer from its first four bytes.

    Raises:
        LookupAnswerError: the size is below zero or above ``max_bytes``.
    """
    size: int = _SIZE.unpack(head)[0]
    if not 0 <= size <= max_bytes:
        raise LookupAnswerError(f"answer of {size} bytes is too large (limit {max_bytes})")
    return size


def parse_identify_answer(data: bytes) -> LookupdInfo | None:
    """Return the HTTP address in the answer to IDENTIFY; None if there is none to use.

    Raises:
        LookupAnswerError: not an answer to IDENTIFY, for instance E_INVALID.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise LookupAnswerError(f"IDENTIFY was answered by {data[:_MAX_SHOWN_BYTES]!r}")
    host, port = fields.get("broadcast_address"), fields.get("http_port")
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        return None
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        return None
    return LookupdInfo(host, port)
