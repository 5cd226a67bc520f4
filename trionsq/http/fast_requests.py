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
    "is_unknown_start",
    "recognise_head",
]

# Longer heads are left to the framework.
MAX_HEAD_BYTES: Final = 8 * 1024

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
# All quantifiers are possessive, so a head that does not match fails in linear time.
_HEAD: Final = re.compile(
    rb"(GET /ping|POST /(?:pub|put|mpub|mput))(?:\?([!\"$-~]*+))? HTTP/1\.([01])\r\n"
    rb"((?:" + _TOKEN + rb":[\t -~]*+\r\n)*+)\r\n"
)
# Headers that affect the meaning of the request or its response.
_MEANINGFUL: Final = re.compile(
    rb"^(connection|content-length|expect|host|idempotency-key|origin|sec-fetch-site"
    rb"|transfer-encoding|upgrade):([^\r]*+)",
    re.IGNORECASE | re.MULTILINE,
)
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_KEPT: Final = {b"": True, b"keep-alive": True, b"close": False}
# h11 accepts lines that end with a bare newline, and at once refuses what cannot be a method.
_BARE_NEWLINE: Final = re.compile(rb"(?<!\r)\n")
_METHODS: Final = (b"G", b"P")


class Target(Enum):
    """The endpoint of a request."""

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
    """The contents of a request head.

    Attributes:
        target: the endpoint.
        query: the raw query string.
        length: of the body, in bytes.
        close: close the connection after the response.
        host: the Host header, empty without one.
    """

    target: Target
    query: bytes
    length: int
    close: bool
    host: bytes = b""


def recognise_head(head: bytes) -> RequestHead | None:
    """Return the contents of ``head``, up to its empty line; None if it is not recognised."""
    match = _HEAD.fullmatch(head)
    if match is None:
        return None
    line, query, minor, lines = match.groups()
    values: dict[bytes, bytes] = {}
    for name, value in _MEANINGFUL.findall(lines):
        if values.setdefault(name.lower(), value) is not value:
            return None
    is_kept = _KEPT.get(values.pop(b"connection", b"").strip().lower())
    length = values.pop(b"content-length", b"0").strip()
    host = values.pop(b"host", None)
    if values or is_kept is None or not _LENGTH.fullmatch(length):
        return None
    if (host is None and minor == b"1") or (line == b"GET /ping" and int(length)):
        return None
    return RequestHead(
        _TARGETS[line],
        query or b"",
        int(length),
        not is_kept or minor == b"0",
        (host or b"").strip(),
    )


def is_unknown_start(buffer: bytes, at: int) -> bool:
    """Whether the incomplete head at ``at`` can no longer be recognised."""
    if at == len(buffer):
        return False
    return (
        len(buffer) - at >= MAX_HEAD_BYTES
        or not buffer.startswith(_METHODS, at)
        or _BARE_NEWLINE.search(buffer, at) is not None
    )


@dataclass(frozen=True, slots=True)
class FastRequest:
    """A request head, and all that can be decided without the body.

    Attributes:
        topic: a valid name, if this is a /pub whose body is all that is left to check.
        refused: it is refused whatever its body is, so the body is not waited for.
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
    """Messages to be queued: of one /mpub, or of successive /pub requests (`run`).

    Attributes:
        prepared: to be waited for, if the request created the topic.
        steps: yield `bodies` at their end, if the body is large.
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
        """Whether a /pub to ``topic`` can be added to the run."""
        return self.topic is topic and bool(self.run) and not self.defer_ms
