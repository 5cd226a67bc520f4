"""An HTTP request and its response as bytes, with limits: what `trionsq.httpget` and the client's
discovery have in common.

The texts of errors leave out a URL's query and password, which may be secrets: logs show these
texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

import h11

__all__ = [
    "DEFAULT_PORTS",
    "HEAD_BYTES",
    "MAX_BODY_BYTES",
    "MAX_SHOWN",
    "Answer",
    "AnswerError",
    "AnswerReader",
    "AnswerTooBigError",
    "GetConnectError",
    "GetError",
    "GetTimeoutError",
    "Request",
    "UrlError",
    "encode_request",
    "headers_of",
    "may_pass",
    "shown_url",
    "split_url",
]

MAX_BODY_BYTES: Final = 5 * 1024 * 1024
"""Default maximum of a body: nsqd's default --max-body-size."""
HEAD_BYTES: Final = 8 * 1024
"""Read size until the response is known to be HTTP: an error of h11 quotes all of its input."""
MAX_SHOWN: Final = 200
"""Characters of an error of h11 that are kept."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_RECEIVE_BYTES: Final = 64 * 1024
# Events of a response in one turn of the event loop: each may be of a single byte.
_MAX_EVENTS: Final = 128


class GetError(Exception):
    """The request failed; the text says why."""


class UrlError(GetError, ValueError):
    """Not a URL of an HTTP server."""


class GetConnectError(GetError):
    """The server cannot be reached: name, connection or TLS."""


class GetTimeoutError(GetError):
    """A time limit has passed."""


class AnswerError(GetError):
    """The response is not HTTP, or the connection broke before its end."""


class AnswerTooBigError(GetError):
    """The body is larger than the caller allows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response.

    Attributes:
        status: any status; the caller decides what it means.
        headers: by name in lower case; the last one of each name.
        body: the whole body.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def may_pass(status: int) -> bool:
    """Whether the same request may well be answered later: an error of the server, or its limit."""
    return status >= _SERVER_ERROR or status == _TOO_MANY


def shown_url(url: str) -> str:
    """Return the URL for logs: without its query and password, which may be secrets."""
    scheme, separator, rest = url.partition("?")[0].partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL. Raises UrlError if it is not that of an HTTP server."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UrlError(f"{shown_url(url)!r}: {error}") from error
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0:
        raise UrlError(f"{shown_url(url)!r} is not the URL of an HTTP server")
    return parts


@dataclass(frozen=True, slots=True)
class Request:
    """The bytes of a request, and the parser of its response."""

    connection: h11.Connection
    data: bytes = field(repr=False)


def encode_request(
    method: str, parts: SplitResult, body: bytes | None, headers: Mapping[str, str]
) -> Request:
    """Return the bytes of a request, and the parser of its response. Raises UrlError."""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    length = [] if body is None else [("Content-Length", str(len(body)))]
    connection = h11.Connection(h11.CLIENT)
    try:
        request = h11.Request(
            method=method,
            target=target.encode("ascii"),
            headers=[("Host", host), ("Connection", "close"), *length, *headers.items()],
        )
        events = [request, *([h11.Data(body)] if body else []), h11.EndOfMessage()]
        return Request(connection, b"".join([connection.send(event) or b"" for event in events]))
    except (h11.LocalProtocolError, UnicodeError) as error:
        raise UrlError(f"{shown_url(parts.geturl())!r} cannot be requested: {error}") from error


class AnswerReader:
    """Reads one response from its bytes.

    Attributes:
        needs_data: whether `advance` needs more input: at most `read_bytes` of it, by `feed`.
    """

    def __init__(self, connection: h11.Connection, max_bytes: int) -> None:
        """``connection`` has sent the request; ``max_bytes``: maximum size of the body."""
        self.needs_data = False
        self._connection = connection
        self._max_bytes = max_bytes
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    @property
    def read_bytes(self) -> int:
        """How many bytes to read next, at most."""
        return _RECEIVE_BYTES if self._status else HEAD_BYTES

    def feed(self, data: bytes) -> None:
        """Add received bytes; none: the end of the stream.

        Raises:
            AnswerError: the stream has ended before.
        """
        try:
            self._connection.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise _not_http(error) from None

    def advance(self) -> Answer | None:
        """Handle what has come, a bounded part of it; return the response when it is complete.

        Raises:
            AnswerError: it is not HTTP, or broke off.
            AnswerTooBigError: the body is too large.
        """
        self.needs_data = False
        for _ in range(_MAX_EVENTS):
            try:
                event = self._connection.next_event()
            except h11.RemoteProtocolError as error:
                raise _not_http(error) from None
            if event is h11.NEED_DATA:
                self.needs_data = True
                return None
            if isinstance(event, h11.Response):
                self._status, self._headers = event.status_code, headers_of(event)
                # h11 has checked that it is a number.
                self._check_size(int(self._headers.get("content-length", "0")))
            elif isinstance(event, h11.Data):
                self._body += event.data
                self._check_size(len(self._body))
            elif isinstance(event, h11.EndOfMessage):
                return Answer(self._status, self._headers, bytes(self._body))
            elif isinstance(event, h11.ConnectionClosed):
                raise AnswerError("the connection was closed without a response")
        return None

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self._max_bytes:
            raise AnswerTooBigError(f"the response has more than {self._max_bytes} bytes")


def _not_http(error: h11.RemoteProtocolError) -> AnswerError:
    # The text may quote the whole input.
    return AnswerError(f"not an HTTP response: {str(error)[:MAX_SHOWN]}")


def headers_of(response: h11.Response) -> dict[str, str]:
    """Return the headers by name in lower case; the last one of each name."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
