"""Parameters: they come from the query string only, and the first value of each wins.

Spec: nsqd-http, section 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from trionsq.web.errors import HttpError
from trionsq.wire.names import is_valid_name

__all__ = ["Query", "flag", "parse_query", "valid_argument", "valid_topic_name"]

Query = Mapping[bytes, bytes]

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_FLAGS = {b"true": True, b"1": True, b"false": False, b"0": False}


def parse_query(raw: bytes) -> Query:
    """The first value of each name.

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
    """A boolean parameter: ``true``, ``1``, ``false``, ``0``; anything else is the default."""
    return _FLAGS.get(values.get(name, b""), default)


def valid_topic_name(values: Query) -> str:
    """The parameter ``topic``.

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
    """A topic or channel name, where refusals are spelled after the parameter.

    Raises:
        HttpError: MISSING_ARG_ or INVALID_ARG_ and the name.
    """
    given = values.get(name)
    shown = name.decode().upper()
    if given is None:
        raise HttpError(400, f"MISSING_ARG_{shown}")
    if not is_valid_name(given):
        raise HttpError(400, f"INVALID_ARG_{shown}")
    return given.decode("ascii")
