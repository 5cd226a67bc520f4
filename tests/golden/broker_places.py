"""Replays against brokers in this process, on real sockets."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import trio

from tests.golden.cutting import Cutting
from tests.golden.http_exchange import exchange_http
from tests.golden.interfaces import Connection, HttpAnswer, ServerUnderTest
from tests.golden.sockets import SocketConnection, SocketPlace
from tests.golden.transcripts import Request, Server
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions, validated
from trionsq.daemon.flags import parse
from trionsq.local import nsqd_daemon

BYTEWISE_MAX = 400
"""Of a long body the rest follows in one piece."""
REMOVALS_MAX = 100


class BytewiseConnection(SocketConnection):
    """Sends its first bytes one at a time, and lets the server read between them."""

    async def send_all(self, data: bytes) -> None:
        """See Connection."""
        for at in range(min(len(data), BYTEWISE_MAX)):
            await super().send_all(data[at : at + 1])
            for _ in range(2):
                await trio.lowlevel.checkpoint()
        await super().send_all(data[BYTEWISE_MAX:])


class BrokerUnderTest:
    """A ServerUnderTest in this process, on sockets."""

    def __init__(self, broker: Broker, data_path: Path, cutting: Cutting) -> None:
        self._broker = broker
        self._data_path = data_path
        self._cutting = cutting
        self.addresses: Mapping[str, str] = {
            "tcp_addr": f"127.0.0.1:{broker.ports.tcp}",
            "http_addr": f"127.0.0.1:{broker.ports.http}",
        }

    async def open_tcp(self) -> Connection:
        """See ServerUnderTest."""
        return SocketConnection(await trio.open_tcp_stream("127.0.0.1", self._broker.ports.tcp))

    async def http(self, request: Request) -> HttpAnswer:
        """See ServerUnderTest."""
        stream = await trio.open_tcp_stream("127.0.0.1", self._broker.ports.http)
        kind = BytewiseConnection if self._cutting == "bytewise" else SocketConnection
        return await exchange_http(kind(stream), request)

    async def remove_data_path(self) -> None:
        """See ServerUnderTest. The broker may be writing a file there: then once more."""
        for _ in range(REMOVALS_MAX):
            shutil.rmtree(self._data_path, ignore_errors=True)
            if not self._data_path.exists():
                return
            await trio.lowlevel.checkpoint()
        raise OSError(f"{self._data_path} does not go away")

    def log_tail(self) -> str:
        """See ServerUnderTest."""
        return ""


class InProcess:
    """Starts brokers in this process, and stubs, under one temporary directory."""

    def __init__(self, directory: Path, cutting: Cutting) -> None:
        self._directory = directory
        self._cutting = cutting
        self._numbers = count()
        self.start_auth = SocketPlace(directory).start_auth

    @asynccontextmanager
    async def start_server(
        self, wanted: Server, auth_address: str | None
    ) -> AsyncIterator[ServerUnderTest]:
        """See ServerStarter."""
        data_path = self._directory / f"nsqd{next(self._numbers)}"
        data_path.mkdir()
        values: dict[str, Any] = {"broadcast_address": "127.0.0.1"}
        args = [flag.replace("{{auth_addr}}", auth_address or "") for flag in wanted.args]
        values |= parse(NsqdOptions, args).values
        values |= {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
        values["data_path"] = str(data_path)
        async with nsqd_daemon.running_nsqd(validated(NsqdOptions(**values))) as broker:
            yield BrokerUnderTest(broker, data_path, self._cutting)
