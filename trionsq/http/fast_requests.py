"""Requests that the fast path recognises; it says nothing about any other request.

What is recognised is a narrow part of HTTP/1 that leaves nothing to interpret: one of a few request
lines, plain header lines, a body of a stated length or none. This is no parser and it never
refuses: a request that does not fit is left to the framework's parser.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Final

import trio

from trionsq.broker.topic import Topic
from trionsq.wire.bodies import Bodies

__all__ = [
    "MAX_HEAD_BYTES",
    "FastRequest",
    "PublishRequest",
    "RequestHead",
    "Target",
    "is_strange_start",
    "recognise_head",
]

# Longer heads are not looked at.
MAX_HEAD_BYTES: Final = 8 * 1024

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
# All quantifiers are possessive: a head that does not fit is given up in linear time.
_HEAD: Final = re.compile(
    rb"(GET /ping|POST /(?:pub|put|mpub|mput))(?:\?([!\"$-~]*+))? HTTP/1\.([01])\r\n"
    rb"((?:" + _TOKEN + rb":[\t -~]*+\r\n)*+)\r\n"
)
# The headers that have a say in what the request means or how it is answered.
_MEANINGFUL: Final = re.compile(
    rb"^(connection|content-length|expect|host|origin|sec-fetch-site|transfer-encoding|upgrade)"
    rb":([^\r]*+)",
    re.IGNORECASE | re.MULTILINE,
)
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_KEPT: Final = {b"": True, b"keep-alive": True, b"close": False}
# h11 takes lines that end with a mere newline, and refuses at once what can't be a method.
_BARE_NEWLINE: Final = re.compile(rb"(?<!\r)\n")
_METHODS: Final = (b"G", b"P")


class Target(Enum):
    """What is asked for."""

    PING = "GET /ping"
    PUB = "POST /pub"
    MPUB = "POST /mpub"


_TARGETS: Final = {
    b"GET /ping": Target.PING,
    b"POST /pub": Target.PUB,
    b"POST /put": Target.PUB,
    b"POST /mpub": Target.MPUB,
    b"POST /mput": Target.MPUB,
}


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What a head says.

    Attributes:
        target: what is asked for.
        query: the raw query string.
        length: of the body, in bytes.
        close: the connection is to be closed after the answer.
        host: the Host header, empty without one.
    """

    target: Target
    query: bytes
    length: int
    close: bool
    host: bytes = b""


def recognise_head(head: bytes) -> RequestHead | None:
    """What ``head`` says, if it is one of those; it ends with the first empty line."""
    found = _HEAD.fullmatch(head)
    if found is None:
        return None
    line, query, minor, lines = found.groups()
    values: dict[bytes, bytes] = {}
    for name, value in _MEANINGFUL.findall(lines):
        if values.setdefault(name.lower(), value) is not value:
            return None
    kept = _KEPT.get(values.pop(b"connection", b"").strip().lower())
    length = values.pop(b"content-length", b"0").strip()
    host = values.pop(b"host", None)
    if values or kept is None or not _LENGTH.fullmatch(length):
        return None
    if (host is None and minor == b"1") or (line == b"GET /ping" and int(length)):
        return None
    return RequestHead(
        _TARGETS[line], query or b"", int(length), not kept or minor == b"0", (host or b"").strip()
    )


def is_strange_start(buffer: bytes, at: int) -> bool:
    """Whether what begins at ``at``, a head that is not all there, will not be recognised."""
    if at == len(buffer):
        return False
    return (
        len(buffer) - at >= MAX_HEAD_BYTES
        or not buffer.startswith(_METHODS, at)
        or _BARE_NEWLINE.search(buffer, at) is not None
    )


@dataclass(frozen=True, slots=True)
class FastRequest:
    """A head, and what can be decided from it once and for all.

    Attributes:
        topic: a valid name, if this is a /pub that has only its body to be looked at.
        refused: it is refused whatever its body, so that this need not be waited for.
        knows_host: its Host header is a name of this machine.
    """

    head: RequestHead
    length: int
    close: bool
    topic: str | None
    refused: bool
    knows_host: bool


@dataclass(slots=True)
class PublishRequest:
    """Messages that are about to be queued: of one /mpub, or of a run of /pub.

    Attributes:
        prepared: to be waited for, if the request made the topic.
        steps: to be done before `bodies` are known, if the body is large.
    """

    topic: Topic
    bodies: Bodies | None
    run: list[bytes]
    defer_ms: int
    close: bool
    prepared: trio.Event | None = None
    steps: Generator[None, None, Bodies | None] | None = None

    @property
    def count(self) -> int:
        return len(self.run) if self.bodies is None else self.bodies.count

    def joins(self, topic: Topic) -> bool:
        """Whether a /pub to ``topic`` can be one of the run."""
        return self.topic is topic and bool(self.run) and not self.defer_ms
