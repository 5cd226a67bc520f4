"""The golden HTTP transcripts in this process: on the fast path and through the framework.

Requests are sent whole and byte by byte. What a process is needed for (log, exit, addresses that
are known beforehand) is checked elsewhere; the sockets are real.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.golden.cutting import Cutting
from tests.golden.http_exchange import exchange_http
from tests.golden.interfaces import AuthServer, Connection, HttpAnswer, ServerUnderTest
from tests.golden.jobs import Job, Outcomes, jobs_asked_for, run_jobs
from tests.golden.sockets import SocketConnection
from tests.golden.transcripts import AuthStub, Request, Server
from tests.processes import other_binary
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions, validated
from trionsq.daemon.flags import parse
from trionsq.http.serve import serve_http
from trionsq.local import nsqd_daemon

WAYS = ("short", "framework")
CUTTINGS: tuple[Cutting, ...] = ("whole", "bytewise")
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
    """Starts brokers under one temporary directory."""

    def __init__(self, directory: Path, cutting: Cutting) -> None:
        self._directory = directory
        self._cutting = cutting
        self._numbers = count()

    @asynccontextmanager
    async def start_server(
        self, wanted: Server, auth_address: str | None
    ) -> AsyncIterator[ServerUnderTest]:
        """See ServerStarter."""
        data_path = self._directory / f"nsqd{next(self._numbers)}"
        data_path.mkdir()
        values: dict[str, Any] = {"broadcast_address": "127.0.0.1"}
        values |= parse(NsqdOptions, wanted.args).values
        values |= {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
        values["data_path"] = str(data_path)
        async with nsqd_daemon.running_nsqd(validated(NsqdOptions(**values))) as broker:
            yield BrokerUnderTest(broker, data_path, self._cutting)

    def start_auth(self, stub: AuthStub) -> AbstractAsyncContextManager[AuthServer]:
        """See AuthStarter; no HTTP transcript has one."""
        raise NotImplementedError(stub)


def can_be_replayed(job: Job) -> bool:
    """Whether the case can be replayed here."""
    return not (other_binary() or job.case.server.tls or job.case.server.fixed_ports)


OutcomesByWay = dict[tuple[str, str], Outcomes]


@pytest.fixture(scope="module")
def ways_outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> OutcomesByWay:
    """How every selected HTTP case went, by way and cutting."""
    jobs = {job.name: job for job in jobs_asked_for(request, "ways_outcomes")}
    outcomes: OutcomesByWay = {}
    with pytest.MonkeyPatch.context() as patch:
        for way, cutting in product(WAYS, CUTTINGS):
            patch.setattr(nsqd_daemon, "serve_http", partial(serve_http, fast_path=way == "short"))
            place = InProcess(tmp_path_factory.mktemp(way), cutting)
            outcomes[way, cutting] = trio.run(
                run_jobs, list(jobs.values()), place.start_server, place.start_auth
            )
    return outcomes


@pytest.mark.parametrize("cutting", CUTTINGS)
@pytest.mark.parametrize("way", WAYS)
def test_http_conversation_on_both_ways(
    http_job: Job, way: str, cutting: str, ways_outcomes: OutcomesByWay
) -> None:
    """An HTTP client is answered as nsqd v1.3.0 answers, whichever part of the server does it."""
    ways_outcomes[way, cutting].check(http_job)
