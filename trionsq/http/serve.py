"""What serves the application: hypercorn's HTTP on a socket that is already listening."""

from __future__ import annotations

import logging
import socket
from functools import partial
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper
from hypercorn.utils import wrap_app

from trionsq.broker.broker import Broker
from trionsq.broker.listener import accept_forever
from trionsq.http.app import create_app
from trionsq.http.connection import HttpConnection

__all__ = ["serve_http"]

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
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the HTTP API of ``broker`` until cancelled, then close ``sock``, which is listening.

    On cancellation idle connections end at once, the others after their answer or a second.
    """
    context = WorkerContext(None)
    serve = partial(_serve_connection, wrap_app(create_app(broker), 0, "asgi"), _config(), context)
    async with trio.open_nursery() as nursery:
        connections = await nursery.start(_hold_connections, context)
        try:
            await accept_forever(
                sock, lambda accepted: connections.start_soon(serve, accepted), task_status
            )
        finally:
            await context.terminated.set()


async def _hold_connections(
    context: WorkerContext, task_status: trio.TaskStatus[trio.Nursery]
) -> None:
    """Keep the nursery of the connections, apart from the cancellation that ends the listener."""
    with trio.CancelScope(shield=True) as scope:
        async with trio.open_nursery() as connections:
            task_status.started(connections)
            await context.terminated.wait()
            scope.deadline = trio.current_time() + _GRACE_S


async def _serve_connection(
    app: AppWrapper, config: Config, context: WorkerContext, accepted: socket.socket
) -> None:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
    try:
        await HttpConnection(app, config, context, stream).run()
    except* OSError as errors:
        log.debug("HTTP: connection lost: %s", errors.exceptions[0])
    except* Exception:
        # A defect of ours or of a library: it costs this connection, and no other.
        log.exception("HTTP: connection failed")
    finally:
        stream.socket.close()


def _config() -> Config:
    config = Config()
    config.errorlog = log
    config.include_server_header = False
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.keep_alive_max_requests = 2**31
    config.h11_max_incomplete_size = _HEADERS_NBYTES_MAX
    return config
