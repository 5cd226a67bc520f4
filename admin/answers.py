"""Answers that are not of nsqd's kind: HTML, and JSON of any length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec
from quart import Response

from trionsq.web.protocol import json_bytes
from trionsq.web.responses import encoded_document

__all__ = ["encoded", "html", "json_answer", "json_response"]

_PIECE_ITEMS: Final = 200

# These can be part of a string only; NSQ writes them so that JSON may stand inside HTML.
_ESCAPED = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


def html(page: str, status: int = 200) -> Response:
    """A page. Its type names no charset, as the original's; the page itself has to."""
    response = Response(page.encode(errors="replace"), status)
    response.headers["Content-Type"] = "text/html"
    return response


def json_answer(value: Mapping[str, object]) -> Response:
    """As `trionsq.web.responses.json_document`, faster."""
    return json_response(encoded(value))


def json_response(document: bytes) -> Response:
    """A JSON document that is encoded already."""
    return encoded_document(document)


def encoded(value: Mapping[str, object]) -> bytes:
    """``value`` as JSON. Long members are encoded in pieces: other threads may run in between."""
    members = [_encoded(key) + b":" + b"".join(_pieces(member)) for key, member in value.items()]
    return b"{%b}" % b",".join(members)


def _pieces(value: object) -> Iterator[bytes]:
    if isinstance(value, list) and len(value) > _PIECE_ITEMS:
        yield b"["
        for first in range(0, len(value), _PIECE_ITEMS):
            yield (b"," if first else b"") + _encoded(value[first : first + _PIECE_ITEMS])[1:-1]
        yield b"]"
    elif isinstance(value, dict) and len(value) > _PIECE_ITEMS:
        yield b"{"
        items = iter(value.items())
        comma = b""
        while piece := dict(islice(items, _PIECE_ITEMS)):
            yield comma + _encoded(piece)[1:-1]
            comma = b","
        yield b"}"
    else:
        yield _encoded(value)


def _encoded(value: object) -> bytes:
    try:
        document = msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json_bytes(value)  # it knows of lone surrogates
    for raw, escaped in _ESCAPED:
        document = document.replace(raw, escaped)
    return document
