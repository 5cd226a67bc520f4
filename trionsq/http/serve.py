"""The HTTP API of a broker on a listening socket.

Each connection begins on the fast path. With the first request that the fast path does not know,
hypercorn and the application take over, with the bytes that were read.
"""

from __future__ import annotations

import errno
import gc
import importlib
import logging
import os
import socket
from typing import Final

import trio

from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.http.fast_connection import FastConnection
from trionsq.http.fast_path import FastPath, WaitLimits
from trionsq.transports.certificates import ServerTls
from trionsq.transports.tls import HANDSHAKE_S, start_tls
from trionsq.transports.transport import Transport
from trionsq.transports.trio_sockets import SocketTransport
from trionsq.web import limits
from trionsq.web.gate import Gate
from trionsq.web.serve import NO_MOUNTS, Mounts, WebServer, mounted, serve_web

__all__ = ["HttpServer", "gate_of", "serve_http"]

log = logging.getLogger("trionsq")

# An import reads files; the error may be an ImportError with the system's text.
_NO_DESCRIPTORS: Final = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))
_RETRY_S: Final = 1.0


async def serve_http(
    broker: Broker,
    sock: socket.socket,
    *,
    fast_path: bool = True,
    load_later: bool = False,
    tls: ServerTls | None = None,
    mounts: Mounts = NO_MOUNTS,
    gate: Gate | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the HTTP API of ``broker`` until cancelled, then close ``sock``, which is listening.

    On cancellation idle connections end at once, the others after their response or a second.

    Args:
        broker: the broker.
        sock: a listening socket.
        fast_path: use the fast path; if not, the framework answers all requests.
        load_later: import the framework in a thread while the fast path already serves; requests
            for the framework wait.
        tls: serve HTTPS. Without it, and with --tls-required, requests are refused.
        mounts: applications that get the requests below their paths.
        gate: shared by all listeners of a broker.
        task_status: started when connections are accepted.
    """
    server = HttpServer(
        broker, fast_path=fast_path, load_later=load_later, tls=tls, mounts=mounts, gate=gate
    )
    await serve_web(server, sock, task_status)


def gate_of(options: NsqdOptions) -> Gate:
    """Return the gate before the HTTP of an nsqd with these options."""
    return Gate.of(options, options.broadcast_address)


class HttpServer(WebServer):
    """Serves connections, each in a task of its own."""

    def __init__(
        self,
        broker: Broker,
        *,
        fast_path: bool = True,
        load_later: bool = False,
        tls: ServerTls | None = None,
        mounts: Mounts = NO_MOUNTS,
        gate: Gate | None = None,
    ) -> None:
        gate = gate_of(broker.options) if gate is None else gate
        is_open = tls is not None or broker.options.tls_required != "true"
        # The fast path knows no users.
        fast_path = fast_path and is_open and broker.users is None
        path = FastPath(broker, _wait_limits(), gate.sites) if fast_path else None
        super().__init__(None, None if path is None else _Front(path), gate)
        self._broker = broker
        self._mounts = mounts if is_open else NO_MOUNTS
        self._is_open = is_open
        self.is_plain = tls is None
        self._tls = tls
        self._clock = broker.clock
        if not load_later:
            self._load_app()

    async def prepare(self) -> None:
        is_logged = False
        while True:
            try:
                await trio.to_thread.run_sync(_import_framework, abandon_on_cancel=True)
                self._load_app()
                break
            except (OSError, ImportError) as error:
                if not any(text in str(error) for text in _NO_DESCRIPTORS):
                    raise
                if not is_logged:
                    log.error("HTTP: only publishing works, trying to load the rest: %s", error)
                is_logged = True
                await trio.sleep(_RETRY_S)
        if gc.get_freeze_count():
            # As at the start of nsqd: imported modules stay, so the collector can skip them.
            gc.freeze()

    def _load_app(self) -> None:
        from trionsq.http.access import may_use
        from trionsq.http.app import create_app
        from trionsq.web.access import HttpAccess

        users = self._broker.users
        access = None if users is None else HttpAccess(users, may_use)
        app = create_app(self._broker, is_open=self._is_open, gate=self._gate, access=access)
        self.load(mounted(app, self._mounts))

    async def open(self, accepted: socket.socket) -> Transport:
        transport = SocketTransport(accepted)
        if self._tls is None:
            return transport
        upgraded: Transport | None = None
        engine = self._tls.new_engine(self._clock.now_s())
        with trio.move_on_after(HANDSHAKE_S):
            upgraded = await start_tls(transport, engine)
        if upgraded is None:
            raise TimeoutError("TLS handshake timed out")
        if self._broker.users is not None:
            from trionsq.web.access import client_certificate

            client_certificate.set(engine.info().common_name)
        return upgraded


class _Front:
    """The fast path, as a `trionsq.web.serve.Front`."""

    def __init__(self, fast_path: FastPath) -> None:
        self._fast_path = fast_path
        self.watch_connections = fast_path.watch_connections
        self.end_connections = fast_path.end_connections

    async def serve_connection(self, transport: Transport, *, to_loopback: bool) -> bytes | None:
        return await FastConnection(self._fast_path, transport, checks_hosts=to_loopback).run()


def _import_framework() -> None:
    for name in ("trionsq.web.framework", "trionsq.http.app"):
        importlib.import_module(name)


def _wait_limits() -> WaitLimits:
    return WaitLimits(
        request_s=limits.KEEP_ALIVE_S,
        body_s=limits.STALL_S,
        body_pace=limits.PACE,
        peer_s=limits.WRITE_STALL_S,
        linger_s=limits.LINGER_S,
    )
