"""One HTTP request with limits on its time and on its size: to an nsqlookupd or an auth server.

A connection is made for each request and closed after it. Redirections are not followed. The texts
of errors leave out a URL's query and password: logs show them, and they may be secrets.

Spec: nsqd-internals, section 9 (the lookup loop); client, section 3 (discovery); tcp-protocol,
section 9 (auth servers).
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
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
    "UrlError",
    "get",
    "limit_s",
    "post",
    "shown_url",
]

MAX_BODY_BYTES: Final = 5 * 1024 * 1024
"""Default bound of a body: nsqd's default --max-body-size."""

_RECEIVE_BYTES: Final = 64 * 1024
# Until it is known to be HTTP: an error of h11 holds, and quotes, all that there is.
_HEAD_BYTES: Final = 8 * 1024
# Parts of an answer that are read in one turn of the event loop: they may have a byte each.
_MAX_EVENTS: Final = 128
# Characters of what is wrong with an answer.
_MAX_SHOWN: Final = 200
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Dial: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Connects to a host and a port. Raises OSError."""


class GetError(Exception):
    """There is no answer; the text says why."""


class UrlError(GetError, ValueError):
    """That is no URL of an HTTP server."""


class GetConnectError(GetError):
    """The server can't be reached: name, connection or TLS."""


class GetTimeoutError(GetError):
    """It took too long."""


class AnswerError(GetError):
    """What came is not HTTP, or the connection broke before its end."""


class AnswerTooBigError(GetError):
    """The body is larger than the caller allows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said.

    Attributes:
        status: as 200 or 404. Whether that is good is for the caller to say.
        headers: by name in lower case; the last one of each name.
        body: all of it.
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
    """Ask for ``url`` and return the answer, whatever its status.

    Cancelling closes the connection.

    Args:
        url: ``http://host:port/path?query`` or ``https://...``; the certificate is checked.
        headers: to send besides Host.
        connect_timeout_s: for the name, the connection and TLS, in seconds; 0: no limit.
        request_timeout_s: for everything, in seconds; 0: no limit.
        max_bytes: of the answer's body.
        ssl_context: for https; by default one that trusts what the system trusts.
        dial: connects; for tests.

    Raises:
        UrlError, GetConnectError, GetTimeoutError, AnswerError, AnswerTooBigError: all of them are
            `GetError`.
    """
    limits = _Limits(limit_s(connect_timeout_s), limit_s(request_timeout_s), max_bytes)
    return await _ask("GET", url, None, headers or {}, limits, ssl_context, dial)


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
    """Send ``body`` to ``url``; else like `get`."""
    limits = _Limits(limit_s(connect_timeout_s), limit_s(request_timeout_s), max_bytes)
    return await _ask("POST", url, body, headers or {}, limits, ssl_context, dial)


def limit_s(timeout_s: float) -> float:
    """A time-out as the options have it, where 0 and less mean that there is none."""
    return timeout_s if timeout_s > 0 else math.inf


@dataclass(frozen=True, slots=True)
class _Limits:
    connect_timeout_s: float
    request_timeout_s: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request: its bytes, and what reads the answer to it."""

    connection: h11.Connection
    data: bytes = field(repr=False)


async def _ask(
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    limits: _Limits,
    ssl_context: ssl.SSLContext | None,
    dial: Dial,
) -> Answer:
    parts = _parts(url)
    sent = _request(method, parts, body, headers)
    with trio.move_on_after(limits.request_timeout_s):
        stream = await _connect(parts, limits.connect_timeout_s, ssl_context, dial)
        try:
            return await _exchange(stream, sent, limits.max_bytes)
        finally:
            # Not gracefully: a server that has stopped listening must not hold us.
            await trio.aclose_forcefully(stream)
    raise GetTimeoutError(f"{shown_url(url)}: no answer within {limits.request_timeout_s:g} s")


def shown_url(url: str) -> str:
    """The URL for logs: without what may be secret in it, its query and its password."""
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


def _request(
    method: str, parts: SplitResult, body: bytes | None, headers: Mapping[str, str]
) -> _Sent:
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
        return _Sent(connection, b"".join([connection.send(event) or b"" for event in events]))
    except (h11.LocalProtocolError, UnicodeError) as error:
        raise UrlError(f"{shown_url(parts.geturl())!r} can't be asked for: {error}") from error


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
        except UnicodeError as error:  # from looking it up: an empty or too long part of a name
            raise UrlError(f"{where!r} is no host: {error}") from error
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


async def _exchange(stream: trio.abc.Stream, sent: _Sent, max_bytes: int) -> Answer:
    try:
        await stream.send_all(sent.data)
        return await _read(stream, sent.connection, max_bytes)
    except trio.BrokenResourceError as error:
        raise AnswerError(f"the connection broke: {error.__cause__ or error}") from error
    except h11.RemoteProtocolError as error:
        # Its text may quote all that came.
        raise AnswerError(f"not an HTTP answer: {str(error)[:_MAX_SHOWN]}") from None


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
            status = event.status_code
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers
            }
            # h11 has seen to it that it is a number.
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
    raise AnswerError("the connection was closed without an answer")


def _too_big(max_bytes: int) -> AnswerTooBigError:
    return AnswerTooBigError(f"the answer has more than {max_bytes} bytes")
