"""What the broker says of itself, in the documents of /info and /stats; statsd sends of the same.

Statistics are gathered in rows, and other tasks get their turn after some of them: no step of the
event loop grows with the number of topics, channels or clients. So a document is not of one moment.
The figures of one topic without its channels are, and so are those of one channel, and those of one
client. What is made or deleted meanwhile may be missing. Keys stand in nsqd's order.

Spec: nsqd-http, section 5.
"""

from __future__ import annotations

import heapq
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, NotRequired, TypedDict

import trio

from trionsq import NSQ_VERSION
from trionsq.broker.memory import MemoryFigures, memory_figures
from trionsq.core.latency import MergedLatencies
from trionsq.transports.cipher_names import suite_name, version_name
from trionsq.wire.auth import Grant

if TYPE_CHECKING:
    from trionsq.broker.broker import Broker
    from trionsq.broker.channel import Channel
    from trionsq.broker.client import Client
    from trionsq.broker.topic import Topic

__all__ = [
    "ChannelRow",
    "ChannelStats",
    "ClientRow",
    "ClientStats",
    "Head",
    "Info",
    "Latency",
    "ProducerRow",
    "Row",
    "StatsFilter",
    "TopicRow",
    "TopicStats",
    "info",
    "statistics",
]

# Rows that are gathered before other tasks get their turn: with their JSON, about a millisecond.
_ROWS_MAX: Final = 40
# Latencies of a busy channel cost as much as so many rows.
_LATENCIES_ROWS: Final = 10
# So many names are sorted, or clients that publish nothing are passed, for the cost of a row.
_PER_ROW: Final = 25


class Info(TypedDict):
    """/info; durations in nanoseconds, ports -1 for a unix socket and 0 for none."""

    version: str
    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    start_time: int
    max_heartbeat_interval: int
    max_output_buffer_size: int
    max_output_buffer_timeout: int
    max_deflate_level: int


class Quantile(TypedDict):
    """``value`` in nanoseconds."""

    quantile: float
    value: int


class Latency(TypedDict):
    """End-to-end latency; ``percentiles`` is None unless the option asks for it."""

    count: int
    percentiles: list[Quantile] | None


class PubCount(TypedDict):
    """Messages that a connection published to a topic."""

    topic: str
    count: int


class _Shown(TypedDict):
    """The part of a connection's keys up to pub_counts."""

    client_id: str
    hostname: str
    version: str
    remote_address: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool
    snappy: bool
    user_agent: str
    authed: NotRequired[bool]
    auth_identity: NotRequired[str]
    auth_identity_url: NotRequired[str]
    pub_counts: NotRequired[list[PubCount]]


class ClientStats(_Shown):
    """One connection."""

    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool


class ChannelStats(TypedDict):
    """One channel; ``clients`` is None if nobody asked for them."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[ClientStats] | None
    paused: bool
    e2e_processing_latency: Latency


class TopicStats(TypedDict):
    """One topic with its channels."""

    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: Latency


@dataclass(frozen=True, slots=True)
class StatsFilter:
    """What of the statistics is asked for; empty names mean all topics, all channels."""

    topic: str = ""
    channel: str = ""
    clients: bool = True
    memory: bool = True


class Head(NamedTuple):
    """What is told of the process; ``has_topics`` is False if it has no topic of that name."""

    version: str
    health: str
    start_time: int
    memory: MemoryFigures | None
    has_topics: bool


class TopicRow(NamedTuple):
    """A topic. The list of its channels is empty: they come in the rows that follow."""

    stats: TopicStats
    topic: Topic


class ChannelRow(NamedTuple):
    """A channel of the topic before. Its clients come in the rows that follow."""

    stats: ChannelStats
    channel: Channel


class ClientRow(NamedTuple):
    """A client of the channel before."""

    stats: ClientStats


class ProducerRow(NamedTuple):
    """A client that publishes. These rows come last."""

    stats: ClientStats


Row = Head | TopicRow | ChannelRow | ClientRow | ProducerRow


class _Turns:
    """Counts rows, and gives other tasks their turn when there were enough."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = 0

    async def spend(self, rows: int) -> None:
        self._rows += rows
        if self._rows >= _ROWS_MAX:
            self._rows = 0
            await trio.lowlevel.checkpoint()


def info(broker: Broker) -> Info:
    """The document of /info."""
    options = broker.options
    return {
        "version": NSQ_VERSION,
        "broadcast_address": options.broadcast_address,
        "hostname": socket.gethostname(),
        "http_port": broker.http_port,
        "tcp_port": broker.tcp_port,
        "start_time": broker.started_s,
        "max_heartbeat_interval": options.max_heartbeat_interval_ns,
        "max_output_buffer_size": options.max_output_buffer_size,
        "max_output_buffer_timeout": options.max_output_buffer_timeout_ns,
        "max_deflate_level": options.max_deflate_level,
    }


async def statistics(broker: Broker, asked: StatsFilter) -> AsyncGenerator[Row, None]:
    """The rows of the document of /stats, in its order. Other tasks get their turn meanwhile."""
    turns = _Turns()
    is_known = not asked.topic or asked.topic in broker.topics
    yield Head(
        NSQ_VERSION,
        broker.health,
        broker.started_s,
        memory_figures() if asked.memory else None,
        is_known,
    )
    if not is_known:
        return
    names = iter([asked.topic]) if asked.topic else await _sorted(broker.topics, turns)
    for name in names:
        topic = broker.topics.get(name)
        if topic is not None and (not asked.channel or asked.channel in topic.channels):
            async for row in _topic_rows(broker, topic, asked, turns):
                yield row
        else:
            await turns.spend(1)
    if asked.clients:
        for place, client in enumerate(list(broker.clients)):
            if client.pub_counts:
                yield ProducerRow(_client_stats(client, asked))
                await turns.spend(1)
            elif place % _PER_ROW == 0:
                await turns.spend(1)


async def _topic_rows(
    broker: Broker, topic: Topic, asked: StatsFilter, turns: _Turns
) -> AsyncIterator[TopicRow | ChannelRow | ClientRow]:
    # First, for it takes its turns, and what follows is of one moment.
    latency = await _latency_of_topic(broker, topic, turns)
    core = topic.core
    yield TopicRow(
        {
            "topic_name": topic.name,
            "channels": [],
            "depth": core.depth,
            "backend_depth": core.store.backend.depth,
            "message_count": core.message_count,
            "message_bytes": core.message_bytes,
            "paused": core.paused,
            "e2e_processing_latency": latency,
        },
        topic,
    )
    await turns.spend(1)
    names = iter([asked.channel]) if asked.channel else await _sorted(topic.channels, turns)
    for name in names:
        channel = topic.channels.get(name)
        if channel is None:
            continue
        yield ChannelRow(_channel_stats(broker, channel, asked), channel)
        clients = list(channel.clients) if asked.clients else ()
        await turns.spend(1 if channel.core.latencies is None else _LATENCIES_ROWS)
        for client in clients:
            yield ClientRow(_client_stats(client, asked))
            await turns.spend(1)


async def _sorted(names: Collection[str], turns: _Turns) -> Iterator[str]:
    """The names in order. Only parts are sorted at once; they are merged as names are taken."""
    given = list(names)
    part_max = _ROWS_MAX * _PER_ROW
    if len(given) <= part_max:
        return iter(sorted(given))
    parts = []
    for start in range(0, len(given), part_max):
        parts.append(sorted(given[start : start + part_max]))
        await turns.spend(_ROWS_MAX)
    return heapq.merge(*parts)


def _channel_stats(broker: Broker, channel: Channel, asked: StatsFilter) -> ChannelStats:
    core = channel.core
    merged = MergedLatencies()
    if core.latencies is not None:
        merged.add_channel(core.latencies, broker.clock.now_s())
    return {
        "channel_name": channel.name,
        "depth": core.depth,
        "backend_depth": core.store.backend.depth,
        "in_flight_count": core.in_flight_count,
        "deferred_count": core.deferred_count,
        "message_count": core.message_count,
        "requeue_count": core.requeue_count,
        "timeout_count": core.timeout_count,
        "client_count": len(channel.clients),
        "clients": [] if asked.clients else None,
        "paused": core.paused,
        "e2e_processing_latency": _latency(broker, merged),
    }


async def _latency_of_topic(broker: Broker, topic: Topic, turns: _Turns) -> Latency:
    """That of all its channels together."""
    merged = MergedLatencies()
    if broker.options.e2e_processing_latency_percentile:
        for channel in list(topic.channels.values()):
            if channel.core.latencies is not None:
                merged.add_channel(channel.core.latencies, broker.clock.now_s())
                await turns.spend(_LATENCIES_ROWS)
    return _latency(broker, merged)


def _latency(broker: Broker, merged: MergedLatencies) -> Latency:
    wanted = broker.options.e2e_processing_latency_percentile
    if not wanted:
        return {"count": 0, "percentiles": None}
    return {
        "count": merged.count,
        "percentiles": [
            # nsqd writes the whole as 1.
            {"quantile": 1 if quantile == 1 else quantile, "value": value_ns}
            for quantile, value_ns in zip(wanted, merged.quantiles_ns(wanted), strict=True)
        ],
    }


def _client_stats(client: Client, asked: StatsFilter) -> ClientStats:
    identity, consumer, tls = client.identity, client.consumer, client.tls
    shown: _Shown = {
        "client_id": identity.client_id,
        "hostname": identity.hostname,
        "version": "V2",
        "remote_address": client.peer,
        "state": int(client.state),
        "ready_count": consumer.rdy,
        "in_flight_count": len(consumer.in_flight),
        "message_count": consumer.message_count,
        "finish_count": consumer.finish_count,
        "requeue_count": consumer.requeue_count,
        "connect_ts": client.connected_s,
        "sample_rate": identity.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": identity.user_agent,
    }
    if client.auth is not None:
        _show_grant(shown, client.auth.grant)
    published = _pub_count(client, asked)
    if published is not None:
        shown["pub_counts"] = [published]
    return {
        **shown,
        "tls": tls is not None,
        "tls_cipher_suite": suite_name(tls.cipher) if tls else "",
        "tls_version": version_name(tls.version) if tls else "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": tls is not None,
    }


def _show_grant(shown: _Shown, grant: Grant) -> None:
    if len(grant):
        shown["authed"] = True
    if grant.identity:
        shown["auth_identity"] = grant.identity
    if grant.identity_url:
        shown["auth_identity_url"] = grant.identity_url


def _pub_count(client: Client, asked: StatsFilter) -> PubCount | None:
    """At most one, as nsqd has it: of the topic asked for, else of any."""
    counts = client.pub_counts
    topic = asked.topic or next(iter(counts), "")
    return {"topic": topic, "count": counts[topic]} if counts[topic] else None
