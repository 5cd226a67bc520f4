"""HTTP on a socket that is already listening.

Each connection begins on the short way; what that does not know goes to hypercorn and the
application, with the bytes already read.
"""

from __future__ import annotations

import gc
import importlib
import socket

import trio

from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.http.short import ShortConnection
from trionsq.http.short_way import ShortWay, WaitLimits
from trionsq.transports.certificates import ServerTls
from trionsq.transports.tls import HANDSHAKE_S, start_tls
from trionsq.transports.transport import SocketTransport, Transport
from trionsq.web import limits, pace
from trionsq.web.gate import Gate
from trionsq.web.mounts import NO_MOUNTS, Mounts, mounted
from trionsq.web.serve import WebServer, serve_web

__all__ = ["HttpServer", "gate_of", "serve_http"]


async def serve_http(
    broker: Broker,
    sock: socket.socket,
    *,
    short_way: bool = True,
    load_later: bool = False,
    tls: ServerTls | None = None,
    mounts: Mounts = NO_MOUNTS,
    gate: Gate | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the HTTP API of ``broker`` until cancelled, then close ``sock``, which is listening.

    On cancellation idle connections end at once, the others after their answer or a second.
    Without ``short_way`` the framework answers all. With ``load_later`` it is imported in a thread
    while the short way serves already; requests for the framework wait. With ``tls`` it is HTTPS;
    without, and with --tls-required, requests are refused. Requests below the paths of ``mounts``
    are theirs. All listeners of a broker share a ``gate``.
    """
    server = HttpServer(
        broker, short_way=short_way, load_later=load_later, tls=tls, mounts=mounts, gate=gate
    )
    await serve_web(server, sock, task_status)


def gate_of(options: NsqdOptions) -> Gate:
    """The gate before the HTTP of an nsqd with these options."""
    return Gate.of(options, options.broadcast_address)


class HttpServer(WebServer):
    """Serves connections, each in a task that is started for it."""

    def __init__(
        self,
        broker: Broker,
        *,
        short_way: bool = True,
        load_later: bool = False,
        tls: ServerTls | None = None,
        mounts: Mounts = NO_MOUNTS,
        gate: Gate | None = None,
    ) -> None:
        gate = gate_of(broker.options) if gate is None else gate
        is_open = tls is not None or broker.options.tls_required != "true"
        way = ShortWay(broker, _wait_limits(), gate.sites) if short_way and is_open else None
        super().__init__(None, None if way is None else _Front(way), gate)
        self._broker = broker
        self._mounts = mounts if is_open else NO_MOUNTS
        self._is_open = is_open
        self.is_plain = tls is None
        self._tls = tls
        self._clock = broker.clock
        if not load_later:
            self._load_app()

    async def prepare(self) -> None:
        await trio.to_thread.run_sync(_import_framework, abandon_on_cancel=True)
        self._load_app()
        if gc.get_freeze_count():
            # As at the start of nsqd: what was imported stays, the collector need not look at it.
            gc.freeze()

    def _load_app(self) -> None:
        from trionsq.http.app import create_app

        app = create_app(self._broker, is_open=self._is_open, gate=self._gate)
        self.load(mounted(app, self._mounts))

    async def open(self, accepted: socket.socket) -> Transport:
        transport = SocketTransport(accepted)
        if self._tls is None:
            return transport
        upgraded: Transport | None = None
        with trio.move_on_after(HANDSHAKE_S):
            upgraded = await start_tls(transport, self._tls.new_engine(self._clock.now_s()))
        if upgraded is None:
            raise TimeoutError("TLS handshake timed out")
        return upgraded


class _Front:
    """See `trionsq.web.serve.Front`: the short way."""

    def __init__(self, way: ShortWay) -> None:
        self._way = way
        self.watch = way.watch
        self.end = way.end

    async def serve(self, transport: Transport, *, to_loopback: bool) -> bytes | None:
        return await ShortConnection(self._way, transport, checks_hosts=to_loopback).run()


def _import_framework() -> None:
    for name in ("trionsq.web.framework", "trionsq.http.app"):
        importlib.import_module(name)


def _wait_limits() -> WaitLimits:
    return WaitLimits(
        request_s=limits.KEEP_ALIVE_S,
        body_s=limits.STALL_S,
        body_pace=pace.PACE,
        peer_s=limits.WRITE_STALL_S,
        linger_s=limits.LINGER_S,
    )
