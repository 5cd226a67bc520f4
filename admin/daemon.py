"""One nsqadmin from start to stop: sockets, HTTP, tasks.

Tasks: an HTTP server for each socket, and those of `Dashboard.tasks`. At stop,
event streams end, HTTP requests in progress get a second, then queued notifications get one.
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager

import httpx2
import trio

from admin.access.guard import open_access
from admin.alerts import Alerts
from admin.app import create_admin_app, gate_of
from admin.dashboard import Dashboard
from admin.notify import Notifier
from admin.options import NsqadminOptions, OptionsError, validated
from admin.upstream import Upstream
from trionsq.daemon.gcpolicy import start_collecting, tune_gc
from trionsq.daemon.listener import ListenError, bound_address, open_sockets
from trionsq.daemon.looplag import LOOP_LAG_BOUNDS_S, watch_loop_lag
from trionsq.histogram import Histogram
from trionsq.hostport import split_address
from trionsq.web.serve import WebServer, serve_web

__all__ = ["listening_hosts", "open_dashboard", "run_nsqadmin", "running_nsqadmin"]

log = logging.getLogger("trionsq")


Task = Callable[[], Awaitable[None]]


async def _run(task: Task) -> None:
    await task()


@asynccontextmanager
async def open_dashboard(
    options: NsqadminOptions,
    hosts: tuple[str, ...],
    port: int,
    *,
    transport: httpx2.AsyncBaseTransport | None = None,
    run: Callable[[Task], Awaitable[None]] = _run,
) -> AsyncIterator[Dashboard]:
    """A dashboard without a socket, whose tasks run inside the context.

    Args:
        options: as given.
        hosts: the listening addresses, without port; "" is a unix socket.
        port: the listening port; -1: a unix socket.
        transport: reaches all nodes, instead of the network.
        run: runs each task of the dashboard.

    Raises:
        OptionsError: an option is not valid.
    """
    options = validated(options)
    if transport is None:
        await _resolve("lookupd", options.lookupd_http_address)
        await _resolve("nsqd", options.nsqd_http_address)
    access = open_access(options, hosts)
    access.port = port
    async with Upstream(options, transport) as upstream, trio.open_nursery() as nursery:
        dashboard = Dashboard(options, upstream, access, http_port=port)
        if options.notification_http_endpoint:
            dashboard.notify = Notifier(options)
            dashboard.observers.append(dashboard.notify.queue_notification)
            dashboard.tasks.append(("nsqadmin notifications", dashboard.notify.run))

        if options.alert_http_endpoint:
            alerts = Alerts(options)
            dashboard.poller.observers.append(alerts.note_snapshot)
            dashboard.tasks.append(("nsqadmin alerts", alerts.run))

        def start_task(name: str, task: Task) -> None:
            nursery.start_soon(run, task, name=name)

        for name, task in dashboard.tasks:
            start_task(name, task)
        dashboard.start_task = start_task
        try:
            yield dashboard
        finally:
            dashboard.stopping.set()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def running_nsqadmin(options: NsqadminOptions) -> AsyncIterator[Dashboard]:
    """An nsqadmin that serves inside the context.

    Raises:
        ListenError: an address can't be listened on.
        OptionsError: an option is not valid.
    """
    options = validated(options)
    with ExitStack() as sockets:
        http = await _open(options.http_address, sockets)
        hosts, port = listening_hosts(http), _port_of(http)
        async with open_dashboard(options, hosts, port) as dashboard:
            _announce(http)
            dashboard.loop_lag_s = Histogram(LOOP_LAG_BOUNDS_S)
            gate = gate_of(dashboard)
            app = create_admin_app(dashboard, gate)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch_loop_lag, dashboard.loop_lag_s, name="event loop lag")
                for sock in http:
                    name = f"http server {bound_address(sock)[0]}"
                    await nursery.start(serve_web, WebServer(app, gate=gate), sock, name=name)
                sockets.pop_all()  # each listener closes its own socket
                try:
                    yield dashboard
                finally:
                    log.info("NSQADMIN: stopping")
                    dashboard.stopping.set()
                    nursery.cancel_scope.cancel()


async def _resolve(kind: str, addresses: tuple[str, ...]) -> None:
    """Raise OptionsError unless all addresses can be resolved."""
    for address in addresses:
        target = split_address(address)
        try:
            if target is None:
                raise ValueError("not host:port")
            await trio.socket.getaddrinfo(*target, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:  # UnicodeError, of odd names, is a ValueError
            reason = f"failed to resolve --{kind}-http-address ({address}) - {error}"
            raise OptionsError(reason) from None


async def _open(address: str, opened: ExitStack) -> list[socket.socket]:
    if not address:
        raise ListenError(address, "no address")
    return [opened.enter_context(sock) for sock in await open_sockets(address)]


def listening_hosts(sockets: Iterable[socket.socket]) -> tuple[str, ...]:
    """The addresses of listening sockets, without port; "" is a unix socket."""
    return tuple("" if s.family == socket.AF_UNIX else s.getsockname()[0] for s in sockets)


def _port_of(sockets: list[socket.socket]) -> int:
    return bound_address(sockets[-1])[1]


def _announce(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        log.info("HTTP: listening on %s", bound_address(sock)[0])


async def run_nsqadmin(options: NsqadminOptions) -> int:
    """Run until SIGINT or SIGTERM, and return the exit code, 0.

    Raises:
        ListenError: an address can't be listened on.
        OptionsError: an option is not valid.
    """
    tune_gc()
    start_collecting()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with running_nsqadmin(options):
            await anext(signals)
    log.info("NSQADMIN: bye")
    return 0
