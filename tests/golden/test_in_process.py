"""The golden TCP transcripts against a broker in this process: no kernel, no real time.

Here they are cut at random with several seeds. HTTP steps act on the broker directly, so what is
checked is the broker and not an HTTP server.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import trio
from trio.testing import MockClock

from tests.golden.cutting import Cutter, Cutting
from tests.golden.interfaces import Connection, HttpAnswer
from tests.golden.jobs import CASE_LIMIT_S, Job, Outcomes, jobs_asked_for
from tests.golden.needs import tcp_needs
from tests.golden.replay_tcp import replay_tcp_case
from tests.golden.transcripts import Request, Server, TcpCase
from tests.processes import other_binary
from tests.transports.ends import write_pair
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.daemon.flags import parse
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import MemoryStream, memory_connection
from trionsq.wire.bodies import ListBodies

SEEDS = range(5)
LOG_LINES_MAX = 30
# What these need has no counterpart here.
NEEDS_SOCKETS = frozenset({"auth", "disk"})


class MemoryPeer:
    """A Connection in memory."""

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        """See Connection."""
        await self._stream.send_all(data)

    async def receive_some(self) -> bytes:
        """See Connection."""
        try:
            return await self._stream.receive_some()
        except trio.BrokenResourceError:
            return b""  # a reset: the broker closed while bytes of ours lay unread

    async def shutdown_write(self) -> None:
        """See Connection."""
        await self._stream.send_eof()

    async def close(self) -> None:
        """See Connection."""
        await self._stream.aclose()


class BrokerUnderTest:
    """A ServerUnderTest in this process."""

    addresses: Mapping[str, str] = {}

    def __init__(self, broker: Broker, log: deque[str]) -> None:
        self._broker = broker
        self._log = log

    async def open_tcp(self) -> Connection:
        """See ServerUnderTest."""
        stream, transport = memory_connection()
        self._broker.connect(transport)
        return MemoryPeer(stream)

    async def http(self, request: Request) -> HttpAnswer:
        """See ServerUnderTest; what the endpoint means, done to the broker.

        Raises:
            NotImplementedError: an endpoint that no TCP transcript uses.
        """
        await trio.lowlevel.checkpoint()
        url = urlsplit(request.path)
        query = dict(parse_qsl(url.query))
        action = ACTIONS.get(url.path)
        if action is None:
            raise NotImplementedError(request.path)
        try:
            action(self._broker, query, request.body)
        except KeyError:
            return HttpAnswer(404, {}, b"")
        return HttpAnswer(200, {}, b"")

    async def remove_data_path(self) -> None:
        """See ServerUnderTest."""
        raise NotImplementedError("there is no data path")

    def log_tail(self) -> str:
        """See ServerUnderTest."""
        return "\n".join(self._log)


Query = Mapping[str, str]


def _publish(broker: Broker, query: Query, body: bytes) -> None:
    broker.topic(query["topic"]).publish(ListBodies([body]), int(query.get("defer", 0)))


def _publish_lines(broker: Broker, query: Query, body: bytes) -> None:
    lines = [line for line in body.split(b"\n") if line]
    broker.topic(query["topic"]).publish(ListBodies(lines))


ACTIONS: Mapping[str, Callable[[Broker, Query, bytes], object]] = {
    "/pub": _publish,
    "/mpub": _publish_lines,
    "/topic/pause": lambda broker, query, _: broker.topics[query["topic"]].pause(),
    "/topic/unpause": lambda broker, query, _: broker.topics[query["topic"]].unpause(),
    "/topic/delete": lambda broker, query, _: broker.delete_topic(query["topic"]),
    "/channel/pause": lambda broker, query, _: (
        broker.topics[query["topic"]].channels[query["channel"]].pause()
    ),
    "/channel/unpause": lambda broker, query, _: (
        broker.topics[query["topic"]].channels[query["channel"]].unpause()
    ),
    "/channel/empty": lambda broker, query, _: (
        broker.topics[query["topic"]].channels[query["channel"]].empty()
    ),
    "/channel/delete": lambda broker, query, _: broker.topics[query["topic"]].delete_channel(
        query["channel"]
    ),
}


class LogTail(logging.Handler):
    """Keeps the last lines of the broker's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LOG_LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname}: {record.getMessage()}")


@asynccontextmanager
async def broker_as_wanted(
    wanted: Server, log: deque[str], certificate: Mapping[str, str]
) -> AsyncIterator[BrokerUnderTest]:
    """A broker with the flags of a case, and with the certificate if it wants one."""
    values: dict[str, Any] = dict(parse(NsqdOptions, wanted.args).values)
    if wanted.tls:
        values |= certificate
    async with nsqd_in_memory(**values) as broker:
        yield BrokerUnderTest(broker, log)
        assert broker.client_failures == 0, "a connection ended by a defect"


@dataclass(frozen=True)
class Replay:
    """One way to replay one case."""

    job: Job
    seed: str

    @property
    def cutting(self) -> Cutting:
        return self.job.cutting


def replays_of(job: Job) -> Iterator[Replay]:
    """The ways in which a job is replayed: at random with several seeds, otherwise once."""
    for number in SEEDS if job.cutting == "random" else range(1):
        yield Replay(job, f"{job.case.name}/{number}")


async def replay_all(jobs: list[Job], log: deque[str], certificate: Mapping[str, str]) -> Outcomes:
    """Replay the jobs; the cases that share a broker run at the same time."""
    outcomes = Outcomes()
    groups: dict[object, list[Replay]] = {}
    for job in jobs:
        outcomes.note(job, None)
        for number, replay in enumerate(replays_of(job)):
            shares = job.name if job.case.server.fresh else ""
            key = (job.case.server, job.cutting, number, shares)
            groups.setdefault(key, []).append(replay)
    for group in groups.values():
        async with (
            broker_as_wanted(group[0].job.case.server, log, certificate) as server,
            trio.open_nursery() as nursery,
        ):
            for replay in group:
                nursery.start_soon(note_outcome, replay, server, outcomes)
    return outcomes


async def note_outcome(replay: Replay, server: BrokerUnderTest, outcomes: Outcomes) -> None:
    """Replay, and keep the failure if it fails."""
    case = replay.job.case
    assert isinstance(case, TcpCase)
    try:
        with trio.fail_after(CASE_LIMIT_S):
            await replay_tcp_case(case, server, Cutter(replay.cutting, replay.seed))
    except Exception as error:  # raised again by the case's own test
        outcomes.note(replay.job, error)


def can_be_replayed(job: Job) -> bool:
    """Whether there is a counterpart in memory to all that the case needs."""
    if other_binary() or not isinstance(job.case, TcpCase):
        return False
    return not tcp_needs(job.case) & NEEDS_SOCKETS


@pytest.fixture(scope="module")
def memory_outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    """How every selected TCP case went against a broker in memory."""
    folder = tmp_path_factory.mktemp("certificate")
    handler = LogTail()
    logger = logging.getLogger("trionsq")
    logger.addHandler(handler)
    try:
        return trio.run(
            replay_all,
            jobs_asked_for(request, "memory_outcomes"),
            handler.lines,
            dict(zip(("tls_cert", "tls_key"), write_pair(folder), strict=True)),
            clock=MockClock(autojump_threshold=0),
        )
    finally:
        logger.removeHandler(handler)


def test_tcp_conversation_in_memory(tcp_job: Job, memory_outcomes: Outcomes) -> None:
    """The broker answers as nsqd v1.3.0 also without a kernel between, and with time leaping."""
    memory_outcomes.check(tcp_job)
