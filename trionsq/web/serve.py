"""HTTP on a socket that is already listening: hypercorn, with bounds and an orderly end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Final, Protocol

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework
from hypercorn.utils import wrap_app

from trionsq.listener import accept_forever
from trionsq.transport import SocketTransport, Transport
from trionsq.upgrades.stream import TransportStream
from trionsq.web.connection import HttpConnection
from trionsq.web.gate import Gate
from trionsq.web.sites import ends_at_loopback

__all__ = ["GRACE_S", "KEEP_ALIVE_S", "Front", "WebServer", "serve_web"]

log = logging.getLogger("trionsq")

# A connection without a request, or whose request line and headers do not come, is closed then.
KEEP_ALIVE_S: Final = 75.0
# At the end, requests under way get so long.
GRACE_S: Final = 1.0
_HEADERS_NBYTES_MAX: Final = 64 * 1024


class Front(Protocol):
    """What may answer a connection's requests before the framework sees them."""

    async def watch(self) -> None:
        """Runs as long as there are connections."""

    def end(self) -> None:
        """End idle connections now, the others after their answer."""

    async def serve(self, transport: Transport, *, to_loopback: bool) -> bytes | None:
        """Serve what is asked for; ``to_loopback``: on a loopback address.

        Returns:
            What was read and the framework is to go on with; None: the connection has ended.
        """


class WebServer:
    """Serves connections, each in a task that is started for it."""

    is_plain = True
    """Whether it is HTTP without TLS."""

    def __init__(
        self, app: ASGIFramework, front: Front | None = None, gate: Gate | None = None
    ) -> None:
        """``gate`` says how many connections there may be; without it, any number."""
        self._app = wrap_app(app, 0, "asgi")
        self._config = _config()
        self._context = WorkerContext(None)
        self._front = front
        self._gate = Gate() if gate is None else gate

    async def hold_connections(
        self, task_status: trio.TaskStatus[trio.Nursery] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the nursery of the connections, apart from the cancellation that ends a listener."""
        with trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as nursery:
                if self._front is not None:
                    nursery.start_soon(self._front.watch)
                async with trio.open_nursery() as connections:
                    task_status.started(connections)
                    await self._context.terminated.wait()
                    scope.deadline = trio.current_time() + GRACE_S
                nursery.cancel_scope.cancel()

    async def end(self) -> None:
        """Begin the end of `hold_connections`."""
        await self._context.terminated.set()
        if self._front is not None:
            self._front.end()

    async def open(self, accepted: socket.socket) -> Transport:
        """The transport of a connection; here its bytes as they are.

        Raises:
            OSError: it can't be had.
        """
        return SocketTransport(accepted)

    def accept(self, accepted: socket.socket, connections: trio.Nursery) -> None:
        """Serve a connection in a task of its own, or close it if there are too many."""
        limit = self._gate.connections
        if limit.admit(accepted, is_plain=self.is_plain):
            connections.start_soon(self.serve, accepted, limit.leave)

    async def serve(
        self, accepted: socket.socket, ended: Callable[[], None] = lambda: None
    ) -> None:
        """A connection's life. What goes wrong costs it alone. ``ended`` is called at the end."""
        try:
            transport = await self.open(accepted)
            unread = await self._before_the_framework(transport, accepted)
            if unread is not None:
                stream = _stream(transport, accepted)
                await HttpConnection(self._app, self._config, self._context, stream, unread).run()
        except* OSError as errors:
            log.debug("HTTP: connection lost: %s", errors.exceptions[0])
        except* Exception:
            # A defect of ours or of a library.
            log.exception("HTTP: connection failed")
        finally:
            trio.lowlevel.notify_closing(accepted)
            accepted.close()
            ended()

    async def _before_the_framework(
        self, transport: Transport, accepted: socket.socket
    ) -> bytes | None:
        if self._front is None:
            return b""
        return await self._front.serve(transport, to_loopback=ends_at_loopback(accepted))


def _stream(transport: Transport, accepted: socket.socket) -> trio.SocketStream | TransportStream:
    sock = trio.socket.from_stdlib_socket(accepted)
    if isinstance(transport, SocketTransport):
        return trio.SocketStream(sock)
    return TransportStream(transport, sock)


async def serve_web(
    server: WebServer,
    sock: socket.socket,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept and serve until cancelled, then close ``sock``, which is listening.

    On cancellation idle connections end at once, the others after their answer or a second.
    """
    async with trio.open_nursery() as nursery:
        connections = await nursery.start(server.hold_connections)
        try:
            await accept_forever(
                sock,
                lambda accepted: server.accept(accepted, connections),
                task_status,
            )
        finally:
            await server.end()


def _config() -> Config:
    config = Config()
    config.errorlog = log
    config.include_server_header = False
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.keep_alive_max_requests = 2**31
    config.h11_max_incomplete_size = _HEADERS_NBYTES_MAX
    return config
