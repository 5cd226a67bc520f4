"""The statistics of a broker, for /info, /stats and statsd.

Statistics are gathered in rows, and other tasks get their turn after some rows: no step of the
event loop grows with the number of topics, channels or clients. So a document does not show one
moment. Only the values of a topic (without its channels), of a channel or of a client belong to
one moment. Topics, channels and clients that are made or deleted meanwhile may be missing. Keys are
in nsqd's order.

Spec: nsqd-http, section 5.
"""

from __future__ import annotations

import gc
import heapq
import resource
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import trio

from trionsq import NSQ_VERSION
from trionsq.broker.channel import Channel
from trionsq.broker.client import Client
from trionsq.broker.drain import Drain
from trionsq.broker.options import NsqdOptions
from trionsq.broker.runtime import Clock, ListeningPorts
from trionsq.broker.stats_types import (
    ChannelStats,
    ClientHead,
    ClientStats,
    Info,
    Latency,
    MemoryMetrics,
    PubCount,
    TopicStats,
)
from trionsq.broker.topic import Topic
from trionsq.core.latency import MergedLatencies
from trionsq.transports.tls import suite_name, version_name
from trionsq.wire.auth import Grant

__all__ = [
    "ChannelRow",
    "ClientRow",
    "ProcessRow",
    "ProducerRow",
    "Row",
    "StatsFilter",
    "StatsSource",
    "TopicRow",
    "info",
    "memory_metrics",
    "statistics",
]

_STATM: Final = Path("/proc/self/statm")
# Rows gathered before other tasks get their turn: about a millisecond, JSON included.
_ROWS_PER_TURN: Final = 40
# The latencies of a busy channel cost as much as this number of rows.
_LATENCIES_ROWS: Final = 10
# Names to sort, or clients that publish nothing, for the cost of a row.
_CHEAP_PER_ROW: Final = 25


class StatsSource(Protocol):
    """A broker, as its statistics use it."""

    @property
    def options(self) -> NsqdOptions: ...
    @property
    def ports(self) -> ListeningPorts: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def started_s(self) -> int: ...
    @property
    def health(self) -> str: ...
    @property
    def drain(self) -> Drain: ...
    @property
    def topics(self) -> Mapping[str, Topic]: ...
    @property
    def clients(self) -> Iterable[Client]: ...


@dataclass(frozen=True, slots=True)
class StatsFilter:
    """The part of the statistics that a request asks for; empty names mean all.

    ``counts``: whether channels also say how many messages were finished; ours alone.
    """

    topic: str = ""
    channel: str = ""
    clients: bool = True
    memory: bool = True
    counts: bool = False


class ProcessRow(NamedTuple):
    """The process. ``has_topics`` is False if there is no topic of the requested name."""

    version: str
    health: str
    start_time: int
    memory: MemoryMetrics | None
    has_topics: bool
    is_draining: bool = False


class TopicRow(NamedTuple):
    """A topic. Its list of channels is empty: they come in the next rows."""

    stats: TopicStats
    topic: Topic


class ChannelRow(NamedTuple):
    """A channel of the topic before it. Its clients come in the next rows."""

    stats: ChannelStats
    channel: Channel


class ClientRow(NamedTuple):
    """A client of the channel before it."""

    stats: ClientStats


class ProducerRow(NamedTuple):
    """A client that has published. These rows come last."""

    stats: ClientStats


Row = ProcessRow | TopicRow | ChannelRow | ClientRow | ProducerRow


class _Turns:
    """Counts rows, and gives other tasks their turn after some of them."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = 0

    async def spend(self, rows: int) -> None:
        self._rows += rows
        if self._rows >= _ROWS_PER_TURN:
            self._rows = 0
            await trio.lowlevel.checkpoint()


def info(source: StatsSource) -> Info:
    """The document of /info."""
    options = source.options
    return {
        "version": NSQ_VERSION,
        "broadcast_address": options.broadcast_address,
        "hostname": socket.gethostname(),
        "http_port": source.ports.http,
        "tcp_port": source.ports.tcp,
        "start_time": source.started_s,
        "max_heartbeat_interval": options.max_heartbeat_interval_ns,
        "max_output_buffer_size": options.max_output_buffer_size,
        "max_output_buffer_timeout": options.max_output_buffer_timeout_ns,
        "max_deflate_level": options.max_deflate_level,
    }


async def statistics(source: StatsSource, query: StatsFilter) -> AsyncGenerator[Row, None]:
    """Yield the rows of /stats in their order, and give other tasks their turn meanwhile."""
    turns = _Turns()
    is_known = not query.topic or query.topic in source.topics
    yield ProcessRow(
        NSQ_VERSION,
        source.health,
        source.started_s,
        memory_metrics() if query.memory else None,
        is_known,
        source.drain.is_on,
    )
    if not is_known:
        return
    names = iter([query.topic]) if query.topic else await _sorted(source.topics, turns)
    for name in names:
        topic = source.topics.get(name)
        if topic is not None and (not query.channel or query.channel in topic.channels):
            async for row in _topic_rows(source, topic, query, turns):
                yield row
        else:
            await turns.spend(1)
    if query.clients:
        for place, client in enumerate(list(source.clients)):
            if client.pub_counts:
                yield ProducerRow(_client_stats(client, query))
                await turns.spend(1)
            elif place % _CHEAP_PER_ROW == 0:
                await turns.spend(1)


async def _topic_rows(
    source: StatsSource, topic: Topic, query: StatsFilter, turns: _Turns
) -> AsyncIterator[TopicRow | ChannelRow | ClientRow]:
    # First, because it takes turns; the other values belong to one moment.
    latency = await _latency_of_topic(source, topic, turns)
    core = topic.core
    yield TopicRow(
        {
            "topic_name": topic.name,
            "channels": [],
            "depth": core.depth + topic.letters,
            "backend_depth": core.store.backend.on_disk + topic.letters,
            "message_count": core.message_count,
            "message_bytes": core.message_bytes,
            "paused": core.paused,
            "e2e_processing_latency": latency,
        },
        topic,
    )
    await turns.spend(1)
    names = iter([query.channel]) if query.channel else await _sorted(topic.channels, turns)
    for name in names:
        channel = topic.channels.get(name)
        if channel is None:
            continue
        yield ChannelRow(_channel_stats(source, channel, query), channel)
        clients = list(channel.clients) if query.clients else ()
        await turns.spend(1 if channel.core.latencies is None else _LATENCIES_ROWS)
        for client in clients:
            yield ClientRow(_client_stats(client, query))
            await turns.spend(1)


async def _sorted(names: Collection[str], turns: _Turns) -> Iterator[str]:
    """The names in order. They are sorted in parts, which are merged as names are used."""
    unsorted = list(names)
    max_part = _ROWS_PER_TURN * _CHEAP_PER_ROW
    if len(unsorted) <= max_part:
        return iter(sorted(unsorted))
    parts = []
    for start in range(0, len(unsorted), max_part):
        parts.append(sorted(unsorted[start : start + max_part]))
        await turns.spend(_ROWS_PER_TURN)
    return heapq.merge(*parts)


def _channel_stats(source: StatsSource, channel: Channel, query: StatsFilter) -> ChannelStats:
    core = channel.core
    merged = MergedLatencies()
    if core.latencies is not None:
        merged.add_channel(core.latencies, source.clock.now_s())
    stats: ChannelStats = {
        "channel_name": channel.name,
        "depth": core.depth,
        "backend_depth": core.store.backend.on_disk,
        "in_flight_count": core.in_flight_count,
        "deferred_count": core.deferred_count,
        "message_count": core.message_count,
        "requeue_count": core.requeue_count,
        "timeout_count": core.timeout_count,
        "client_count": len(channel.clients),
        "clients": [] if query.clients else None,
        "paused": core.paused,
        "e2e_processing_latency": _latency(source, merged),
    }
    if query.counts:
        stats["finish_count"] = core.finish_count
    return stats


async def _latency_of_topic(source: StatsSource, topic: Topic, turns: _Turns) -> Latency:
    """The latency of all channels of a topic together."""
    merged = MergedLatencies()
    if source.options.e2e_processing_latency_percentile:
        for channel in list(topic.channels.values()):
            if channel.core.latencies is not None:
                merged.add_channel(channel.core.latencies, source.clock.now_s())
                await turns.spend(_LATENCIES_ROWS)
    return _latency(source, merged)


def _latency(source: StatsSource, merged: MergedLatencies) -> Latency:
    quantiles = source.options.e2e_processing_latency_percentile
    if not quantiles:
        return {"count": 0, "percentiles": None}
    return {
        "count": merged.count,
        "percentiles": [
            # nsqd writes the whole as 1.
            {"quantile": 1 if quantile == 1 else quantile, "value": value_ns}
            for quantile, value_ns in zip(quantiles, merged.quantiles_ns(quantiles), strict=True)
        ],
    }


def _client_stats(client: Client, query: StatsFilter) -> ClientStats:
    identity, consumer, tls = client.identity, client.consumer, client.tls
    shown: ClientHead = {
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
    published = _pub_count(client, query)
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


def _show_grant(shown: ClientHead, grant: Grant) -> None:
    if len(grant):
        shown["authed"] = True
    if grant.identity:
        shown["auth_identity"] = grant.identity
    if grant.identity_url:
        shown["auth_identity_url"] = grant.identity_url


def _pub_count(client: Client, query: StatsFilter) -> PubCount | None:
    """At most one count, as in nsqd: of the requested topic, else of any topic."""
    counts = client.pub_counts
    topic = query.topic or next(iter(counts), "")
    return {"topic": topic, "count": counts[topic]} if counts[topic] else None


def memory_metrics() -> MemoryMetrics:
    """Memory of this process under the names that nsqd gives to its own.

    Consumers only draw these values. They mean what comes nearest in a Python process:

    - heap_objects: memory blocks that are allocated
    - heap_in_use_bytes: resident size; heap_idle_bytes and heap_released_bytes: data that is mapped
      but not resident
    - gc_total_runs: runs of the collector, of all generations; its pauses are not measured (0)
    - next_gc_bytes: the collector counts objects, so this is the resident size
    """
    resident, idle = _resident_and_idle()
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": idle,
        "heap_in_use_bytes": resident,
        "heap_released_bytes": idle,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": resident,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


def _resident_and_idle() -> tuple[int, int]:
    try:
        pages = [int(field) for field in _STATM.read_text().split()]
    except OSError:
        # Not Linux: the peak is all there is (in KiB, on macOS in bytes).
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return (peak if sys.platform == "darwin" else peak * 1024), 0
    page_bytes = resource.getpagesize()
    _, resident, shared, _, _, data, *_ = pages
    return resident * page_bytes, max(0, data - (resident - shared)) * page_bytes
