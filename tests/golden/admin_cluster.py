"""A cluster for nsqadmin's transcripts: nsqlookupd, two nsqds, Graphite, a receiver of notices.

All in this process on real sockets, as a process for each would take minutes. nsqadmin too, unless
TRIONSQ_TEST_NSQADMIN names another program.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import h11
import trio

from admin.daemon import running_nsqadmin
from admin.options import NsqadminOptions
from lookupd.daemon import running_nsqlookupd
from lookupd.options import NsqlookupdOptions
from tests.processes import free_address, other_nsqadmin
from tests.processes import running_nsqadmin as running_process
from trionsq.broker.options import NsqdOptions
from trionsq.daemon.flags import parse
from trionsq.local.nsqd_daemon import running_nsqd

__all__ = ["AdminCluster", "WebStub", "admin_cluster"]

_LOCAL = "127.0.0.1:0"


@dataclass(slots=True)
class WebStub:
    """Graphite, or what is notified: answers all alike, and remembers what it was asked."""

    answer: bytes
    address: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    heard: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, of any number of requests."""
        server = h11.Connection(h11.SERVER)
        body, asked = b"", dict[str, Any]()
        while True:
            event = server.next_event()
            if event is h11.NEED_DATA:
                try:
                    server.receive_data(await stream.receive_some(65536))
                except trio.BrokenResourceError:
                    return
            elif isinstance(event, h11.Request):
                asked, body = _asked(event), b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self.seen.append({**asked, "body": body})
                self.heard.unpark_all()
                await stream.send_all(_encoded(server, self.answer))
                server.start_next_cycle()
            else:
                return


def _asked(event: h11.Request) -> dict[str, Any]:
    url = urlsplit(event.target.decode())
    headers = {name.decode(): value.decode() for name, value in event.headers}
    return {
        "method": event.method.decode(),
        "path": url.path,
        "query": dict(parse_qsl(url.query, keep_blank_values=True)),
        "headers": headers,
    }


def _encoded(server: h11.Connection, body: bytes) -> bytes:
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    events = [
        h11.Response(status_code=200, headers=headers),
        h11.Data(data=body),
        h11.EndOfMessage(),
    ]
    return b"".join(server.send(event) or b"" for event in events)


class AdminCluster:
    """A running cluster.

    Attributes:
        tcp: address of TCP by member (``nsqd1``, ``nsqd2``).
        http: address of HTTP by member (``admin``, ``lookupd``, ``nsqd1``, ``nsqd2``).
        stub: Graphite or what is notified.
        stop_lookupd: set to end nsqlookupd; ``lookupd_stopped`` is set then.
    """

    def __init__(self, stub: WebStub) -> None:
        self.tcp: dict[str, str] = {}
        self.http: dict[str, str] = {}
        self.stub = stub
        self.stop_lookupd, self.lookupd_stopped = trio.Event(), trio.Event()

    @property
    def addresses(self) -> Mapping[str, str]:
        """By the names that transcripts have for them."""
        return {f"{name}_http": address for name, address in self.http.items()}


@asynccontextmanager
async def admin_cluster(
    kind: str, args: Sequence[str], graphite: Any, folder: Path
) -> AsyncIterator[AdminCluster]:
    """The cluster that a case asks for.

    Args:
        kind: lookupd, lookupd_plus_dead, nsqd, graphite, notify.
        args: of nsqadmin.
        graphite: its answer, ``{"target":...,"datapoints":...}``.
        folder: for the nsqds.
    """
    stub = WebStub(json.dumps([graphite]).encode())
    cluster = AdminCluster(stub)
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(trio.open_nursery())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(_run_lookupd, cluster)
        for name in ("nsqd1", "nsqd2"):
            await trio.Path(folder / name).mkdir()
            await stack.enter_async_context(_nsqd(cluster, name, folder / name))
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        stub.address = "{}:{}".format(*listeners[0].socket.getsockname()[:2])
        tasks.start_soon(trio.serve_listeners, stub.serve, listeners)
        flags = [f"--http-address={_LOCAL}", *_flags(cluster, kind), *args]
        await stack.enter_async_context(_nsqadmin(cluster, flags))
        yield cluster


def _flags(cluster: AdminCluster, kind: str) -> list[str]:
    if kind == "nsqd":
        return [f"--nsqd-http-address={cluster.http[name]}" for name in ("nsqd1", "nsqd2")]
    flags = [f"--lookupd-http-address={cluster.http['lookupd']}"]
    if kind == "lookupd_plus_dead":
        flags.append(f"--lookupd-http-address={free_address()}")
    if kind == "graphite":
        flags.append(f"--graphite-url=http://{cluster.stub.address}")
    if kind == "notify":
        flags.append(f"--notification-http-endpoint=http://{cluster.stub.address}/hook")
    return flags


async def _run_lookupd(
    cluster: AdminCluster, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    options = NsqlookupdOptions(
        tcp_address=_LOCAL, http_address=_LOCAL, broadcast_address="127.0.0.1"
    )
    async with running_nsqlookupd(options) as lookupd:
        cluster.tcp["lookupd"] = f"127.0.0.1:{lookupd.tcp_port}"
        cluster.http["lookupd"] = f"127.0.0.1:{lookupd.http_port}"
        task_status.started()
        await cluster.stop_lookupd.wait()
    cluster.lookupd_stopped.set()


@asynccontextmanager
async def _nsqd(cluster: AdminCluster, name: str, folder: Path) -> AsyncIterator[None]:
    options = NsqdOptions(
        tcp_address=_LOCAL,
        http_address=_LOCAL,
        broadcast_address="127.0.0.1",
        data_path=str(folder),
        lookupd_tcp_address=(cluster.tcp["lookupd"],),
    )
    async with running_nsqd(options) as broker:
        cluster.tcp[name] = f"127.0.0.1:{broker.ports.tcp}"
        cluster.http[name] = f"127.0.0.1:{broker.ports.http}"
        yield


@asynccontextmanager
async def _nsqadmin(cluster: AdminCluster, flags: Sequence[str]) -> AsyncIterator[None]:
    if not other_nsqadmin():
        values: dict[str, Any] = dict(parse(NsqadminOptions, flags).values)
        async with running_nsqadmin(NsqadminOptions(**values)) as dashboard:
            cluster.http["admin"] = f"127.0.0.1:{dashboard.http_port}"
            yield
        return
    async with running_process(flags) as process:
        cluster.http["admin"] = process.http_address
        yield
