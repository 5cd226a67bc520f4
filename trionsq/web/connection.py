"""One HTTP connection: hypercorn's, with bounds on what it waits for.

What hypercorn leaves open and is closed here: a peer that takes no data (it would be waited for
for ever, and through a cancellation), an answer lost to a reset because the peer was still
sending, a peer that half closes before it reads the answer, and the descriptor of a connection
that has ended but whose idle time has not.
"""

from __future__ import annotations

from typing import Final

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper

from trionsq.transports.transport import TransportStream
from trionsq.web import limits
from trionsq.web.answers import reason

__all__ = ["HttpConnection"]

_READ_NBYTES_MAX: Final = 64 * 1024
_WRITE_NBYTES_MAX: Final = 64 * 1024
# How long a peer that has closed its sending half waits for its answer.
_HALF_CLOSED_S: Final = 5.0


class _Connection(h11.Connection):
    """What comes after the last request of a connection is no error: it is passed over.

    h11 refuses it, and hypercorn would send that instead of the answer to the request. It would
    send no reason phrase either, which the original's nsqadmin shows to its users.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        return h11.NEED_DATA if self.their_state is h11.MUST_CLOSE else super().next_event()

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        if isinstance(event, h11.Response) and not event.reason:
            event = h11.Response(
                status_code=event.status_code,
                headers=event.headers,
                http_version=event.http_version,
                reason=reason(event.status_code),
            )
        return super().send_with_data_passthrough(event)


class _Http1(H11Protocol):
    """HTTP/1 and nothing else: a wish to upgrade is passed over, as nsqd does."""

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
        self.connection = _Connection(
            h11.SERVER, max_incomplete_event_size=wrapper.config.h11_max_incomplete_size
        )

    async def _check_protocol(self, event: h11.Request) -> None:
        return None

    async def _create_stream(self, request: h11.Request) -> None:
        kept = [(name, value) for name, value in request.headers if name != b"upgrade"]
        if len(kept) != len(request.headers):
            request = h11.Request(
                method=request.method,
                target=request.target,
                headers=kept,
                http_version=request.http_version,
            )
        await super()._create_stream(request)


class HttpConnection(TCPServer):
    """Serves one connected stream; see `hypercorn.trio.tcp_server.TCPServer`."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        stream: trio.SocketStream | TransportStream,
        unread: bytes = b"",
    ) -> None:
        """``unread`` was read from the stream already, and comes first."""
        # hypercorn takes plain streams too, its annotation does not say so.
        super().__init__(app, config, context, {}, stream)  # type: ignore[arg-type]
        self._stream = stream
        self._unread = unread
        self._reading = trio.CancelScope()
        self._ending = False
        self._read_all = False
        # Set while no request waits for its answer.
        self._answered = trio.Event()
        self._answered.set()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
            return
        # A request's task is cancelled as soon as its answer is out; this must not be cut short.
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
        # Nobody would end an idle time that began after the reader went.
        if not self._read_all:
            await super().protocol_send(event)

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        async with self.send_lock:
            try:
                for start in range(0, len(data), _WRITE_NBYTES_MAX):
                    with trio.fail_after(limits.WRITE_STALL_S):
                        await self._stream.send_all(view[start : start + _WRITE_NBYTES_MAX])
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
        # Other streams than sockets are those under which there is TLS, unseen by hypercorn.
        is_https = isinstance(self._stream, TransportStream)
        wrapper.protocol = _Http1(wrapper, is_https=is_https)
        with self._reading:
            await self._read_to_the_end()
        self._read_all = True
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def _read_to_the_end(self) -> None:
        unread, self._unread = self._unread, b""
        for start in range(0, len(unread), _READ_NBYTES_MAX):
            if not self._ending:
                await self.protocol.handle(RawData(unread[start : start + _READ_NBYTES_MAX]))
        try:
            while data := await self._stream.receive_some(_READ_NBYTES_MAX):
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
