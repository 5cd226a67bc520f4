"""Where nsqlookupd's transcripts are replayed: a process on sockets, or this process in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio
from quart_trio import QuartTrio
from trio.testing import memory_stream_pair

from lookupd.api import lookupd_app
from lookupd.daemon import Lookupd
from lookupd.options import NsqlookupdOptions
from tests.golden.http_exchange import exchange_http
from tests.golden.interfaces import AuthServer, Connection, HttpAnswer, ServerUnderTest
from tests.golden.sockets import SocketConnection
from tests.golden.transcripts import AuthStub, Request, Server
from tests.processes import DaemonProcess, running_nsqlookupd, split_address
from trionsq.daemon.flags import parse


class ProcessUnderTest:
    """A ServerUnderTest that is an nsqlookupd process."""

    addresses: Mapping[str, str] = {}

    def __init__(self, lookupd: DaemonProcess) -> None:
        self._lookupd = lookupd

    async def open_tcp(self) -> Connection:
        """See ServerUnderTest."""
        return await _connect(self._lookupd.tcp_address)

    async def http(self, request: Request) -> HttpAnswer:
        """See ServerUnderTest."""
        return await exchange_http(await _connect(self._lookupd.http_address), request)

    async def remove_data_path(self) -> None:
        """See ServerUnderTest."""
        raise NotImplementedError("there is no data path")

    def log_tail(self) -> str:
        """See ServerUnderTest."""
        return self._lookupd.log_tail()


async def _connect(address: str) -> SocketConnection:
    return SocketConnection(await trio.open_tcp_stream(*split_address(address)))


@asynccontextmanager
async def start_process(wanted: Server, auth_address: str | None) -> AsyncIterator[ServerUnderTest]:
    """See ServerStarter."""
    async with running_nsqlookupd(wanted.args) as lookupd:
        yield ProcessUnderTest(lookupd)


class MemoryConnection:
    """A Connection in memory."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        """See Connection."""
        await self._stream.send_all(data)

    async def receive_some(self) -> bytes:
        """See Connection."""
        return bytes(await self._stream.receive_some())

    async def shutdown_write(self) -> None:
        """See Connection."""
        await self._stream.send_eof()

    async def close(self) -> None:
        """See Connection."""
        await self._stream.aclose()


class MemoryUnderTest:
    """A ServerUnderTest in this process, without sockets."""

    addresses: Mapping[str, str] = {}

    def __init__(self, lookupd: Lookupd, app: QuartTrio, nursery: trio.Nursery) -> None:
        self._lookupd = lookupd
        self._app = app
        self._nursery = nursery
        self._port = 50_000

    async def open_tcp(self) -> Connection:
        """See ServerUnderTest."""
        ours, theirs = memory_stream_pair()
        self._port += 1
        self._nursery.start_soon(self._lookupd.serve, theirs, f"127.0.0.1:{self._port}")
        return MemoryConnection(ours)

    async def http(self, request: Request) -> HttpAnswer:
        """See ServerUnderTest."""
        client: Any = self._app.test_client()
        answer = await client.open(
            request.path, method=request.method, headers=request.headers, data=request.body
        )
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return HttpAnswer(answer.status_code, headers, await answer.get_data(as_text=False))

    async def remove_data_path(self) -> None:
        """See ServerUnderTest."""
        raise NotImplementedError("there is no data path")

    def log_tail(self) -> str:
        """See ServerUnderTest."""
        return repr(self._lookupd.registry)


@asynccontextmanager
async def start_in_memory(
    wanted: Server, auth_address: str | None
) -> AsyncIterator[ServerUnderTest]:
    """See ServerStarter."""
    values: dict[str, Any] = dict(parse(NsqlookupdOptions, wanted.args).values)
    options = NsqlookupdOptions(**{"debug_from": "any", **values})
    lookupd = Lookupd(options)
    lookupd.tcp_port, lookupd.http_port = 4160, 4161
    app = lookupd_app(lookupd.registry, options, lookupd.now_ns)
    async with trio.open_nursery() as nursery:
        yield MemoryUnderTest(lookupd, app, nursery)
        nursery.cancel_scope.cancel()


def no_auth(stub: AuthStub) -> AbstractAsyncContextManager[AuthServer]:
    """See AuthStarter; nsqlookupd knows no authentication."""
    raise NotImplementedError(stub)
