"""hypercorn and quart-trio as our servers need them. Everything that we override is in this file.

What is overridden, and the upstream change that would end it:

- `_H11Connection`: bytes after the last request of a connection are ignored, answers have a reason
  phrase, and an answer that precedes its request's body announces the close. Ends with: hypercorn
  sends the phrase of ``http.HTTPStatus``, stops feeding h11 after ``Connection: close``, and sends
  that header before it closes.
- `_Http1`: HTTP/1 only, and a wish to upgrade is ignored, as in nsqd. Ends with: a list of
  protocols in hypercorn's `Config` that also rules out h2c and prior-knowledge HTTP/2.
- `HttpConnection` (hypercorn's `TCPServer`): a limit on how long a write waits for the peer; after
  the last answer, input is read until the peer closes, so that no reset takes the answer away; an
  answer is still sent to a peer that has closed its sending half; bytes that were read before are
  handed in; the idle task ends with the connection. Ends with: a write timeout, a lingering close
  and half-close support in hypercorn.
- `BoundedBody` (quart-trio's `TrioBody`, with its private `_data`): at most a limit of a body waits
  to be read, the endpoint chooses the response to a larger one, and a slow sender is given up.
  Ends with: a limit in quart-trio that raises in the reader instead of answering 413 by itself.
- `BoundedApp`: Host headers that quart fails on, and request targets with a scheme and a host. Ends
  with: quart accepts any Host header.

It takes long to import, so nsqd imports it in a thread while it already serves.
"""

from __future__ import annotations

import logging
import socket
from typing import Final

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    AppWrapper,
    ASGIFramework,
    ASGIReceiveCallable,
    ASGISendCallable,
    Scope,
)
from hypercorn.utils import wrap_app
from quart_trio import QuartTrio
from quart_trio.wrappers.request import TrioBody, TrioRequest

from trionsq.transports.transport import Transport
from trionsq.transports.trio_sockets import SocketTransport, TransportStream
from trionsq.web import limits
from trionsq.web.limits import PACE, PaceWatch
from trionsq.web.protocol import reason

__all__ = ["BoundedApp", "BoundedBody", "BoundedRequest", "Framework", "HttpConnection"]

log = logging.getLogger("trionsq")

_MAX_READ_BYTES: Final = 64 * 1024
_MAX_WRITE_BYTES: Final = 64 * 1024
# h11's default is 16 KiB; the original allows 1 MiB (Go's DefaultMaxHeaderBytes).
_MAX_HEADERS_BYTES: Final = 64 * 1024
# The time for a response after the peer has closed its sending half.
_HALF_CLOSED_S: Final = 5.0


class Framework:
    """An application, served by hypercorn."""

    def __init__(self, app: ASGIFramework) -> None:
        self._app = wrap_app(app, 0, "asgi")
        self._config = _config()
        self._context = WorkerContext(None)

    async def serve(self, transport: Transport, accepted: socket.socket, unread: bytes) -> None:
        """Serve a connection to its end; ``unread`` is input that was read from it before."""
        stream = _stream(transport, accepted)
        await HttpConnection(self._app, self._config, self._context, stream, unread).run()

    async def end_connections(self) -> None:
        """End idle connections now, the others after their response."""
        await self._context.terminated.set()


def _stream(transport: Transport, accepted: socket.socket) -> trio.SocketStream | TransportStream:
    sock = trio.socket.from_stdlib_socket(accepted)
    if isinstance(transport, SocketTransport):
        return trio.SocketStream(sock)
    return TransportStream(transport, sock)


def _config() -> Config:
    config = Config()
    config.errorlog = log
    config.include_server_header = False
    config.keep_alive_timeout = limits.KEEP_ALIVE_S
    config.keep_alive_max_requests = 2**31
    config.h11_max_incomplete_size = _MAX_HEADERS_BYTES
    return config


# hypercorn


class _H11Connection(h11.Connection):
    """Ignores input after the last request, and completes the heads of responses.

    h11 refuses such input, and hypercorn would send that refusal instead of the response. The
    original's nsqadmin shows the reason phrase to its users. hypercorn closes a connection whose
    request is answered before its body was read; unless the response says so, a client may send
    its next request into the close.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        return h11.NEED_DATA if self.their_state is h11.MUST_CLOSE else super().next_event()

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        if isinstance(event, h11.Response):
            unread = self.their_state is h11.SEND_BODY
            event = h11.Response(
                status_code=event.status_code,
                headers=[*event.headers, (b"connection", b"close")] if unread else event.headers,
                http_version=event.http_version,
                reason=event.reason or reason(event.status_code),
            )
        return super().send_with_data_passthrough(event)


class _Http1(H11Protocol):
    """HTTP/1 and nothing else: a wish to upgrade is ignored, as the original does."""

    def __init__(self, wrapper: ProtocolWrapper, *, is_https: bool) -> None:
        super().__init__(
            wrapper.app,
            wrapper.config,
            wrapper.context,
            wrapper.task_group,
            wrapper.state,
            is_https,
            wrapper.client,
            wrapper.server,
            wrapper.send,
        )
        self.connection = _H11Connection(
            h11.SERVER, max_incomplete_event_size=wrapper.config.h11_max_incomplete_size
        )

    async def _check_protocol(self, event: h11.Request) -> None:
        return None

    async def _create_stream(self, request: h11.Request) -> None:
        headers = [(name, value) for name, value in request.headers if name != b"upgrade"]
        if len(headers) != len(request.headers):
            request = h11.Request(
                method=request.method,
                target=request.target,
                headers=headers,
                http_version=request.http_version,
            )
        await super()._create_stream(request)


class HttpConnection(TCPServer):
    """Serves one connection; see `hypercorn.trio.tcp_server.TCPServer`."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        stream: trio.SocketStream | TransportStream,
        unread: bytes = b"",
    ) -> None:
        """``unread`` is input that was read from the stream before."""
        # hypercorn accepts plain streams too; its annotation does not say so.
        super().__init__(app, config, context, {}, stream)  # type: ignore[arg-type]
        self._stream = stream
        self._unread = unread
        self._reading = trio.CancelScope()
        self._ending = False
        self._read_all = False
        # Set while no request waits for its response.
        self._answered = trio.Event()
        self._answered.set()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
            return
        # A request's task is cancelled as soon as its response is sent; this has to finish.
        with trio.CancelScope(shield=True):
            if isinstance(event, Closed):
                await self._end_sending()
            elif isinstance(event, Updated):
                await self._update(event)
        if isinstance(event, Closed):
            await self.protocol.handle(event)

    async def _update(self, event: Updated) -> None:
        if event.idle:
            self._answered.set()
        else:
            self._answered = trio.Event()
        # After the reader has ended, nothing would stop an idle task that begins now.
        if not self._read_all:
            await super().protocol_send(event)

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        async with self.send_lock:
            try:
                for start in range(0, len(data), _MAX_WRITE_BYTES):
                    with trio.fail_after(limits.WRITE_STALL_S):
                        await self._stream.send_all(view[start : start + _MAX_WRITE_BYTES])
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                self._reading.cancel()

    async def _end_sending(self) -> None:
        self._ending = True
        self._answered.set()
        self._reading.deadline = trio.current_time() + limits.LINGER_S
        async with self.send_lock:
            try:
                await self._stream.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._reading.cancel()

    async def _read_data(self) -> None:
        wrapper = self.protocol
        # Only TLS connections come as another stream than a socket; hypercorn sees no TLS.
        is_https = isinstance(self._stream, TransportStream)
        wrapper.protocol = _Http1(wrapper, is_https=is_https)
        with self._reading:
            await self._read_to_the_end()
        self._read_all = True
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def _read_to_the_end(self) -> None:
        unread, self._unread = self._unread, b""
        for start in range(0, len(unread), _MAX_READ_BYTES):
            if not self._ending:
                await self.protocol.handle(RawData(unread[start : start + _MAX_READ_BYTES]))
        try:
            while data := await self._stream.receive_some(_MAX_READ_BYTES):
                if not self._ending:
                    await self.protocol.handle(RawData(bytes(data)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        with trio.move_on_after(_HALF_CLOSED_S):
            await self._answered.wait()
        if not self._ending:
            await self.protocol.handle(RawData(b""))

    async def _close(self) -> None:
        await trio.aclose_forcefully(self._stream)


# quart-trio


class BoundedBody(TrioBody):
    """A request body that holds no more than a limit; the rest is discarded.

    quart's own limit answers 413 by itself; here the endpoint chooses the response.

    Attributes:
        overflowed: bytes were discarded.
        received_bytes: size of all pieces so far, discarded ones included.
    """

    def __init__(self, expected_bytes: int | None, limit: int | None) -> None:
        assert limit is not None
        super().__init__(None, None)
        self._limit = limit
        self.overflowed = False
        self.received_bytes = 0
        self._watch: PaceWatch | None = None

    def append(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self.overflowed:
            return
        room = self._limit - len(self._data)
        super().append(data[:room])
        if len(data) > room:
            self.overflowed = True
            self.set_complete()

    async def next_piece(self) -> bytes:
        """Wait for more bytes and return them; ``b""`` at the end.

        Raises:
            trio.TooSlowError: the sender stalls, or is slower than `PACE`.
        """
        now_s = trio.current_time()
        watch = self._watch = self._watch or PaceWatch(PACE, now_s)
        stalled_s = now_s + limits.STALL_S
        while watch.keeps_up(now_s, self.received_bytes):
            with trio.move_on_at(min(stalled_s, watch.due_s)):
                return await anext(self, b"")
            now_s = trio.current_time()
            if now_s >= stalled_s:
                break
        raise trio.TooSlowError


class BoundedRequest(TrioRequest):
    """A request whose body is a `BoundedBody`."""

    body_class: type[TrioBody] = BoundedBody


class BoundedApp(QuartTrio):
    """An application whose requests are `BoundedRequest`s."""

    request_class = BoundedRequest

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] == "http":
            trio.lowlevel.current_task().name = "http request"
            # quart fails on some Host headers. The original value is kept under a name that no
            # client can send.
            others = [pair for pair in scope["headers"] if pair[0] != b"host"]
            original = [(b":authority", pair[1]) for pair in scope["headers"] if pair[0] == b"host"]
            scope["headers"] = [(b"host", b"localhost"), *original, *others]
            if not scope["path"].startswith("/"):
                # A proxy's request has scheme and host in its target; quart fails on some of them.
                rest = scope["path"].partition("://")[2]
                scope["path"] = "/" + rest.partition("/")[2]
        await super().__call__(scope, receive, send)
