"""Answers that are not of nsqd's kind: HTML, and JSON of any length."""

from __future__ import annotations

import msgspec
from quart import Response

from trionsq.web.answers import json_bytes

__all__ = ["html", "json_answer"]

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


def json_answer(value: object) -> Response:
    """As `trionsq.web.answers.json_document`, for documents of many megabytes too."""
    response = Response(_encoded(value), 200)
    response.headers["Content-Type"] = "application/json; charset=utf-8"
    response.headers["X-Nsq-Content-Type"] = "nsq; version=1.0"
    return response


def _encoded(value: object) -> bytes:
    try:
        document = msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json_bytes(value)  # it knows of lone surrogates
    for raw, escaped in _ESCAPED:
        document = document.replace(raw, escaped)
    return document
