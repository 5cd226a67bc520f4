"""One HTTP request with limits on its time and its size: to an nsqlookupd, an auth server or nsqd.

Each request has a connection of its own. Redirects are not followed. The texts of errors leave out
a URL's query and password, which may be secrets: logs show these texts.

It is built on h11 and trio rather than on httpcore2. Importing httpcore2 adds 65 ms of processor
time to the 460 ms of importing nsqd (medians of seven; it brings in anyio and truststore), and an
import at the first request would stop the event loop for that time. The limits on size and on
events in one turn, and texts without secrets, would be needed on top of it anyway.

Spec: nsqd-internals, section 9 (the lookup loop); client, section 3 (discovery); tcp-protocol,
section 9 (auth servers).
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

import h11
import trio

__all__ = [
    "Answer",
    "AnswerError",
    "AnswerTooBigError",
    "Dial",
    "GetConnectError",
    "GetError",
    "GetTimeoutError",
    "StreamedAnswer",
    "UrlError",
    "get",
    "limit_s",
    "post",
    "shown_url",
    "stream",
]

MAX_BODY_BYTES: Final = 5 * 1024 * 1024
"""Default maximum of a body: nsqd's default --max-body-size."""

_RECEIVE_BYTES: Final = 64 * 1024
_STREAM_BYTES: Final = 256 * 1024
# Read size until the response is known to be HTTP: an error of h11 quotes all of its input.
_HEAD_BYTES: Final = 8 * 1024
# Events of a response in one turn of the event loop: each may be of a single byte.
_MAX_EVENTS: Final = 128
# Characters of an error of h11 that are kept.
_MAX_SHOWN: Final = 200
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Dial: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Connects to a host and a port. Raises OSError."""


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


async def get(
    url: str,
    headers: Mapping[str, str] | None = None,
    connect_timeout_s: float = 2.0,
    request_timeout_s: float = 5.0,
    max_bytes: int = MAX_BODY_BYTES,
    *,
    ssl_context: ssl.SSLContext | None = None,
    dial: Dial = trio.open_tcp_stream,
) -> Answer:
    """Send GET for ``url`` and return the response, whatever its status.

    Cancelling closes the connection.

    Args:
        url: ``http://host:port/path?query`` or ``https://...``; the certificate is checked.
        headers: to send besides Host.
        connect_timeout_s: for the name, the connection and TLS, in seconds; 0: no limit.
        request_timeout_s: for the whole request, in seconds; 0: no limit.
        max_bytes: maximum size of the body.
        ssl_context: for https; by default it trusts the certificates of the system.
        dial: connects; tests replace it.

    Raises:
        UrlError, GetConnectError, GetTimeoutError, AnswerError, AnswerTooBigError: all of them are
            `GetError`.
    """
    limits = _Limits(limit_s(connect_timeout_s), limit_s(request_timeout_s), max_bytes)
    return await _send_request("GET", url, None, headers or {}, limits, ssl_context, dial)


async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    connect_timeout_s: float = 2.0,
    request_timeout_s: float = 5.0,
    max_bytes: int = MAX_BODY_BYTES,
    *,
    ssl_context: ssl.SSLContext | None = None,
    dial: Dial = trio.open_tcp_stream,
) -> Answer:
    """Send POST with ``body`` to ``url``; else as `get`."""
    limits = _Limits(limit_s(connect_timeout_s), limit_s(request_timeout_s), max_bytes)
    return await _send_request("POST", url, body, headers or {}, limits, ssl_context, dial)


class StreamedAnswer:
    """A response whose body is had in pieces, as it comes.

    Attributes:
        status: any status; the caller decides what it means.
        headers: by name in lower case; the last one of each name.
    """

    def __init__(
        self, where: str, silence_s: float, stream: trio.abc.Stream, connection: h11.Connection
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._where = where
        self._silence_s = silence_s
        self._stream = stream
        self._connection = connection

    def __repr__(self) -> str:
        return f"<StreamedAnswer {self._where} {self.status}>"

    async def receive(self) -> bytes:
        """Return the next piece of the body; empty at its end.

        Raises:
            GetTimeoutError: nothing came for too long.
            AnswerError: the connection broke before the end, or the response is not HTTP.
        """
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return b""

    async def receive_head(self) -> None:
        """Wait for status and headers; raises as `receive`."""
        while not self.status:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                self.status, self.headers = event.status_code, _headers_of(event)

    async def _next_event(self) -> h11.Event:
        await trio.lowlevel.checkpoint()
        try:
            while (event := self._connection.next_event()) is h11.NEED_DATA:
                with trio.move_on_after(self._silence_s) as scope:
                    nbytes = _STREAM_BYTES if self.status else _HEAD_BYTES
                    data = await self._stream.receive_some(nbytes)
                if scope.cancelled_caught:
                    text = f"{self._where}: nothing came for {self._silence_s:g} s"
                    raise GetTimeoutError(text)
                self._connection.receive_data(bytes(data))
        except trio.BrokenResourceError as error:
            raise AnswerError(f"the connection broke: {error.__cause__ or error}") from error
        except h11.RemoteProtocolError as error:
            what = "the response broke off" if self.status else "not an HTTP response"
            raise AnswerError(f"{what}: {str(error)[:_MAX_SHOWN]}") from None
        if isinstance(event, h11.ConnectionClosed) or not isinstance(event, h11.Event):
            raise AnswerError("the connection was closed before the end of the response")
        return event


@asynccontextmanager
async def stream(
    url: str,
    headers: Mapping[str, str] | None = None,
    connect_timeout_s: float = 2.0,
    silence_timeout_s: float = 5.0,
    *,
    ssl_context: ssl.SSLContext | None = None,
    dial: Dial = trio.open_tcp_stream,
) -> AsyncIterator[StreamedAnswer]:
    """Send GET for ``url``, and give the response when its head is there; leaving closes it.

    Args:
        url, headers, connect_timeout_s, ssl_context, dial: as for `get`.
        silence_timeout_s: the longest time without a byte, in seconds; 0: no limit.

    Raises:
        UrlError, GetConnectError, GetTimeoutError, AnswerError: all of them are `GetError`.
    """
    parts = _parts(url)
    request = _encode_request("GET", parts, None, headers or {})
    connection = await _connect(parts, limit_s(connect_timeout_s), ssl_context, dial)
    try:
        silence_s = limit_s(silence_timeout_s)
        answer = StreamedAnswer(shown_url(url), silence_s, connection, request.connection)
        try:
            await connection.send_all(request.data)
        except trio.BrokenResourceError as error:
            raise AnswerError(f"the connection broke: {error.__cause__ or error}") from error
        await answer.receive_head()
        yield answer
    finally:
        await trio.aclose_forcefully(connection)


def limit_s(timeout_s: float) -> float:
    """Return the limit of an option, where 0 or less means no limit."""
    return timeout_s if timeout_s > 0 else math.inf


@dataclass(frozen=True, slots=True)
class _Limits:
    connect_timeout_s: float
    request_timeout_s: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class _Request:
    """The bytes of a request, and the parser of its response."""

    connection: h11.Connection
    data: bytes = field(repr=False)


async def _send_request(
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    limits: _Limits,
    ssl_context: ssl.SSLContext | None,
    dial: Dial,
) -> Answer:
    parts = _parts(url)
    request = _encode_request(method, parts, body, headers)
    with trio.move_on_after(limits.request_timeout_s):
        stream = await _connect(parts, limits.connect_timeout_s, ssl_context, dial)
        try:
            return await _exchange(stream, request, limits.max_bytes)
        finally:
            # Not gracefully: a server that has stopped reading must not delay this.
            await trio.aclose_forcefully(stream)
    raise GetTimeoutError(f"{shown_url(url)}: no response within {limits.request_timeout_s:g} s")


def shown_url(url: str) -> str:
    """Return the URL for logs: without its query and password, which may be secrets."""
    scheme, separator, rest = url.partition("?")[0].partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UrlError(f"{shown_url(url)!r}: {error}") from error
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port == 0:
        raise UrlError(f"{shown_url(url)!r} is not the URL of an HTTP server")
    return parts


def _encode_request(
    method: str, parts: SplitResult, body: bytes | None, headers: Mapping[str, str]
) -> _Request:
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
        return _Request(connection, b"".join([connection.send(event) or b"" for event in events]))
    except (h11.LocalProtocolError, UnicodeError) as error:
        raise UrlError(f"{shown_url(parts.geturl())!r} cannot be requested: {error}") from error


async def _connect(
    parts: SplitResult, timeout_s: float, ssl_context: ssl.SSLContext | None, dial: Dial
) -> trio.abc.Stream:
    host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
    where = f"{host}:{port}"
    with trio.move_on_after(timeout_s):
        try:
            stream = await dial(host, port)
        except OSError as error:
            raise GetConnectError(f"{where}: {error}") from error
        except UnicodeError as error:  # of the lookup: a label of the name is empty or too long
            raise UrlError(f"{where!r} is not a host name: {error}") from error
        if parts.scheme == "http":
            return stream
        context = ssl_context or ssl.create_default_context()
        return await _secure(stream, host, where, context)
    raise GetTimeoutError(f"{where}: not connected within {timeout_s:g} s")


async def _secure(
    stream: trio.abc.Stream, host: str, where: str, context: ssl.SSLContext
) -> trio.abc.Stream:
    secured = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise GetConnectError(f"{where}: {error.__cause__ or error}") from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


async def _exchange(stream: trio.abc.Stream, request: _Request, max_bytes: int) -> Answer:
    try:
        await stream.send_all(request.data)
        return await _read(stream, request.connection, max_bytes)
    except trio.BrokenResourceError as error:
        raise AnswerError(f"the connection broke: {error.__cause__ or error}") from error
    except h11.RemoteProtocolError as error:
        # The text may quote the whole input.
        raise AnswerError(f"not an HTTP response: {str(error)[:_MAX_SHOWN]}") from None


async def _read(stream: trio.abc.Stream, connection: h11.Connection, max_bytes: int) -> Answer:
    status, headers, body = 0, dict[str, str](), bytearray()
    for number in count(1):
        if number % _MAX_EVENTS == 0:
            await trio.lowlevel.checkpoint()
        event = connection.next_event()
        if event is h11.NEED_DATA:
            size_bytes = _RECEIVE_BYTES if status else _HEAD_BYTES
            connection.receive_data(bytes(await stream.receive_some(size_bytes)))
        elif isinstance(event, h11.Response):
            status, headers = event.status_code, _headers_of(event)
            # h11 has checked that it is a number.
            if int(headers.get("content-length", "0")) > max_bytes:
                raise _too_big(max_bytes)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > max_bytes:
                raise _too_big(max_bytes)
        elif isinstance(event, h11.EndOfMessage):
            return Answer(status, headers, bytes(body))
        elif isinstance(event, h11.ConnectionClosed):
            break
    raise AnswerError("the connection was closed without a response")


def _headers_of(response: h11.Response) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}


def _too_big(max_bytes: int) -> AnswerTooBigError:
    return AnswerTooBigError(f"the response has more than {max_bytes} bytes")
