"""nsqadmin inside an nsqd (``--admin``): pages below /admin, about this node.

Its requests go to the nsqd in process, through the same HTTP API, without TLS, addresses and limits
on connections. Errors of the dashboard are logged and never affect the broker.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import httpx2
import trio
from hypercorn.typing import ASGIFramework

from admin.app import create_admin_app
from admin.daemon import listening_hosts, open_dashboard
from admin.options import NsqadminOptions
from admin.options import OptionsError as AdminOptionsError
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions, OptionsError
from trionsq.http.app import create_app
from trionsq.web.serve import Mounts

__all__ = ["PATH", "Mount", "running_mount"]

log = logging.getLogger("trionsq")

PATH: Final = "/admin"
"""The path of the dashboard."""


class Mount:
    """A dashboard that runs beside a broker.

    Attributes:
        apps: the applications for nsqd's HTTP servers.
        stopping: set at stop; event streams end then.
    """

    def __init__(self) -> None:
        self.apps: Mounts = {}
        self.stopping = trio.Event()
        self._scopes: list[trio.CancelScope] = []

    def stop(self) -> None:
        """End tasks and streams. Requests in progress are still answered."""
        self.stopping.set()
        for scope in self._scopes:
            scope.cancel()

    async def run(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task until `stop`."""
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                await task()
            except Exception:
                # A bug in the dashboard must not stop the broker; its pages are not live any more.
                log.exception("ADMIN: a task of the dashboard failed")


@asynccontextmanager
async def running_mount(
    broker: Broker, sockets: Sequence[socket.socket], port: int
) -> AsyncIterator[Mount]:
    """The dashboard of ``broker``, whose tasks run inside the context.

    Args:
        broker: it need not run yet.
        sockets: where the dashboard is served.
        port: of HTTP; it is part of the node's name.

    Raises:
        OptionsError: an option of the dashboard is not valid.
    """
    mount = Mount()
    # Typed in two ways, by hypercorn and by httpx2; both mean ASGI.
    app = cast(Any, create_app(broker))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    options = _options(broker.options, port)
    hosts = listening_hosts(sockets)
    try:
        async with open_dashboard(
            options, hosts, port, transport=transport, run=mount.run
        ) as dashboard:
            mount.stopping = dashboard.stopping
            mount.apps = {PATH: cast(ASGIFramework, create_admin_app(dashboard))}
            yield mount
    except AdminOptionsError as error:
        raise OptionsError(f"--admin: {error}") from None


def _options(options: NsqdOptions, port: int) -> NsqadminOptions:
    return NsqadminOptions(
        base_path=PATH,
        nsqd_http_address=(f"127.0.0.1:{port}",),
        access=options.admin_access,
        users_file=options.admin_users_file,
        log_level=options.log_level,
        log_format=options.log_format,
        debug_from=options.debug_from,
        http_allow_origin=options.http_allow_origin,
        http_allow_host=(*options.http_allow_host, options.broadcast_address),
    )
