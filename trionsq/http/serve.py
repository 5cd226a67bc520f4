"""HTTP on a socket that is already listening.

Each connection begins on the short way; what that does not know goes to hypercorn and the
application, with the bytes already read.
"""

from __future__ import annotations

import socket

import trio

from trionsq.broker.broker import Broker
from trionsq.http.app import create_app
from trionsq.http.short import ShortConnection
from trionsq.http.short_way import ShortWay, WaitLimits
from trionsq.transport import SocketTransport
from trionsq.web import body, connection, serve
from trionsq.web.serve import WebServer, serve_web

__all__ = ["HttpServer", "serve_http"]


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
    await serve_web(HttpServer(broker, short_way=short_way), sock, task_status)


class HttpServer(WebServer):
    """Serves connections, each in a task that is started for it."""

    def __init__(self, broker: Broker, *, short_way: bool = True) -> None:
        front = _Front(ShortWay(broker, _wait_limits())) if short_way else None
        super().__init__(create_app(broker), front)


class _Front:
    """See `trionsq.web.serve.Front`: the short way."""

    def __init__(self, way: ShortWay) -> None:
        self._way = way
        self.watch = way.watch
        self.end = way.end

    async def serve(self, accepted: socket.socket) -> bytes | None:
        return await ShortConnection(self._way, SocketTransport(accepted)).run()


def _wait_limits() -> WaitLimits:
    return WaitLimits(
        request_s=serve.KEEP_ALIVE_S,
        body_s=body.STALL_S,
        peer_s=connection.WRITE_STALL_S,
        linger_s=connection.LINGER_S,
    )
