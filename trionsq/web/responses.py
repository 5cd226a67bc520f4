"""Responses with nsqd's headers and JSON, and large documents that are made in turns.

Spec: nsqd-http, section 1.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

import trio
from quart import Response

from trionsq.web.protocol import json_bytes

__all__ = [
    "PIECE_BYTES",
    "Pieces",
    "SharedDocuments",
    "attachment",
    "empty",
    "encoded_document",
    "error",
    "html",
    "json_document",
    "json_pieces",
    "options",
    "plain",
    "redirect",
    "text",
    "text_pieces",
    "tls_required",
]

# Quart's test client takes no more than ten pieces of a body.
_MAX_SLICES: Final = 8
_MIN_SLICE_BYTES: Final = 64 * 1024
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
    """Return a text such as ``OK``."""
    return _response(200, body.encode(errors="replace"), _TEXT_TYPE, _NSQ_TYPE)


def empty() -> Response:
    """Return success with an empty body."""
    return _response(200, b"", _NSQ_TYPE)


def plain(status: int, body: str) -> Response:
    """Return a text without nsqd's own header: the response of /ping."""
    return _response(status, body.encode(), _TEXT_TYPE)


def options(allow: str) -> Response:
    """Return the response to OPTIONS."""
    return _response(200, b"", ("Allow", allow))


def json_document(value: object) -> Response:
    """Return a JSON document. Make a large one in turns; see `json_pieces`."""
    return _response(200, json_bytes(value), _JSON_TYPE, _NSQ_TYPE)


def encoded_document(document: bytes) -> Response:
    """Return an encoded JSON document. A long one is sent slice by slice."""
    view = memoryview(document)
    slice_bytes = max(_MIN_SLICE_BYTES, -(-len(view) // _MAX_SLICES))
    return json_pieces(
        [view[start : start + slice_bytes] for start in range(0, len(view), slice_bytes)]
    )


def json_pieces(pieces: Sequence[bytes | memoryview]) -> Response:
    """Return a JSON document that was made piece by piece."""
    return _in_pieces(pieces, _JSON_TYPE, _NSQ_TYPE)


def text_pieces(pieces: Sequence[bytes]) -> Response:
    """Return a text that was made piece by piece; else as `text`."""
    return _in_pieces(pieces, _TEXT_TYPE, _NSQ_TYPE)


def _in_pieces(pieces: Sequence[bytes | memoryview], *headers: tuple[str, str]) -> Response:
    """Send each piece by itself, so that no step of the event loop copies them all."""
    response = Response(_one_by_one(pieces), 200)
    del response.headers["Content-Type"]
    response.headers.extend((*headers, ("Content-Length", str(sum(map(len, pieces))))))
    return response


async def _one_by_one(pieces: Sequence[bytes | memoryview]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield bytes(piece)


def error(status: int, code: str, allow: str | None = None) -> Response:
    """Return a refusal; ``allow`` are the methods of the path, for a 405."""
    response = _response(status, json_bytes({"message": code}), _JSON_TYPE, _NSQ_TYPE)
    if allow is not None:
        response.headers["Allow"] = allow
    return response


def tls_required(https_port: int) -> Response:
    """Return the refusal of a request that has to come by HTTPS, as nsqd writes it."""
    document = {"message": "TLS_REQUIRED", "https_port": https_port}
    return _response(403, json.dumps(document).encode(), _JSON_TYPE, _NSQ_TYPE)


def redirect(method: str, location: str) -> Response:
    """Return a redirect to a path: 301 for GET, else 307, which keeps method and body."""
    if method != "GET":
        return _response(307, b"", ("Location", location))
    body = f'<a href="{location.translate(_HTML)}">Moved Permanently</a>.\n\n'
    return _response(301, body.encode(), _HTML_TYPE, ("Location", location))


def html(body: str) -> Response:
    """Return an HTML page."""
    return Response(body.encode(), 200, content_type="text/html; charset=utf-8")


def attachment(body: bytes, filename: str, content_type: str) -> Response:
    """Return a file to be saved."""
    response = Response(body, 200, content_type=content_type)
    response.headers["Content-Disposition"] = f'attachment; filename="{filename}"'
    return response


# Documents that are made in turns


T = TypeVar("T")

PIECE_BYTES: Final = 64 * 1024
"""Documents that are made in turns are kept, and sent, in pieces of about this size."""


class Pieces:
    """A growing document. Small parts are joined to a few large pieces."""

    __slots__ = ("_parts", "_size_bytes", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def add(self, part: bytes) -> None:
        """Add the next part."""
        self._parts.append(part)
        self._size_bytes += len(part)
        if self._size_bytes >= PIECE_BYTES:
            self._join()

    def finish(self) -> list[bytes]:
        """Return all pieces."""
        self._join()
        return self.pieces

    def _join(self) -> None:
        if self._parts:
            self.pieces.append(b"".join(self._parts))
            self._parts.clear()
            self._size_bytes = 0


class _Request(Generic[T]):
    """A document that is wanted and not yet begun; further requests for it wait here."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.document: tuple[T] | None = None


class SharedDocuments(Generic[T]):
    """Makes documents, a few at once, and shares each among the requests that wait for it.

    A document is shared only by requests that came before it was begun, so each response shows
    everything that happened before its request.
    """

    def __init__(self, max_at_once: int) -> None:
        """``max_at_once``: how many documents are made at the same time."""
        self._limiter = trio.CapacityLimiter(max_at_once)
        self._waiting: dict[Hashable, _Request[T]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the document of that key, made by ``make``.

        If the request that makes it is cancelled or fails, a waiting request makes it instead.
        """
        while (request := self._waiting.get(key)) is not None:
            await request.ended.wait()
            if request.document is not None:
                return request.document[0]
        request = self._waiting[key] = _Request()
        try:
            async with self._limiter:
                del self._waiting[key]
                document = await make()
            request.document = (document,)
            return document
        finally:
            if self._waiting.get(key) is request:
                del self._waiting[key]
            request.ended.set()
