"""One nsqd from start to stop: lock, sockets, broker, HTTP.

Tasks: signals; background work for the disk; a listener for each TCP socket; the HTTP server; the
broker with its own tasks. The stop goes through them in order: listeners, clients, topics and
channels, messages to disk, background work, the lock.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from typing import Final

import trio

from trionsq.broker.background import ThreadBackground
from trionsq.broker.broker import Broker
from trionsq.broker.drain import Drain, DrainPhase
from trionsq.broker.options import NsqdOptions, OptionsError
from trionsq.broker.runtime import data_folder
from trionsq.daemon.acl import AclError
from trionsq.daemon.gcpolicy import start_collecting, tune_gc
from trionsq.daemon.listener import ListenError, accept_forever, bound_address, open_sockets
from trionsq.daemon.log import set_level
from trionsq.daemon.signals import ECHO_S, run_at_hangup, wait_second_signal
from trionsq.disk import RealDisk
from trionsq.http.serve import gate_of, serve_http
from trionsq.storage.folder import DataPathError, lock_data_path
from trionsq.storage.metadata import MetadataError, remove_drafts
from trionsq.transports.certificates import ServerTls, TlsConfigError
from trionsq.transports.poller import Poller
from trionsq.transports.trio_sockets import SocketTransport
from trionsq.web.gate import Gate
from trionsq.web.serve import NO_MOUNTS, Mounts

__all__ = ["run_nsqd", "running_nsqd", "tune_interpreter"]

log = logging.getLogger("trionsq")


# How long a thread keeps the interpreter while another thread waits for it.
_SWITCH_S: Final = 0.0005


@asynccontextmanager
async def running_nsqd(options: NsqdOptions) -> AsyncIterator[Broker]:
    """An nsqd that serves inside the context, and stops in order at its end.

    Afterwards the broker's ``unsaved`` names what was not saved to disk.

    Raises:
        AclError: the file of users can't be used.
        DataPathError: the data path can't be used.
        ListenError: an address can't be listened on.
        MetadataError: the data path's metadata can't be understood.
        OptionsError: the options for the dashboard (--admin) are not valid.
        TlsConfigError: the certificate's files can't be used.
    """
    async with AsyncExitStack() as stack:
        lock = stack.enter_context(lock_data_path(options.data_path))
        disk = RealDisk(lock.path)
        remove_drafts(disk)
        sockets = stack.enter_context(ExitStack())
        poller = Poller()
        background = ThreadBackground(poller)
        broker = Broker(options, data_folder(options, disk, background), poller=poller)
        tcp = await _open(options.tcp_address, sockets)
        https = await _open(options.https_address if broker.tls else "", sockets)
        http = await _open(options.http_address, sockets)
        broker.live_options.observers.append(lambda changed: set_level(changed.log_level))
        broker.ports.tcp = _announce("TCP", tcp)
        broker.ports.https = _announce("HTTPS", https) if https else 0
        broker.ports.http = _announce("HTTP", http) if http else 0
        mounts, stop_mount = NO_MOUNTS, _nothing_to_stop
        if options.admin:
            mounts, stop_mount = await _mount(broker, [*http, *https], stack)
        tasks = await stack.enter_async_context(trio.open_nursery())
        await tasks.start(background.run, name="disk jobs")
        await tasks.start(_run_broker, broker, tasks.cancel_scope, name="broker")
        await stack.enter_async_context(_saved_after_an_error(broker))
        listeners = await stack.enter_async_context(trio.open_nursery())
        if options.policy_file or options.acl_file:
            listeners.start_soon(run_at_hangup, partial(_read_files_again, broker), name="SIGHUP")
        for sock in tcp:
            name = f"listener {bound_address(sock)[0]}"
            await listeners.start(
                accept_forever, sock, lambda s: broker.accept(SocketTransport(s)), name=name
            )
        gate = gate_of(options)
        for sock in https:
            name = f"https server {bound_address(sock)[0]}"
            await listeners.start(_serve_http, broker, sock, broker.tls, mounts, gate, name=name)
        for sock in http:
            name = f"http server {bound_address(sock)[0]}"
            await listeners.start(_serve_http, broker, sock, None, mounts, gate, name=name)
        sockets.pop_all()  # each listener closes its own from now on
        try:
            yield broker
        finally:
            log.info("NSQ: stopping")
            stop_mount()
            listeners.cancel_scope.cancel()
            broker.stop()


@asynccontextmanager
async def _saved_after_an_error(broker: Broker) -> AsyncIterator[None]:
    """Save messages before an error of the body is raised on."""
    try:
        yield
    except Exception:
        broker.stop()
        await broker.wait_ended()
        raise


async def _run_broker(
    broker: Broker,
    tasks: trio.CancelScope,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    await broker.run(task_status)
    tasks.cancel()  # there is no more background work


async def _serve_http(
    broker: Broker,
    sock: socket.socket,
    tls: ServerTls | None,
    mounts: Mounts,
    gate: Gate,
    task_status: trio.TaskStatus[None],
) -> None:
    await serve_http(
        broker,
        sock,
        load_later=True,
        tls=tls,
        mounts=mounts,
        gate=gate,
        task_status=task_status,
    )


async def _mount(
    broker: Broker, sockets: list[socket.socket], stack: AsyncExitStack
) -> tuple[Mounts, Callable[[], None]]:
    """Start the dashboard; its applications, and the function that stops it."""
    # Imported here: an nsqd without it saves the time and the memory.
    from trionsq.local.mount import running_mount

    mount = await stack.enter_async_context(running_mount(broker, sockets, broker.ports.http))
    return mount.apps, mount.stop


def _nothing_to_stop() -> None:
    """In place of `Mount.stop`."""


async def _open(address: str, opened: ExitStack) -> list[socket.socket]:
    if not address:
        return []
    return [opened.enter_context(sock) for sock in await open_sockets(address)]


def _announce(kind: str, sockets: list[socket.socket]) -> int:
    port = 0
    for sock in sockets:
        address, port = bound_address(sock)
        log.info("%s: listening on %s", kind, address)
    return port


async def run_nsqd(options: NsqdOptions) -> int:
    """Run until SIGINT, SIGTERM or the end of a drain, and return the exit code.

    A second signal stops it at once. With --sigterm=drain, the first SIGTERM only begins a drain.
    The code is 0 if all messages were saved, else 1. An unexpected error stops it, too: messages
    are saved, and the code is 1.

    Raises:
        AclError, DataPathError, ListenError, MetadataError, OptionsError, TlsConfigError: as
            `running_nsqd`.
    """
    trio.lowlevel.current_task().name = "nsqd"
    tune_interpreter()
    start_collecting()
    code = 1
    broker: Broker | None = None
    stop = trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            sigterm = _Sigterm()
            nursery.start_soon(
                _heed_signals, signals, stop, nursery.cancel_scope, sigterm, name="signals"
            )
            try:
                async with running_nsqd(options) as broker:
                    if options.sigterm == "drain":
                        sigterm.drain = broker.drain
                    nursery.start_soon(
                        _stop_when_drained, broker.drain, stop, name="end of a drain"
                    )
                    await stop.wait()
                code = 0
            except* (
                AclError, DataPathError, ListenError, MetadataError, OptionsError, TlsConfigError
            ):  # fmt: skip
                raise
            except* Exception as errors:
                log.critical("NSQ: stopped by an unexpected error", exc_info=errors)
            for line in broker.unsaved if broker is not None else ():
                log.error("NSQ: could not save: %s", line)
                code = 1
            nursery.cancel_scope.cancel()
    log.info("NSQ: bye")
    return code


def tune_interpreter() -> None:
    """Set up the garbage collector, and switch threads more often than Python's default.

    A thread that syncs a disk queue needs the interpreter after each system call, and publishers
    may wait for the sync.
    """
    sys.setswitchinterval(_SWITCH_S)
    tune_gc()


class _Sigterm:
    """What SIGTERM does.

    Attributes:
        drain: that it begins; None if it stops nsqd.
    """

    def __init__(self) -> None:
        self.drain: Drain | None = None
        self._drained_at_s: float | None = None

    def stops(self, number: int) -> bool:
        """Whether nsqd is to stop at this signal; if not, it goes on, maybe with a drain."""
        drain, at_s = self.drain, self._drained_at_s
        if drain is None or number != signal.SIGTERM:
            return True
        now_s = trio.current_time()
        if drain.is_on and at_s is not None and at_s >= drain.began_s:
            return now_s >= at_s + ECHO_S
        if drain.phase in (DrainPhase.EMPTY, DrainPhase.LIMIT):
            return True
        if drain.phase is DrainPhase.DRAINING:
            drain.exits = True
        else:
            drain.begin()
        self._drained_at_s = trio.current_time()
        return False


async def _stop_when_drained(drain: Drain, stop: trio.Event) -> None:
    await drain.ended.wait()
    stop.set()


async def _heed_signals(
    signals: AsyncIterator[int], stop: trio.Event, scope: trio.CancelScope, sigterm: _Sigterm
) -> None:
    """Set ``stop`` at the first signal that stops nsqd, and cancel ``scope`` at the next one."""
    async for number in signals:
        if sigterm.stops(number):
            break
    stop.set()
    await wait_second_signal(signals)
    log.warning("NSQ: second signal, stopping at once")
    scope.cancel()


def _read_files_again(broker: Broker) -> None:
    """Read --policy-file and --acl-file again."""
    broker.policies.reload()
    if broker.users is not None:
        broker.users.file.reload()
