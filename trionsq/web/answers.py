"""Responses with the headers and the JSON that nsqd has. Spec: nsqd-http, section 1."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Final

from quart import Response

from trionsq.web.text import json_bytes, reason

__all__ = [
    "empty",
    "encoded_document",
    "error",
    "json_bytes",
    "json_document",
    "json_pieces",
    "options",
    "plain",
    "reason",
    "redirect",
    "text",
    "text_pieces",
    "tls_required",
]

# Quart's test client takes no more than ten pieces of a body.
_SLICES_MAX: Final = 8
_SLICE_NBYTES_MIN: Final = 64 * 1024
_NSQ_TYPE = ("X-Nsq-Content-Type", "nsq; version=1.0")
_TEXT_TYPE = ("Content-Type", "text/plain; charset=utf-8")
_JSON_TYPE = ("Content-Type", "application/json; charset=utf-8")
_HTML_TYPE = ("Content-Type", "text/html; charset=utf-8")

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


def json_document(value: object) -> Response:
    """A JSON document. A large one is to be made in turns; see `json_pieces`."""
    return _response(200, json_bytes(value), _JSON_TYPE, _NSQ_TYPE)


def encoded_document(document: bytes) -> Response:
    """A JSON document that is encoded already. A long one goes out slice by slice."""
    view = memoryview(document)
    nbytes = max(_SLICE_NBYTES_MIN, -(-len(view) // _SLICES_MAX))
    return json_pieces([view[start : start + nbytes] for start in range(0, len(view), nbytes)])


def json_pieces(pieces: Sequence[bytes | memoryview]) -> Response:
    """A JSON document that was made piece by piece."""
    return _in_pieces(pieces, _JSON_TYPE, _NSQ_TYPE)


def text_pieces(pieces: Sequence[bytes]) -> Response:
    """As `text`, of a text that was made piece by piece."""
    return _in_pieces(pieces, _TEXT_TYPE, _NSQ_TYPE)


def _in_pieces(pieces: Sequence[bytes | memoryview], *headers: tuple[str, str]) -> Response:
    """Each piece is sent by itself, so that no step of the event loop copies them all."""
    response = Response(_one_by_one(pieces), 200)
    del response.headers["Content-Type"]
    response.headers.extend((*headers, ("Content-Length", str(sum(map(len, pieces))))))
    return response


async def _one_by_one(pieces: Sequence[bytes | memoryview]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield bytes(piece)


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


def redirect(method: str, location: str) -> Response:
    """To the right spelling of a path: 301 for GET, else 307, which keeps method and body."""
    if method != "GET":
        return _response(307, b"", ("Location", location))
    body = f'<a href="{location.translate(_HTML)}">Moved Permanently</a>.\n\n'
    return _response(301, body.encode(), _HTML_TYPE, ("Location", location))
