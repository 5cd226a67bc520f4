"""The client's side of nsqlookupd's TCP protocol V1: what an nsqd says, and what it is answered.

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
    "SIZE_NBYTES",
    "LookupAnswerError",
    "LookupdInfo",
    "answer_size",
    "identify",
    "parse_identify_answer",
    "register",
    "unregister",
]

MAGIC_V1: Final = b"  V1"
"""What a client sends first."""
PING: Final = b"PING\n"
OK: Final = b"OK"
"""The answer to every command but IDENTIFY."""
SIZE_NBYTES: Final = 4
"""Each answer begins with its size; it has no frame type."""

_SHOWN_NBYTES_MAX: Final = 100
# What may stand for a host in a URL: nothing that could end the host, or the line it is in.
_HOST: Final = re.compile(r"[A-Za-z0-9._~:%-]{1,255}")
_SIZE: Final = struct.Struct(">i")


class LookupAnswerError(ValueError):
    """What came is not the answer of an nsqlookupd."""


class LookupdInfo(NamedTuple):
    """Where an nsqlookupd is reached by HTTP."""

    host: str
    http_port: int

    @property
    def http_address(self) -> str:
        """``host:port`` as URLs have it."""
        return format_address(self.host, self.http_port)


def identify(fields: Mapping[str, str | int]) -> bytes:
    """IDENTIFY with these fields as its JSON body."""
    body = json.dumps(dict(fields), separators=(",", ":")).encode()
    return b"IDENTIFY\n" + _SIZE.pack(len(body)) + body


def register(topic: str, channel: str = "") -> bytes:
    """REGISTER of a topic, or of a channel and with it its topic. The names are valid."""
    return _named(b"REGISTER", topic, channel)


def unregister(topic: str, channel: str = "") -> bytes:
    """UNREGISTER of a channel, or of a topic with all its channels. The names are valid."""
    return _named(b"UNREGISTER", topic, channel)


def _named(command: bytes, topic: str, channel: str) -> bytes:
    names = f"{topic} {channel}" if channel else topic
    return b"%b %b\n" % (command, names.encode("ascii"))


def answer_size(head: bytes, nbytes_max: int) -> int:
    """The size of the answer that follows its first four bytes.

    Raises:
        LookupAnswerError: it is below zero or above ``nbytes_max``.
    """
    size: int = _SIZE.unpack(head)[0]
    if not 0 <= size <= nbytes_max:
        raise LookupAnswerError(f"an answer of {size} bytes (at most {nbytes_max} are read)")
    return size


def parse_identify_answer(data: bytes) -> LookupdInfo | None:
    """Where the nsqlookupd is to be asked; None if it does not say, and so can't be asked.

    Raises:
        LookupAnswerError: that is no answer to IDENTIFY, for instance E_INVALID.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise LookupAnswerError(f"IDENTIFY was answered by {data[:_SHOWN_NBYTES_MAX]!r}")
    host, port = fields.get("broadcast_address"), fields.get("http_port")
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        return None
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        return None
    return LookupdInfo(host, port)
