"""The daemons on simulated machines: nsqd, nsqlookupd, and nsqadmin's poller."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any, Final

import httpx2
import trio

from admin.cluster.queries import Cluster
from admin.options import NsqadminOptions
from admin.upstream import Upstream
from admin.watch.poller import Poller
from lookupd.api import lookupd_app
from lookupd.daemon import Lookupd
from lookupd.options import NsqlookupdOptions
from tests.simulation.plan import NsqdPlan
from trionsq import httpget
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions, validated
from trionsq.broker.runtime import Clock, data_folder
from trionsq.durations import SECOND_NS
from trionsq.http.app import create_app
from trionsq.http.fast_connection import FastConnection
from trionsq.http.fast_path import FastPath
from trionsq.http.serve import _wait_limits, gate_of
from trionsq.storage.folder import DataPathError
from trionsq.storage.metadata import remove_drafts
from trionsq.testing.background import DelayedBackground
from trionsq.testing.disk import Crashed
from trionsq.testing.logstate import open_state
from trionsq.testing.simulation import End, Machine, Network, Process, World
from trionsq.transports.trio_sockets import TransportStream
from trionsq.web.framework import Framework, HttpConnection

__all__ = ["HTTP_PORT", "TCP_PORT", "AdminNode", "LookupdNode", "NsqdNode", "dial_stream_of"]

TCP_PORT: Final = 4150
HTTP_PORT: Final = 4151
LOOKUPD_TCP_PORT: Final = 4160
LOOKUPD_HTTP_PORT: Final = 4161
_NEVER: Final = 1 << 62
# What a log says of its damage, as long as it has it.
_DAMAGE: Final = re.compile(
    r"are damaged|does not begin with the header of a segment|lacks its segment|header of the"
)


def dial_stream_of(network: Network, process: Process) -> Callable[[str, int], Any]:
    """What a process connects by, if it wants a stream."""

    async def dial(host: str, port: int) -> trio.abc.Stream:
        return (await network.connect(process, host, port)).stream

    return dial


class _Address:
    """In place of a socket, where only its addresses are wanted."""

    family = socket.AF_INET

    def __init__(self, end: End) -> None:
        self._end = end

    def getpeername(self) -> tuple[str, int]:
        """The other end."""
        return _pair(self._end.peer_end.address)

    def getsockname(self) -> tuple[str, int]:
        """This end."""
        return _pair(self._end.address)


def _pair(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def serve_http(app: Any, end: End, unread: bytes = b"") -> None:
    """Serve a connection by hypercorn."""
    framework = Framework(app)
    stream: Any = TransportStream(end.transport, _Address(end))  # type: ignore[arg-type]
    await HttpConnection(
        framework._app, framework._config, framework._context, stream, unread
    ).run()


class NsqdNode:
    """An nsqd and its machine.

    Attributes:
        machine: its machine.
        broker: the newest, None before the first boot.
        lives: how often it was booted.
        refuses_until_s: until then no connection is accepted: the process has no descriptor left.
        disk_delay_s: how long a job in the background takes.
        crash: in which operation of a job of the disk the process ends, and what ends it.
        has_damage: whether a bit of its files was flipped.
        is_sick: whether its disk fails now.
        unsaved: what stops could not save.
        gave_up: when each of those stops began, and when it gave up.
        has_logs: whether its topics keep their messages in logs.
    """

    def __init__(
        self, world: World, network: Network, plan: NsqdPlan, lookupds: list[str], topics: list[str]
    ) -> None:
        self.machine = Machine(world, plan.name, clock_rate=plan.clock_rate)
        self.machine.jump_clock(plan.clock_offset_s)
        self.broker: Broker | None = None
        self.lives = 0
        self.refuses_until_s = 0.0
        self.disk_delay_s = 0.0005
        self.crash: tuple[int, Callable[[], None]] | None = None
        self.has_damage = False
        self.is_sick = False
        self.unsaved: list[str] = []
        self.gave_up: list[tuple[float, float]] = []
        self._world = world
        self._network = network
        self._options = validated(
            NsqdOptions(
                **plan.options,  # type: ignore[arg-type]
                broadcast_address=plan.name,
                lookupd_tcp_address=tuple(f"{name}:{LOOKUPD_TCP_PORT}" for name in lookupds),
            )
        )
        self._topics = topics
        self.has_logs = self._options.storage == "log"

    def boot(self) -> None:
        """Start it, on whatever is on its disk."""
        self.lives += 1
        self.machine.boot(self._main)

    async def _main(self) -> None:
        try:
            await self._serve()
        except* DataPathError:
            # It serves no log whose end it can't make durable. A supervisor starts it again.
            if not (self.has_logs and self.is_sick):
                raise
            self._world.counts["starts that a sick disk refused"] += 1
            self._world.after(0.2, self._boot_again)

    def _boot_again(self) -> None:
        if self.machine.process is None:
            self.boot()

    async def _serve(self) -> None:
        process = self.machine.process
        assert process is not None
        world, disk = self._world, self.machine.disk

        def run_later(job: Callable[[], None]) -> None:
            if process.is_stopped:
                world.after(0.01, run_later, job)
            elif self.crash is None or not process.is_alive:
                process.call(job)
            else:
                self._run_until_crash(process, job, *self.crash)

        background = DelayedBackground(lambda job: world.after(self.disk_delay_s, run_later, job))
        remove_drafts(disk)
        folder = data_folder(self._options, disk, background)
        clock = Clock(now_ns=self.machine.wall_ns)
        broker = self.broker = Broker(self._options, folder, clock, world.random, open_state)
        broker.logs.segment_bytes = self._options.max_bytes_per_file
        # Such small segments are many: as many bytes go at once as with large ones.
        broker.logs.retentions.max_left = 100_000
        broker.lookups.dial = dial_stream_of(self._network, process)
        broker.ports.tcp, broker.ports.http = TCP_PORT, HTTP_PORT
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            for topic in self._topics:
                channel_names = topic.split("/")
                made = broker.topic(channel_names[0])
                for name in channel_names[1:]:
                    made.channel(name)
            await broker.save_metadata()
            async with trio.open_nursery() as connections:
                http = _NsqdHttp(broker, connections)
                self._network.listen(process, TCP_PORT, self._accept)
                self._network.listen(process, HTTP_PORT, http.accept)
                await process.wait_signal()
                stopped_s = world.now_s
                self._network.close_port(process, TCP_PORT)
                self._network.close_port(process, HTTP_PORT)
                connections.cancel_scope.cancel()
            broker.stop()
        self.unsaved += broker.unsaved
        if broker.unsaved:
            self.gave_up.append((stopped_s, world.now_s))

    @property
    def trouble(self) -> str | None:
        """Why it is not well; None if it is, or has found damage and said so."""
        broker = self.broker
        if broker is None or self.machine.process is None or broker.registry.is_loading:
            return "it does not run"
        faults = broker.folder.faults.values()
        if self.has_logs and self.has_damage:
            return next((text for text in faults if not _DAMAGE.search(text)), None)
        return None if broker.health == "OK" else broker.health

    def _run_until_crash(
        self, process: Process, job: Callable[[], None], operation: int, crash: Callable[[], None]
    ) -> None:
        disk = self.machine.disk
        disk.crash_at(operation)
        try:
            process.call(job)
        except Crashed:
            crash()
        else:
            disk.crash_at(_NEVER)  # the job was shorter

    def _accept(self, end: End) -> None:
        if self._world.now_s < self.refuses_until_s:
            # The connection waits in the kernel until there is a descriptor for it.
            self._world.counts["connections waited for a descriptor"] += 1
            self._world.after(0.2, end.process.call, self._accept, end)
        else:
            assert self.broker is not None
            self.broker.accept(end.transport)


class _NsqdHttp:
    """The HTTP API of an nsqd: the fast path first, as in `trionsq.http.serve`."""

    def __init__(self, broker: Broker, connections: trio.Nursery) -> None:
        self._broker = broker
        self._connections = connections
        self._gate = gate_of(broker.options)
        self._path = FastPath(broker, _wait_limits(), self._gate.sites)
        self._app: Any = None

    def accept(self, end: End) -> None:
        """Serve a connection in a task of its own."""
        self._connections.start_soon(self._serve, end)

    async def _serve(self, end: End) -> None:
        unread = await FastConnection(self._path, end.transport, checks_hosts=False).run()
        if unread is None:
            return
        if self._app is None:
            self._app = create_app(self._broker, is_open=True, gate=self._gate)
        await serve_http(self._app, end, unread)


class LookupdNode:
    """An nsqlookupd and its machine.

    Attributes:
        machine: its machine.
        lookupd: the newest, None before the first boot.
    """

    def __init__(self, world: World, network: Network, name: str) -> None:
        self.machine = Machine(world, name)
        self.lookupd: Lookupd | None = None
        self._network = network
        # Between the PINGs of an nsqd are 15 s.
        self._options = NsqlookupdOptions(
            broadcast_address=name, inactive_producer_timeout_ns=20 * SECOND_NS
        )

    def boot(self) -> None:
        """Start it, empty."""
        self.machine.boot(self._main)

    async def _main(self) -> None:
        process = self.machine.process
        assert process is not None
        lookupd = self.lookupd = Lookupd(self._options)
        app = lookupd_app(lookupd.registry, self._options, lookupd.now_ns)
        async with trio.open_nursery() as nursery:

            def accept(end: End) -> None:
                nursery.start_soon(self._serve, lookupd, end)

            def accept_http(end: End) -> None:
                nursery.start_soon(serve_http, app, end)

            self._network.listen(process, LOOKUPD_TCP_PORT, accept)
            self._network.listen(process, LOOKUPD_HTTP_PORT, accept_http)
            await process.wait_signal()
            nursery.cancel_scope.cancel()

    async def _serve(self, lookupd: Lookupd, end: End) -> None:
        await lookupd.serve(end.stream, end.peer_end.address)


class AdminNode:
    """nsqadmin's poller and its machine.

    Attributes:
        machine: its machine.
        poller: the newest.
    """

    def __init__(
        self, world: World, network: Network, nsqds: list[str], lookupds: list[str]
    ) -> None:
        self.machine = Machine(world, "admin")
        self.poller: Poller | None = None
        self._network = network
        self._options = NsqadminOptions(
            lookupd_http_address=tuple(f"{name}:{LOOKUPD_HTTP_PORT}" for name in lookupds),
            nsqd_http_address=() if lookupds else tuple(f"{name}:{HTTP_PORT}" for name in nsqds),
            poll_interval_ns=2 * SECOND_NS,
        )

    def boot(self) -> None:
        """Start it."""
        self.machine.boot(self._main)

    async def _main(self) -> None:
        process = self.machine.process
        assert process is not None
        transport = _UpstreamTransport(dial_stream_of(self._network, process))
        async with Upstream(self._options, transport) as upstream, trio.open_nursery() as nursery:
            poller = self.poller = Poller(
                Cluster(upstream, self._options),
                self._options,
                wall=lambda: self.machine.wall_ns() / 1e9,
            )
            nursery.start_soon(poller.run)
            with poller.watch():
                await process.wait_signal()
            nursery.cancel_scope.cancel()


class _UpstreamTransport(httpx2.AsyncBaseTransport):
    """Sends nsqadmin's requests over the simulated network."""

    def __init__(self, dial: httpget.Dial) -> None:
        self._dial = dial

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx2."""
        try:
            answer = await httpget.get(
                str(request.url), {"Accept": request.headers["accept"]}, dial=self._dial
            )
        except httpget.GetConnectError as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        except httpget.GetTimeoutError as error:
            raise httpx2.ReadTimeout(str(error), request=request) from error
        except httpget.GetError as error:
            raise httpx2.ReadError(str(error), request=request) from error
        return httpx2.Response(
            answer.status,
            headers=answer.headers,
            stream=httpx2.ByteStream(answer.body),
            request=request,
        )
