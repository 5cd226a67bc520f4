"""HTTP on a socket that is already listening.

Each connection begins on the short way; what that does not know goes to hypercorn and the
application, with the bytes already read.
"""

from __future__ import annotations

import logging
import socket
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import wrap_app

from trionsq.broker.broker import Broker
from trionsq.broker.listener import accept_forever
from trionsq.broker.transport import SocketTransport
from trionsq.http import body, connection
from trionsq.http.app import create_app
from trionsq.http.connection import HttpConnection
from trionsq.http.short import ShortConnection
from trionsq.http.short_way import ShortWay, WaitLimits

__all__ = ["HttpServer", "serve_http"]

log = logging.getLogger("trionsq")

# A connection without a request, or whose request line and headers do not come, is closed then.
_KEEP_ALIVE_S: Final = 75.0
_HEADERS_NBYTES_MAX: Final = 64 * 1024
# At the end, requests under way get so long.
_GRACE_S: Final = 1.0


async def serve_http(
    broker: Broker,
    sock: socket.socket,
    *,
    short_way: bool = True,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the HTTP API of ``broker`` until cancelled, then close ``sock``, which is listening.

    On cancellation idle connections end at once, the others after their answer or a second.
    Without ``short_way`` the framework answers all.
    """
    server = HttpServer(broker, short_way=short_way)
    async with trio.open_nursery() as nursery:
        connections = await nursery.start(server.hold_connections)
        try:
            await accept_forever(
                sock,
                lambda accepted: connections.start_soon(server.serve, accepted),
                task_status,
            )
        finally:
            await server.end()


class HttpServer:
    """Serves connections, each in a task that is started for it."""

    def __init__(self, broker: Broker, *, short_way: bool = True) -> None:
        self._app = wrap_app(create_app(broker), 0, "asgi")
        self._config = _config()
        self._context = WorkerContext(None)
        self._way = ShortWay(broker, _wait_limits()) if short_way else None

    async def hold_connections(
        self, task_status: trio.TaskStatus[trio.Nursery] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the nursery of the connections, apart from the cancellation that ends a listener."""
        with trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as nursery:
                if self._way is not None:
                    nursery.start_soon(self._way.watch)
                async with trio.open_nursery() as connections:
                    task_status.started(connections)
                    await self._context.terminated.wait()
                    scope.deadline = trio.current_time() + _GRACE_S
                nursery.cancel_scope.cancel()

    async def end(self) -> None:
        """Begin the end of `hold_connections`."""
        await self._context.terminated.set()
        if self._way is not None:
            self._way.end()

    async def serve(self, accepted: socket.socket) -> None:
        """A connection's life. What goes wrong costs it alone."""
        try:
            unread = await self._short_way(accepted)
            if unread is not None:
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
                await HttpConnection(self._app, self._config, self._context, stream, unread).run()
        except* OSError as errors:
            log.debug("HTTP: connection lost: %s", errors.exceptions[0])
        except* Exception:
            # A defect of ours or of a library.
            log.exception("HTTP: connection failed")
        finally:
            trio.lowlevel.notify_closing(accepted)
            accepted.close()

    async def _short_way(self, accepted: socket.socket) -> bytes | None:
        """Serve what is asked for; what the framework is to go on with, None if that is nothing."""
        if self._way is None:
            return b""
        return await ShortConnection(self._way, SocketTransport(accepted)).run()


def _wait_limits() -> WaitLimits:
    return WaitLimits(
        request_s=_KEEP_ALIVE_S,
        body_s=body.STALL_S,
        peer_s=connection.WRITE_STALL_S,
        linger_s=connection.LINGER_S,
    )


def _config() -> Config:
    config = Config()
    config.errorlog = log
    config.include_server_header = False
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.keep_alive_max_requests = 2**31
    config.h11_max_incomplete_size = _HEADERS_NBYTES_MAX
    return config
