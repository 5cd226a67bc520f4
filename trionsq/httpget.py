"""One HTTP request with limits on its time and its size: to an nsqlookupd, an auth server or nsqd.

Each request has a connection of its own. Redirects are not followed. `trionsq.httpmessage` has the
bytes.

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
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import SplitResult

import h11
import trio

from trionsq.httpmessage import (
    DEFAULT_PORTS,
    HEAD_BYTES,
    MAX_BODY_BYTES,
    MAX_SHOWN,
    Answer,
    AnswerError,
    AnswerReader,
    AnswerTooBigError,
    GetConnectError,
    GetError,
    GetTimeoutError,
    Request,
    UrlError,
    encode_request,
    headers_of,
    shown_url,
    split_url,
)

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

_STREAM_BYTES: Final = 256 * 1024

Dial: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Connects to a host and a port. Raises OSError."""


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
                self.status, self.headers = event.status_code, headers_of(event)

    async def _next_event(self) -> h11.Event:
        await trio.lowlevel.checkpoint()
        try:
            while (event := self._connection.next_event()) is h11.NEED_DATA:
                with trio.move_on_after(self._silence_s) as scope:
                    nbytes = _STREAM_BYTES if self.status else HEAD_BYTES
                    data = await self._stream.receive_some(nbytes)
                if scope.cancelled_caught:
                    text = f"{self._where}: nothing came for {self._silence_s:g} s"
                    raise GetTimeoutError(text)
                self._connection.receive_data(bytes(data))
        except trio.BrokenResourceError as error:
            raise AnswerError(f"the connection broke: {error.__cause__ or error}") from error
        except h11.RemoteProtocolError as error:
            what = "the response broke off" if self.status else "not an HTTP response"
            raise AnswerError(f"{what}: {str(error)[:MAX_SHOWN]}") from None
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
    parts = split_url(url)
    request = encode_request("GET", parts, None, headers or {})
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


async def _send_request(
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    limits: _Limits,
    ssl_context: ssl.SSLContext | None,
    dial: Dial,
) -> Answer:
    parts = split_url(url)
    request = encode_request(method, parts, body, headers)
    with trio.move_on_after(limits.request_timeout_s):
        stream = await _connect(parts, limits.connect_timeout_s, ssl_context, dial)
        try:
            return await _exchange(stream, request, limits.max_bytes)
        finally:
            # Not gracefully: a server that has stopped reading must not delay this.
            await trio.aclose_forcefully(stream)
    raise GetTimeoutError(f"{shown_url(url)}: no response within {limits.request_timeout_s:g} s")


async def _connect(
    parts: SplitResult, timeout_s: float, ssl_context: ssl.SSLContext | None, dial: Dial
) -> trio.abc.Stream:
    host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
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


async def _exchange(stream: trio.abc.Stream, request: Request, max_bytes: int) -> Answer:
    reader = AnswerReader(request.connection, max_bytes)
    try:
        await stream.send_all(request.data)
        while (answer := reader.advance()) is None:
            if reader.needs_data:
                reader.feed(bytes(await stream.receive_some(reader.read_bytes)))
            else:
                await trio.lowlevel.checkpoint()
        return answer
    except trio.BrokenResourceError as error:
        raise AnswerError(f"the connection broke: {error.__cause__ or error}") from error
