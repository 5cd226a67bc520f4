"""What the broker says of itself, in the documents of /info and /stats; statsd sends of the same.

Nothing here waits, so a document is a consistent snapshot. Keys stand in nsqd's order.

Spec: nsqd-http, section 5.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NotRequired, TypedDict

from trionsq import NSQ_VERSION
from trionsq.broker.memory import MemoryFigures, memory_figures
from trionsq.core.latency import quantiles
from trionsq.upgrades.cipher_names import suite_name, version_name
from trionsq.wire.auth import Grant

if TYPE_CHECKING:
    from trionsq.broker.broker import Broker
    from trionsq.broker.channel import Channel
    from trionsq.broker.client import Client
    from trionsq.broker.topic import Topic

__all__ = [
    "ChannelStats",
    "ClientStats",
    "Info",
    "Latency",
    "StatsDocument",
    "StatsFilter",
    "TopicStats",
    "info",
    "statistics",
    "topic_stats",
]


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
    """One channel."""

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


class _Memory(TypedDict, total=False):
    memory: MemoryFigures


class StatsDocument(_Memory):
    """/stats?format=json."""

    version: str
    health: str
    start_time: int
    topics: list[TopicStats] | None
    producers: list[ClientStats] | None


@dataclass(frozen=True, slots=True)
class StatsFilter:
    """What of the statistics is asked for; empty names mean all topics, all channels."""

    topic: str = ""
    channel: str = ""
    clients: bool = True
    memory: bool = True


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


def statistics(broker: Broker, asked: StatsFilter) -> StatsDocument:
    """The document of /stats."""
    memory: _Memory = {"memory": memory_figures()} if asked.memory else {}
    return {
        "version": NSQ_VERSION,
        "health": broker.health,
        "start_time": broker.started_s,
        "topics": _topics(broker, asked),
        **memory,
        "producers": _producers(broker, asked),
    }


def _topics(broker: Broker, asked: StatsFilter) -> list[TopicStats] | None:
    if asked.topic and asked.topic not in broker.topics:
        return None
    names = [asked.topic] if asked.topic else sorted(broker.topics)
    topics = (broker.topics[name] for name in names)
    return [
        topic_stats(broker, topic, asked)
        for topic in topics
        if not asked.channel or asked.channel in topic.channels
    ]


def _producers(broker: Broker, asked: StatsFilter) -> list[ClientStats] | None:
    if not asked.clients or (asked.topic and asked.topic not in broker.topics):
        return None
    producers = [_client_stats(client, asked) for client in broker.clients if client.pub_counts]
    return producers or None


def topic_stats(broker: Broker, topic: Topic, asked: StatsFilter) -> TopicStats:
    """One topic of the document of /stats; of its channels those asked for."""
    core = topic.core
    names = [asked.channel] if asked.channel else sorted(topic.channels)
    return {
        "topic_name": topic.name,
        "channels": [_channel_stats(broker, topic.channels[name], asked) for name in names],
        "depth": core.depth,
        "backend_depth": core.store.backend.depth,
        "message_count": core.message_count,
        "message_bytes": core.message_bytes,
        "paused": core.paused,
        "e2e_processing_latency": _latency(broker, topic.channels.values()),
    }


def _channel_stats(broker: Broker, channel: Channel, asked: StatsFilter) -> ChannelStats:
    core = channel.core
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
        "clients": _clients(channel, asked),
        "paused": core.paused,
        "e2e_processing_latency": _latency(broker, [channel]),
    }


def _clients(channel: Channel, asked: StatsFilter) -> list[ClientStats] | None:
    return [_client_stats(client, asked) for client in channel.clients] if asked.clients else None


def _latency(broker: Broker, channels: Iterable[Channel]) -> Latency:
    """That of all these channels together."""
    wanted = broker.options.e2e_processing_latency_percentile
    if not wanted:
        return {"count": 0, "percentiles": None}
    recorded = [one.core.latencies for one in channels if one.core.latencies is not None]
    count, values_ns = quantiles(recorded, wanted, broker.clock.now_s())
    return {
        "count": count,
        "percentiles": [
            # nsqd writes the whole as 1.
            {"quantile": 1 if quantile == 1 else quantile, "value": value_ns}
            for quantile, value_ns in zip(wanted, values_ns, strict=True)
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
