"""One nsqlookupd from start to stop: sockets, connections, HTTP.

Tasks: a listener for each TCP socket, the HTTP server, one for each connection. Nothing is stored,
so the order of the stop does not matter: connections are closed, HTTP requests in progress get a
second.

The protocol has no read timeout: a silent nsqd is hidden, not disconnected, and TCP's keep-alive
finds dead ones. But a peer that does not send the magic is not an nsqd, and is disconnected.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Final

import trio

from lookupd.api import lookupd_app
from lookupd.options import NsqlookupdOptions
from lookupd.registrars import Registrars
from lookupd.registry import Registry
from lookupd.session import Session
from lookupd.turns import sweep
from trionsq import NSQ_VERSION
from trionsq.daemon.acl import AclFile, Authenticator
from trionsq.daemon.gcpolicy import start_collecting, tune_gc
from trionsq.daemon.listener import (
    ListenError,
    accept_forever,
    bound_address,
    open_sockets,
    peer_address,
)
from trionsq.daemon.looplag import LOOP_LAG_BOUNDS_S, watch_loop_lag
from trionsq.daemon.signals import run_at_hangup
from trionsq.histogram import Histogram
from trionsq.hostport import format_address
from trionsq.web.gate import Gate
from trionsq.web.protocol import json_bytes
from trionsq.web.serve import WebServer, serve_web

__all__ = [
    "LINGER_S",
    "MAGIC_S",
    "WRITE_STALL_S",
    "Lookupd",
    "run_nsqlookupd",
    "running_nsqlookupd",
    "serve_session",
]

log = logging.getLogger("trionsq")

# TCP notices a vanished peer within a few minutes.
_KEEP_ALIVE_S: Final = 15


class Lookupd:
    """One nsqlookupd, inside a trio run.

    Attributes:
        options: as started.
        registry: the registrations.
        loop_lag_s: lag of the event loop, in seconds.
        tcp_port, http_port: where it listens; 0: nowhere, -1: on a unix socket.
    """

    def __init__(self, options: NsqlookupdOptions, users: Authenticator | None = None) -> None:
        """``users``: of --acl-file."""
        self.options = options
        self._registrars = Registrars(users)
        self.registry = Registry(
            options.inactive_producer_timeout_ns, options.tombstone_lifetime_ns
        )
        self.loop_lag_s = Histogram(LOOP_LAG_BOUNDS_S)
        self.tcp_port = self.http_port = 0
        self._hostname = socket.gethostname()
        # By trio's clock, so that a step of the wall clock hides no producer.
        self._start_ns = time.time_ns() - round(trio.current_time() * 1e9)

    def now_ns(self) -> int:
        """The time for the registry: nanoseconds since 1970, by the wall clock at the start."""
        return self._start_ns + round(trio.current_time() * 1e9)

    async def serve(self, stream: trio.abc.HalfCloseableStream, remote_address: str) -> None:
        """Speak V1 on a stream until either side closes it."""
        registrars = self._registrars
        with registrars.connection() as scope:
            admits = partial(registrars.admit, scope, remote_address)
            session = Session(self.registry, remote_address, self._identity(), admits)
            await serve_session(stream, session, self.now_ns)

    async def serve_socket(self, accepted: socket.socket) -> None:
        """Serve one connection. An error ends this connection only."""
        try:
            address = _peer(accepted)
            log.info("TCP: new client(%s)", address)
            await self.serve(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)), address)
        except OSError as error:
            log.debug("TCP: connection lost: %s", error)
        except Exception:
            # A bug.
            log.exception("TCP: connection failed")
        finally:
            accepted.close()

    def _identity(self) -> bytes:
        return json_bytes(
            {
                "broadcast_address": self.options.broadcast_address,
                "hostname": self._hostname,
                "http_port": self.http_port,
                "tcp_port": self.tcp_port,
                "version": NSQ_VERSION,
            }
        )


def _peer(accepted: socket.socket) -> str:
    """The address of the peer for registrations. Also turns on TCP's keep-alive."""
    if accepted.family == socket.AF_UNIX:
        return "@"
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        with contextlib.suppress(AttributeError, OSError):  # not every system has them
            accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), _KEEP_ALIVE_S)
    host, port = accepted.getpeername()[:2]
    return format_address(host, port)


@asynccontextmanager
async def running_nsqlookupd(options: NsqlookupdOptions) -> AsyncIterator[Lookupd]:
    """An nsqlookupd that serves inside the context.

    Raises:
        AclError: the file of users can't be used.
        ListenError: an address can't be listened on.
    """
    with ExitStack() as sockets:
        tcp = await _open(options.tcp_address, sockets)
        http = await _open(options.http_address, sockets)
        users: Authenticator | None = None
        if options.acl_file:
            users = Authenticator(AclFile(options.acl_file), trusts_certificates=False)
        lookupd = Lookupd(options, users)
        lookupd.tcp_port, lookupd.http_port = _announce("TCP", tcp), _announce("HTTP", http)
        gate = Gate.of(options, options.broadcast_address)
        app = lookupd_app(
            lookupd.registry, options, lookupd.now_ns, lookupd.loop_lag_s, gate, users
        )
        async with trio.open_nursery() as nursery:
            if users is not None:
                nursery.start_soon(users.file.watch, name="users of --acl-file")
                nursery.start_soon(run_at_hangup, users.file.reload, name="SIGHUP")
            nursery.start_soon(watch_loop_lag, lookupd.loop_lag_s, name="event loop lag")

            def accept(accepted: socket.socket) -> None:
                name = f"nsqlookupd client {peer_address(accepted)}"
                nursery.start_soon(lookupd.serve_socket, accepted, name=name)

            for sock in tcp:
                name = f"listener {bound_address(sock)[0]}"
                await nursery.start(accept_forever, sock, accept, name=name)
            for sock in http:
                name = f"http server {bound_address(sock)[0]}"
                await nursery.start(serve_web, WebServer(app, gate=gate), sock, name=name)
            sockets.pop_all()  # each listener closes its own socket
            try:
                yield lookupd
            finally:
                log.info("NSQLOOKUPD: stopping")
                nursery.cancel_scope.cancel()


async def _open(address: str, opened: ExitStack) -> list[socket.socket]:
    if not address:
        raise ListenError(address, "no address")
    return [opened.enter_context(sock) for sock in await open_sockets(address)]


def _announce(kind: str, sockets: list[socket.socket]) -> int:
    port = 0
    for sock in sockets:
        address, port = bound_address(sock)
        log.info("%s: listening on %s", kind, address)
    return port


async def run_nsqlookupd(options: NsqlookupdOptions) -> int:
    """Run until SIGINT or SIGTERM, and return the exit code, 0.

    Raises:
        AclError: the file of users can't be used.
        ListenError: an address can't be listened on.
    """
    trio.lowlevel.current_task().name = "nsqlookupd"
    tune_gc()
    start_collecting()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with running_nsqlookupd(options):
            await anext(signals)
    log.info("NSQLOOKUPD: bye")
    return 0


# The commands of one read are executed in one step: 100 to 800 commands, each with a log line,
# take up to 5 ms. Their responses have less than twice the size.
_MAX_READ_BYTES: Final = 4 * 1024
MAGIC_S: Final = 60.0
"""Time limit for the magic, which nsqd sends at once."""
WRITE_STALL_S: Final = 30.0
"""A peer that does not read its responses for this time is disconnected."""
LINGER_S: Final = 0.5
"""Time for which input is discarded after the last response: a reset because of unread input would
lose the response."""


async def serve_session(
    stream: trio.abc.HalfCloseableStream, session: Session, now_ns: Callable[[], int]
) -> None:
    """Serve until either side ends it, then close both.

    On cancellation the connection is closed at once, and its producer is gone.
    """
    try:
        with trio.fail_after(MAGIC_S):
            while not session.begun:
                await _converse(stream, session, now_ns)
        while not session.ended:
            await _converse(stream, session, now_ns)
        with trio.move_on_after(LINGER_S):
            await stream.send_eof()
            while await stream.receive_some(_MAX_READ_BYTES):
                pass
    except (trio.BrokenResourceError, trio.TooSlowError) as error:
        log.debug("TCP: %r lost: %r", session, error)
    finally:
        session.close()
        with trio.CancelScope(shield=True):
            # Bounded by what the producer had registered; it waits for nobody.
            await sweep(session.registry)
        await trio.aclose_forcefully(stream)


async def _converse(
    stream: trio.abc.HalfCloseableStream, session: Session, now_ns: Callable[[], int]
) -> None:
    data = await stream.receive_some(_MAX_READ_BYTES)
    answers = session.receive(bytes(data), now_ns()) if data else session.end_of_input()
    await sweep(session.registry)
    if answers:
        with trio.fail_after(WRITE_STALL_S):
            await stream.send_all(answers)
