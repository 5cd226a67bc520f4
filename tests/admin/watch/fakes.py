"""Nodes without sockets: what they answer, and when, is said by a test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec
import trio

from admin.cluster.queries import LATE_S, AllFailed, Cluster, QueryResult
from admin.cluster.shapes import ChannelStats, NodeStats, Producer, TopicStats
from admin.options import NsqadminOptions
from admin.upstream import Upstream, UpstreamError
from admin.watch.poller import Poller
from admin.watch.snapshot import Snapshot
from trionsq.durations import SECOND_NS

OPTIONS = NsqadminOptions(lookupd_http_address=("lookupd:4161",))
START = 1_790_000_000


def stats(*topics: TopicStats, start_time: int = START, health: str = "OK") -> NodeStats:
    """What a node says."""
    return NodeStats("1.3.0", health, start_time, list(topics))


def topic(
    name: str = "t", messages: int = 0, *channels: ChannelStats, depth: int = 0
) -> TopicStats:
    """A topic on a node."""
    return TopicStats(name, list(channels), depth, 0, messages)


def channel(
    name: str = "c", depth: int = 0, messages: int = 0, clients: int = 1, **more: Any
) -> ChannelStats:
    """A channel on a node."""
    return ChannelStats(name, depth=depth, message_count=messages, client_count=clients, **more)


Answers = Callable[[], Awaitable[NodeStats]]


@dataclass(eq=False)
class FakeNode:
    """A node; ``answer`` is called for each question, and may wait or raise UpstreamError."""

    name: str
    answer: Answers
    asked: int = 0
    metrics: bytes | None = None

    def producer(self) -> Producer:
        host, _, port = self.name.partition(":")
        return Producer(hostname=host, broadcast_address=host, http_port=int(port), version="1.3.0")


def always(said: NodeStats, after_s: float = 0.0) -> Answers:
    """The same answer each time, after a while."""

    async def answer() -> NodeStats:
        await trio.sleep(after_s)
        return said

    return answer


def refuses(name: str) -> Answers:
    """No connection."""

    async def answer() -> NodeStats:
        await trio.lowlevel.checkpoint()
        raise UpstreamError(name, "connection refused")

    return answer


class FakeUpstream(Upstream):
    """Asks `FakeNode`s. Attributes: the most requests that were under way at once."""

    def __init__(self, nodes: Sequence[FakeNode]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.now = self.most = 0

    async def get_bytes(self, url: str, *, timeout_s: float | None = None) -> bytes:
        parts = urlsplit(url)
        node = self.nodes[parts.netloc]
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if parts.path == "/metrics":
                if node.metrics is None:
                    raise UpstreamError(node.name, "got response 404", 404)
                await trio.lowlevel.checkpoint()
                return node.metrics
            node.asked += 1
            assert timeout_s is not None
            with trio.move_on_after(timeout_s):
                return msgspec.json.encode(await node.answer())
            raise UpstreamError(node.name, f"no answer within {timeout_s:g} s")
        finally:
            self.now -= 1


class FakeCluster(Cluster):
    """Attributes: ``listed`` is what nsqlookupd tells; None: it does not answer."""

    def __init__(self, nodes: Sequence[FakeNode], options: NsqadminOptions = OPTIONS) -> None:
        self.fake = FakeUpstream(nodes)
        super().__init__(self.fake, options)
        self.listed: list[FakeNode] | None = list(nodes)
        self.asked = 0
        self.warnings: list[str] = []
        self.lists_after_s = 0.0

    async def nodes(
        self, *, late_s: float = LATE_S, first_s: float = math.inf
    ) -> QueryResult[list[Producer]]:
        self.asked += 1
        await trio.sleep(self.lists_after_s)
        if self.listed is None:
            raise AllFailed("nsqlookupd", [UpstreamError("lookupd:4161", "connection refused")])
        return QueryResult([node.producer() for node in self.listed], list(self.warnings))


@dataclass(eq=False)
class Watched:
    """A poller that runs, and whom it asks."""

    poller: Poller
    cluster: FakeCluster
    stopping: trio.Event = field(default_factory=trio.Event)


def make(nodes: Sequence[FakeNode], interval_s: float = 5.0, **options: Any) -> Watched:
    """A poller by trio's clock, with more options; the test runs it."""
    cluster, stopping = FakeCluster(nodes), trio.Event()
    poller = Poller(
        cluster,
        dataclasses.replace(OPTIONS, poll_interval_ns=round(interval_s * SECOND_NS), **options),
        stopping=stopping,
        wall=lambda: START + trio.current_time(),
    )
    return Watched(poller, cluster, stopping)


SAID = stats(topic("t", 10, channel("c", 3, 10)))


def good(number: int = 1) -> FakeNode:
    """A node that answers at once."""
    return FakeNode(f"good{number}:4151", always(SAID))


def hanging(number: int = 1) -> FakeNode:
    """A node that never answers."""
    return FakeNode(f"hangs{number}:4151", always(SAID, 1e6))


@asynccontextmanager
async def running(watched: Watched) -> AsyncIterator[Poller]:
    """The poller's task, inside the context."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.poller.run)
        yield watched.poller
        nursery.cancel_scope.cancel()


async def polls(poller: Poller, count: int) -> Snapshot:
    """The snapshot after so many more polls."""
    after = poller.snapshot.sequence if poller.snapshot is not None else 0
    return await poller.changed(after + count - 1)
