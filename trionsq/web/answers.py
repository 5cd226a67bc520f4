"""Responses with the headers and the JSON that nsqd has. Spec: nsqd-http, section 1."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from http.client import responses
from typing import Final, Self

from quart import Response
from quart.wrappers.response import DataBody

__all__ = [
    "SlicedBody",
    "empty",
    "encoded_document",
    "error",
    "json_bytes",
    "json_document",
    "options",
    "plain",
    "reason",
    "redirect",
    "text",
    "tls_required",
]

# Quart's test client takes no more than ten pieces of a body.
_SLICES_MAX: Final = 8
_SLICE_NBYTES_MIN: Final = 64 * 1024
_NSQ_TYPE = ("X-Nsq-Content-Type", "nsq; version=1.0")
_TEXT_TYPE = ("Content-Type", "text/plain; charset=utf-8")
_JSON_TYPE = ("Content-Type", "application/json; charset=utf-8")
_HTML_TYPE = ("Content-Type", "text/html; charset=utf-8")

# These can be part of a string only; nsqd writes them so that JSON may stand inside HTML.
_ESCAPED = re.compile("[<>&\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_REASONS = {status: phrase.encode() for status, phrase in responses.items()}
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


def _response(status: int, body: bytes, *headers: tuple[str, str]) -> Response:
    response = Response(body, status)
    del response.headers["Content-Type"]
    response.headers.extend(headers)
    return response


def text(body: str) -> Response:
    """A text such as ``OK``."""
    return _response(200, body.encode(errors="replace"), _TEXT_TYPE, _NSQ_TYPE)


def empty() -> Response:
    """Success with nothing to say."""
    return _response(200, b"", _NSQ_TYPE)


def plain(status: int, body: str) -> Response:
    """A text that is not marked as nsqd's: the answer of /ping."""
    return _response(status, body.encode(), _TEXT_TYPE)


def options(allow: str) -> Response:
    """The answer to OPTIONS."""
    return _response(200, b"", ("Allow", allow))


def json_bytes(value: object) -> bytes:
    """``value`` as compact JSON, keys in the order that they have."""
    document = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    document = _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", document)
    return _SURROGATES.sub("\ufffd", document).encode()


def json_document(value: object) -> Response:
    """A JSON document."""
    return encoded_document(json_bytes(value))


def encoded_document(document: bytes) -> Response:
    """A JSON document that is encoded already. A long one goes out slice by slice."""
    response = _response(200, b"", _JSON_TYPE, _NSQ_TYPE)
    response.response = SlicedBody(document)
    response.content_length = len(document)
    return response


class SlicedBody(DataBody):
    """A body that is sent in slices: a single write of 25 MB would hold up the event loop."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Slices(memoryview(self.data)[self.begin : self.end])


class _Slices:
    def __init__(self, left: memoryview) -> None:
        self._left = left
        self._nbytes = max(_SLICE_NBYTES_MIN, -(-len(left) // _SLICES_MAX))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        piece, self._left = self._left[: self._nbytes], self._left[self._nbytes :]
        return bytes(piece)


def error(status: int, code: str, allow: str | None = None) -> Response:
    """A refusal; ``allow`` are the methods of the path, for a 405."""
    response = _response(status, json_bytes({"message": code}), _JSON_TYPE, _NSQ_TYPE)
    if allow is not None:
        response.headers["Allow"] = allow
    return response


def tls_required(https_port: int) -> Response:
    """The refusal of a request that is to come by HTTPS, in the form that nsqd gives it."""
    document = {"message": "TLS_REQUIRED", "https_port": https_port}
    return _response(403, json.dumps(document).encode(), _JSON_TYPE, _NSQ_TYPE)


def reason(status: int) -> bytes:
    """What follows a status in its line: ``Not Found``."""
    return _REASONS.get(status, b"")


def redirect(method: str, location: str) -> Response:
    """To the right spelling of a path: 301 for GET, else 307, which keeps method and body."""
    if method != "GET":
        return _response(307, b"", ("Location", location))
    body = f'<a href="{location.translate(_HTML)}">Moved Permanently</a>.\n\n'
    return _response(301, body.encode(), _HTML_TYPE, ("Location", location))
