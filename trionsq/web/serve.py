"""HTTP on a listening socket: connections, their orderly end, and applications below a path."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import trio

from trionsq.daemon.listener import accept_forever, peer_address
from trionsq.logtext import first_error
from trionsq.transports.transport import Transport
from trionsq.transports.trio_sockets import SocketTransport
from trionsq.web import limits
from trionsq.web.gate import Gate
from trionsq.web.sites import ends_at_loopback

if TYPE_CHECKING:
    # Types only: both take long to import, and the first requests do not wait for that.
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

    from trionsq.web.framework import Framework

__all__ = ["NO_MOUNTS", "Front", "Mounts", "WebServer", "mounted", "serve_web"]

log = logging.getLogger("trionsq")


Mounts: TypeAlias = "Mapping[str, ASGIFramework]"
"""Applications by the path that they are below: ``/some`` also stands for ``/some/...``."""

NO_MOUNTS: Final[Mounts] = MappingProxyType({})


def mounted(app: ASGIFramework, mounts: Mounts) -> ASGIFramework:
    """Return ``app`` with ``mounts``, which get requests below their paths, path unchanged."""
    if not mounts:
        return app

    async def dispatch(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await _chosen(app, mounts, scope)(scope, receive, send)

    return dispatch


def _chosen(app: ASGIFramework, mounts: Mounts, scope: Scope) -> ASGIFramework:
    if scope["type"] == "http":
        for prefix, other in mounts.items():
            if scope["path"] == prefix or scope["path"].startswith(f"{prefix}/"):
                return other
    return app


class Front(Protocol):
    """Answers requests of a connection before the framework sees them: the fast path."""

    async def watch_connections(self) -> None:
        """Run as long as there are connections."""

    def end_connections(self) -> None:
        """End idle connections now, the others after their response."""

    async def serve_connection(self, transport: Transport, *, to_loopback: bool) -> bytes | None:
        """Serve the requests that it can; ``to_loopback``: the connection is to loopback.

        Returns:
            Input that the framework has to begin with; None: the connection has ended.
        """


class WebServer:
    """Serves connections, each in a task of its own."""

    is_plain = True
    """Whether it is HTTP without TLS."""

    def __init__(
        self, app: ASGIFramework | None, front: Front | None = None, gate: Gate | None = None
    ) -> None:
        """Make a server.

        Args:
            app: answers what ``front`` does not; None: `prepare` loads it.
            front: answers requests first, if any.
            gate: limits the number of connections; without it, there is no limit.
        """
        self._framework: Framework | None = None
        self._loaded = trio.Event()
        self._ending = trio.Event()
        if app is not None:
            self.load(app)
        self._front = front
        self._gate = Gate() if gate is None else gate

    def load(self, app: ASGIFramework) -> None:
        """Use ``app`` from now on. Connections that need it have waited for this."""
        from trionsq.web.framework import Framework

        self._framework = Framework(app)
        self._loaded.set()

    async def prepare(self) -> None:
        """Load the application, if there is none. Runs while the first connections are served."""

    async def hold_connections(
        self, task_status: trio.TaskStatus[trio.Nursery] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Hold the nursery of the connections, which outlives the cancellation of the listener."""
        with trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as nursery:
                if self._front is not None:
                    nursery.start_soon(self._front.watch_connections, name="http time-outs")
                if self._framework is None:
                    nursery.start_soon(self.prepare, name="start of the http server")
                async with trio.open_nursery() as connections:
                    task_status.started(connections)
                    await self._ending.wait()
                    scope.deadline = trio.current_time() + limits.GRACE_S
                nursery.cancel_scope.cancel()

    async def end_connections(self) -> None:
        """Let `hold_connections` end: idle connections now, the others within a second."""
        self._ending.set()
        if self._framework is not None:
            await self._framework.end_connections()
        if self._front is not None:
            self._front.end_connections()

    async def open(self, accepted: socket.socket) -> Transport:
        """Return the transport of a connection; here its bytes as they are.

        Raises:
            OSError: the connection broke.
        """
        return SocketTransport(accepted)

    def accept(self, accepted: socket.socket, connections: trio.Nursery) -> None:
        """Serve a connection in a task of its own, or close it if the limit is reached."""
        limit = self._gate.connections
        if limit.admit(accepted, is_plain=self.is_plain):
            name = f"http client {peer_address(accepted)}"
            connections.start_soon(self.serve, accepted, limit.leave, name=name)

    async def serve(
        self, accepted: socket.socket, ended: Callable[[], None] = lambda: None
    ) -> None:
        """Serve one connection. Its errors end it alone. ``ended`` is called at the end."""
        try:
            transport = await self.open(accepted)
            unread = await self._before_the_framework(transport, accepted)
            if unread is not None:
                await self._loaded.wait()
                assert self._framework is not None
                if self._ending.is_set():
                    await self._framework.end_connections()
                await self._framework.serve(transport, accepted, unread)
        except* OSError as errors:
            log.debug("HTTP: connection lost: %s", first_error(errors))
        except* Exception:
            # A defect, of ours or of a library.
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
        return await self._front.serve_connection(transport, to_loopback=ends_at_loopback(accepted))


async def serve_web(
    server: WebServer,
    sock: socket.socket,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept and serve until cancelled, then close ``sock``, which is listening.

    On cancellation idle connections end at once, the others after their response or a second.
    """
    async with trio.open_nursery() as nursery:
        # Cancelled at this moment, `start` would wait for the shielded task, which waits for the
        # end of this one.
        with trio.CancelScope(shield=True):
            connections = await nursery.start(server.hold_connections, name="http clients")
        try:
            await accept_forever(
                sock,
                lambda accepted: server.accept(accepted, connections),
                task_status,
            )
        finally:
            await server.end_connections()
