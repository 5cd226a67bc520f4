"""A real nsqd for tests: its own sockets on free ports, its own data path, in this process."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions, validated
from trionsq.client.nursery import ShieldedNursery
from trionsq.local.nsqd_daemon import running_nsqd

__all__ = ["OpenBroker", "broker_in_thread", "open_broker"]


@dataclass(frozen=True)
class OpenBroker:
    """A running nsqd.

    Attributes:
        tcp_address: ``host:port`` for clients.
        http_address: ``host:port`` of the HTTP API.
        https_address: ``host:port`` of the HTTP API by TLS; empty without ``tls_cert``.
        data_path: the folder of its queue files.
        broker: the broker object; use it only in the thread that the broker runs in.
    """

    tcp_address: str
    http_address: str
    https_address: str
    data_path: Path
    broker: Broker = field(repr=False)


@asynccontextmanager
async def open_broker(
    data_path: Path | str | None = None, **options: Any
) -> AsyncIterator[OpenBroker]:
    """Run an nsqd inside the context, on free ports of 127.0.0.1.

    At the end it stops in an orderly way and saves its messages to the data path, even if the body
    was cancelled. An exception of the body is raised as it is, not in a group. Do not use it with a
    MockClock, because it has threads: see `trionsq.testing.memory` for a broker without threads.

    Args:
        data_path: a folder, which is kept; by default a temporary one, which is removed.
        options: fields of `NsqdOptions`, such as ``mem_queue_size=0`` or ``msg_timeout_ns=10**9``.

    Raises:
        OptionsError: the options are refused.
        DataPathError: another nsqd uses the folder.
        TlsConfigError: the certificate's files cannot be used.
        ListenError: a given address cannot be listened on.
        TypeError: unknown option.
    """
    with ExitStack() as stack:
        folder = data_path or stack.enter_context(TemporaryDirectory(prefix="nsqd-"))
        defaults: dict[str, Any] = {
            "tcp_address": "127.0.0.1:0",
            "http_address": "127.0.0.1:0",
            "https_address": "127.0.0.1:0",
            "data_path": str(folder),
        }
        valid = validated(NsqdOptions(**(defaults | options)))
        stop, stopped = trio.Event(), trio.Event()
        nursery = ShieldedNursery(stop.set)
        tasks = await nursery.open()
        is_started = False
        try:
            broker: Broker = await tasks.start(_serve, valid, stop, stopped)
            is_started = True
            yield OpenBroker(
                f"127.0.0.1:{broker.ports.tcp}",
                f"127.0.0.1:{broker.ports.http}",
                f"127.0.0.1:{broker.ports.https}" if broker.ports.https else "",
                Path(folder),
                broker,
            )
        finally:
            stop.set()
            if is_started:
                with trio.CancelScope(shield=True):
                    await stopped.wait()
            await nursery.close()


async def _serve(
    options: NsqdOptions,
    stop: trio.Event,
    stopped: trio.Event,
    task_status: trio.TaskStatus[Broker],
) -> None:
    try:
        async with running_nsqd(options) as broker:
            task_status.started(broker)
            await stop.wait()
    finally:
        stopped.set()


@contextmanager
def broker_in_thread(data_path: Path | str | None = None, **options: Any) -> Iterator[OpenBroker]:
    """Run an nsqd in a thread of its own, for programs and tests that do not use trio.

    Arguments and errors are those of `open_broker`.
    """
    started = Future[tuple[OpenBroker, trio.lowlevel.TrioToken, trio.Event]]()

    async def serve() -> None:
        async with open_broker(data_path, **options) as opened:
            stop = trio.Event()
            started.set_result((opened, trio.lowlevel.current_trio_token(), stop))
            await stop.wait()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, name="nsqd")
    thread.start()
    try:
        opened, token, stop = started.result()
        try:
            yield opened
        finally:
            token.run_sync_soon(stop.set)
    finally:
        thread.join()
