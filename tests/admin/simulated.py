"""A cluster for load: nsqds and an nsqlookupd that only pretend, on real sockets, in one program.

Their figures move a little with each question, so that rates are there. They count how many
requests are under way at once, over all of them. A node can be made to hang, to lie or to close
its connections. Also a program: ``python -m tests.admin.simulated`` prints its address.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import msgspec
import trio

from admin.cluster.shapes import (
    ChannelStats,
    ClientStats,
    Info,
    Latency,
    NodeStats,
    Producer,
    TopicStats,
)

Mood = Literal["answers", "hangs", "lies", "closes"]

_REQUEST_NBYTES_MAX = 64 * 1024


@dataclass
class Size:
    """How large a cluster is: names in total, each topic (and its channels) on some nodes."""

    nodes: int = 20
    topics: int = 2_000
    channels: int = 5_000
    clients: int = 50_000
    nodes_per_topic: int = 4


@dataclass(eq=False)
class Counted:
    """Requests of the whole cluster.

    Attributes:
        under_way: read, and the last byte of the answer is not out.
        under_way_max: the most there were at once.
        asked: by path without query.
    """

    under_way: int = 0
    under_way_max: int = 0
    asked: dict[str, int] = field(default_factory=dict)

    def answered(self) -> None:
        """One of them is no longer under way."""
        self.under_way -= 1


@dataclass(eq=False)
class Node:
    """An nsqd that pretends.

    Attributes:
        asked: requests to it.
        ages: what /metrics tells of channels; None: there is no /metrics, as the original's.
    """

    number: int
    listeners: list[trio.SocketListener]
    mood: Mood = "answers"
    delay_s: float = 0.0
    start_time: int = 1_790_000_000
    topics: dict[str, TopicStats] = field(default_factory=dict)
    clients: dict[tuple[str, str], list[ClientStats]] = field(default_factory=dict)
    asked: int = 0
    ages: dict[tuple[str, str], float] | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.listeners[0].socket.getsockname()[1])

    @property
    def name(self) -> str:
        """As pages show it."""
        return f"127.0.0.1:{self.port}"

    def producer(self) -> Producer:
        """As nsqlookupd tells of it."""
        return Producer(
            remote_address=f"127.0.0.1:{50_000 + self.number}",
            hostname=f"node-{self.number:03}",
            broadcast_address="127.0.0.1",
            tcp_port=10_000 + self.number,
            http_port=self.port,
            version="1.3.0",
            topics=list(self.topics),
            tombstones=[False] * len(self.topics),
        )

    def answer(self, path: str, query: dict[str, str]) -> bytes | None:
        """A body, None for 404."""
        if path == "/stats":
            return self._stats(query)
        if path == "/info":
            producer = self.producer()
            return msgspec.json.encode(
                Info("1.3.0", "127.0.0.1", producer.hostname, self.port, producer.tcp_port, 1)
            )
        if path == "/metrics" and self.ages is not None:
            name = "nsqd_channel_oldest_message_age_seconds"
            lines = [
                f'{name}{{topic="{topic}",channel="{channel}"}} {age_s}\n'
                for (topic, channel), age_s in self.ages.items()
            ]
            return f"# TYPE {name} gauge\n{''.join(lines)}".encode()
        return None

    def _stats(self, query: dict[str, str]) -> bytes:
        wanted = query.get("topic", "")
        topics = [self.topics[wanted]] if wanted in self.topics else []
        if not wanted:
            topics = list(self.topics.values())
        for topic in topics:
            _move(topic)
        if query.get("include_clients") != "false":
            topics = [self._with_clients(topic) for topic in topics]
        if name := query.get("channel"):
            topics = [_only(topic, name) for topic in topics]
        return msgspec.json.encode(NodeStats("1.3.0", "OK", self.start_time, topics))

    def _with_clients(self, topic: TopicStats) -> TopicStats:
        channels = [
            msgspec.structs.replace(
                channel, clients=self.clients.get((topic.topic_name, channel.channel_name), [])
            )
            for channel in topic.channels or ()
        ]
        return msgspec.structs.replace(topic, channels=channels)


def _only(topic: TopicStats, channel: str) -> TopicStats:
    channels = [each for each in topic.channels or () if each.channel_name == channel]
    return msgspec.structs.replace(topic, channels=channels)


def _move(topic: TopicStats) -> None:
    """So many messages as its name is long come and go."""
    step = len(topic.topic_name)
    topic.message_count += step
    topic.message_bytes += 100 * step
    for channel in topic.channels or ():
        channel.message_count += step


class SimulatedCluster:
    """Nodes and an nsqlookupd; made by `running_cluster`."""

    def __init__(self, nodes: list[Node], lookupd: list[trio.SocketListener]) -> None:
        self.nodes = nodes
        self.counted = Counted()
        self.lookupd_mood: Mood = "answers"
        self.hidden: set[int] = set()
        self._lookupd = lookupd
        self._lists: dict[str, bytes] = {}

    @property
    def lookupd_address(self) -> str:
        """Where the nsqlookupd listens."""
        return f"127.0.0.1:{self._lookupd[0].socket.getsockname()[1]}"

    def populate(self, size: Size) -> None:
        """Give the nodes their topics, channels and clients."""
        channel_number = client_number = 0
        share = min(size.nodes_per_topic, size.nodes)
        for number in range(size.topics):
            name = f"topic-{number:05}"
            until = size.channels * (number + 1) // size.topics
            names = [f"channel-{each:05}" for each in range(channel_number, until)]
            channel_number = until
            nodes = [self.nodes[(number + step) % size.nodes] for step in range(share)]
            for node in nodes:
                channels = [_channel(each) for each in names]
                node.topics[name] = TopicStats(
                    name, channels, 0, 0, 1000, 100_000, False, Latency()
                )
            for each in names:
                channel_until = size.clients * (int(each[-5:]) + 1) // size.channels
                for client in range(client_number, channel_until):
                    node = nodes[client % share]
                    node.clients.setdefault((name, each), []).append(_client(client))
                client_number = channel_until
        for node in self.nodes:
            for (topic, each), clients in node.clients.items():
                for channel in node.topics[topic].channels or ():
                    if channel.channel_name == each:
                        channel.client_count = len(clients)

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled."""
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                await nursery.start(trio.serve_listeners, self._of_node(node), node.listeners)
            await nursery.start(trio.serve_listeners, self._serve_lookupd, self._lookupd)
            task_status.started()

    def _of_node(self, node: Node):  # type: ignore[no-untyped-def]
        async def serve(stream: trio.SocketStream) -> None:
            await self._converse(stream, node)

        return serve

    async def _serve_lookupd(self, stream: trio.SocketStream) -> None:
        await self._converse(stream, None)

    async def _converse(self, stream: trio.SocketStream, node: Node | None) -> None:
        """Requests of one connection, one after another."""
        unread = b""
        async with stream:
            while True:
                while b"\r\n\r\n" not in unread:
                    try:
                        more = await stream.receive_some(_REQUEST_NBYTES_MAX)
                    except trio.BrokenResourceError:
                        return
                    if not more:
                        return
                    unread += more
                head, _, unread = unread.partition(b"\r\n\r\n")
                url = urlsplit(head.split(b" ", 2)[1].decode())
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                if not await self._respond(stream, node, url.path, query):
                    return

    async def _respond(
        self, stream: trio.SocketStream, node: Node | None, path: str, query: dict[str, str]
    ) -> bool:
        counted = self.counted
        if path == "/simulated":
            told = vars(counted) | {"by_node": [each.asked for each in self.nodes]}
            return await _send(stream, json.dumps(told).encode(), lambda: None)
        if node is not None:
            node.asked += 1
        counted.asked[path] = counted.asked.get(path, 0) + 1
        counted.under_way += 1
        counted.under_way_max = max(counted.under_way_max, counted.under_way)
        with ExitStack() as answered:
            answered.callback(counted.answered)
            mood = self.lookupd_mood if node is None else node.mood
            if mood == "hangs":
                # Until the other side has had enough.
                await stream.receive_some(1)
            if mood in ("hangs", "closes"):
                return False
            await trio.sleep(0 if node is None else node.delay_s)
            if mood == "lies":
                body: bytes | None = b'{"topics":[{"topic_name":"t","depth":"many"}]}'
            else:
                body = self._listed(path, query) if node is None else node.answer(path, query)
            return await _send(stream, body, answered.close)

    def _listed(self, path: str, query: dict[str, str]) -> bytes | None:
        nodes = [node for node in self.nodes if node.number not in self.hidden]
        if path == "/nodes":
            return msgspec.json.encode({"producers": [node.producer() for node in nodes]})
        topics = {name: topic for node in nodes for name, topic in node.topics.items()}
        if path == "/topics":
            return msgspec.json.encode({"topics": sorted(topics)})
        topic = topics.get(query.get("topic", ""))
        if topic is None or path not in ("/lookup", "/channels"):
            return None
        names = [channel.channel_name for channel in topic.channels or ()]
        having = [node.producer() for node in nodes if topic.topic_name in node.topics]
        return msgspec.json.encode({"channels": names, "producers": having})


def _channel(name: str) -> ChannelStats:
    number = int(name[-5:])
    return ChannelStats(
        name,
        depth=number % 7 if number % 3 else 0,
        in_flight_count=number % 5,
        message_count=1000,
        requeue_count=number % 11,
        timeout_count=number % 13,
        paused=number % 499 == 498,
        e2e_processing_latency=Latency(),
    )


def _client(number: int) -> ClientStats:
    return ClientStats(
        client_id=f"client-{number:05}",
        hostname=f"client-{number:05}.example",
        version="V2",
        remote_address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:40000",
        state=3,
        ready_count=10,
        in_flight_count=1,
        message_count=1000,
        finish_count=999,
        connect_ts=1_790_000_000,
        user_agent="simulated/1",
    )


async def _send(
    stream: trio.SocketStream, body: bytes | None, before_last: Callable[[], object]
) -> bool:
    """False if the other side is gone; ``before_last`` is called before the last byte goes."""
    status = b"200 OK" if body is not None else b"404 Not Found"
    body = b'{"message":"NOT_FOUND"}' if body is None else body
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    try:
        await stream.send_all(head % (status, len(body)) + body[:-1])
        before_last()
        await stream.send_all(body[-1:])
    except trio.BrokenResourceError:
        return False
    return True


@asynccontextmanager
async def running_cluster(size: Size) -> AsyncIterator[SimulatedCluster]:
    """A cluster that answers inside the context."""
    nodes = [
        Node(number, await trio.open_tcp_listeners(0, host="127.0.0.1"))
        for number in range(size.nodes)
    ]
    cluster = SimulatedCluster(nodes, await trio.open_tcp_listeners(0, host="127.0.0.1"))
    cluster.populate(size)
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.serve)
        yield cluster
        nursery.cancel_scope.cancel()


async def _main(size: Size, delay_s: float, hanging: int) -> None:
    async with running_cluster(size) as cluster:
        for node in cluster.nodes:
            node.delay_s = delay_s
        for node in cluster.nodes[:hanging]:
            node.mood = "hangs"
        print(f"lookupd {cluster.lookupd_address}", flush=True)
        await trio.sleep_forever()


def size_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how large a cluster is."""
    for name, default in vars(Size()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--delay-ms", type=float, default=5.0, help="of each answer of an nsqd")
    parser.add_argument("--hanging", type=int, default=0, help="nsqds that never answer")


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tests.admin.simulated")
    size_arguments(parser)
    given = vars(parser.parse_args())
    delay_s, hanging = given.pop("delay_ms") / 1000, given.pop("hanging")
    trio.run(_main, Size(**given), delay_s, hanging)
    return 0


if __name__ == "__main__":
    sys.exit(main())
