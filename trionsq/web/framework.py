"""What serves a connection with an application: hypercorn. It takes long to import."""

from __future__ import annotations

import logging
import socket
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework
from hypercorn.utils import wrap_app

from trionsq.transports.transport import SocketTransport, Transport, TransportStream
from trionsq.web import limits
from trionsq.web.connection import HttpConnection

__all__ = ["Framework"]

log = logging.getLogger("trionsq")

_HEADERS_NBYTES_MAX: Final = 64 * 1024


class Framework:
    """An application, and what it needs to be served."""

    def __init__(self, app: ASGIFramework) -> None:
        self._app = wrap_app(app, 0, "asgi")
        self._config = _config()
        self._context = WorkerContext(None)

    async def serve(self, transport: Transport, accepted: socket.socket, unread: bytes) -> None:
        """Serve a connection to its end; ``unread`` was read from it already, and comes first."""
        stream = _stream(transport, accepted)
        await HttpConnection(self._app, self._config, self._context, stream, unread).run()

    async def end(self) -> None:
        """End idle connections now, the others after their answer."""
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
    config.h11_max_incomplete_size = _HEADERS_NBYTES_MAX
    return config
