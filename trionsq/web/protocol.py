"""HTTP as nsqd speaks it, without a framework: refusals, query parameters, JSON, reason phrases.

Parameters come from the query string only, and the first value of each name counts.

Spec: nsqd-http, section 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

import msgspec

from trionsq.wire.names import is_valid_name

__all__ = [
    "HttpError",
    "Query",
    "flag",
    "json_bytes",
    "parse_query",
    "reason",
    "valid_argument",
    "valid_topic_name",
]

Query = Mapping[bytes, bytes]

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_FLAGS = {b"true": True, b"1": True, b"false": False, b"0": False}

# They occur in strings only. nsqd escapes them so that JSON is safe inside HTML.
_ESCAPED = tuple((each.encode(), f"\\u{ord(each):04x}".encode()) for each in "<>&\u2028\u2029")
_SURROGATES = re.compile("[\ud800-\udfff]")
_REASONS = {int(status): status.phrase.encode() for status in HTTPStatus}


class HttpError(Exception):
    """A request is refused.

    Attributes:
        status: of the response.
        code: the ``message`` in its body, such as ``INVALID_TOPIC``.
        headers: further headers of the response.
    """

    def __init__(
        self, status: int, code: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code
        self.headers = headers

    def __str__(self) -> str:
        return f"{self.status} {self.code}"


# Parameters


def parse_query(raw: bytes) -> Query:
    """Return the first value of each name.

    Raises:
        HttpError: INVALID_REQUEST for a bad percent escape or a raw ``;``.
    """
    if b";" in raw or _BAD_ESCAPE.search(raw):
        raise HttpError(400, "INVALID_REQUEST")
    values: dict[bytes, bytes] = {}
    for piece in raw.split(b"&"):
        if piece:
            name, _, value = piece.replace(b"+", b" ").partition(b"=")
            values.setdefault(unquote_to_bytes(name), unquote_to_bytes(value))
    return values


def flag(values: Query, name: bytes, default: bool) -> bool:
    """Return a boolean parameter: ``true``, ``1``, ``false`` or ``0``; else the default."""
    return _FLAGS.get(values.get(name, b""), default)


def valid_topic_name(values: Query) -> str:
    """Return the parameter ``topic``.

    Raises:
        HttpError: MISSING_ARG_TOPIC, INVALID_TOPIC.
    """
    name = values.get(b"topic")
    if name is None:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    if not is_valid_name(name):
        raise HttpError(400, "INVALID_TOPIC")
    return name.decode("ascii")


def valid_argument(values: Query, name: bytes) -> str:
    """Return a topic or channel name, for endpoints whose refusals name the parameter.

    Raises:
        HttpError: MISSING_ARG_ or INVALID_ARG_ and the name.
    """
    value = values.get(name)
    parameter = name.decode().upper()
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{parameter}")
    if not is_valid_name(value):
        raise HttpError(400, f"INVALID_ARG_{parameter}")
    return value.decode("ascii")


# Bytes


def json_bytes(value: object) -> bytes:
    """Encode ``value`` as compact JSON; keys keep their order."""
    try:
        document = msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Lone surrogates, which UTF-8 cannot have.
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        document = _SURROGATES.sub("\ufffd", text).encode()
    for raw, escaped in _ESCAPED:
        if raw in document:
            document = document.replace(raw, escaped)
    return document


def reason(status: int) -> bytes:
    """Return the reason phrase of a status, such as ``Not Found``; empty if it has none."""
    return _REASONS.get(status, b"")
