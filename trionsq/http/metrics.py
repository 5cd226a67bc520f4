"""The figures of nsqd at /metrics. docs/metrics.md tells what each is good for.

They are gathered some topics and channels at a time, so a page is no snapshot of one moment. The
figures of one topic without its channels are, and so are those of one channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import trio

from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.broker.topic import Topic
from trionsq.core.latency import quantiles
from trionsq.web.gate import Gate
from trionsq.web.metrics import (
    Family,
    HistogramMetrics,
    Labels,
    MetricSet,
    MetricsPage,
    Table,
    build_info,
    counter,
    gate_metrics,
    gauge,
)

__all__ = ["metrics_page"]

# Topics and channels that are looked at before other tasks get their turn: about a millisecond.
_MAX_LOOKS: Final = 100
# Quantiles of a busy channel cost as much as so many looks.
_QUANTILE_LOOKS: Final = 10

# Clients whose output is added up before other tasks get their turn.
_MAX_CLIENTS: Final = 1_000

_OLDEST: Final = "Age of the older of the next messages in memory and on disk, 0 if none waits."
_TOPIC: Final = (
    gauge("nsqd_topic_depth_messages", "Messages that wait at the topic for its channels."),
    gauge("nsqd_topic_backend_depth_messages", "Of the depth, messages on disk."),
    gauge("nsqd_topic_oldest_message_age_seconds", _OLDEST),
    counter("nsqd_topic_messages", "Messages published."),
    counter("nsqd_topic_message_bytes", "Bytes of bodies published."),
    gauge("nsqd_topic_channels", "Channels."),
    gauge("nsqd_topic_paused", "1 while messages are held back from the channels."),
)
_CHANNEL: Final = (
    gauge("nsqd_channel_depth_messages", "Messages that wait for a client."),
    gauge("nsqd_channel_backend_depth_messages", "Of the depth, messages on disk."),
    gauge("nsqd_channel_oldest_message_age_seconds", _OLDEST),
    gauge("nsqd_channel_in_flight_messages", "Messages sent and not yet finished."),
    gauge("nsqd_channel_deferred_messages", "Messages in memory that wait for their time."),
    counter("nsqd_channel_messages", "Messages taken from the topic."),
    counter("nsqd_channel_finished_messages", "Messages finished by FIN."),
    counter("nsqd_channel_requeued_messages", "Messages given back by REQ."),
    counter("nsqd_channel_timed_out_messages", "Messages not finished in time, queued again."),
    gauge("nsqd_channel_clients", "Clients subscribed."),
    gauge("nsqd_channel_paused", "1 while nothing is sent to clients."),
)
_TOPIC_DROPPED: Final = counter(
    "nsqd_topic_dropped_messages", "Messages given up on purpose, by reason."
)
_CHANNEL_DROPPED: Final = counter(
    "nsqd_channel_dropped_messages", "Messages given up on purpose, by reason."
)
_LATENCY: Final = gauge(
    "nsqd_channel_e2e_latency_seconds",
    "Quantiles of the time from publishing to FIN, over --e2e-processing-latency-window-time.",
)
_PROCESS: Final = (
    gauge("nsqd_connections", "TCP clients."),
    counter("nsqd_client_failures", "Connections ended by a defect of nsqd's."),
    gauge("nsqd_queued_output_bytes", "Bytes for clients that their sockets have not taken."),
    gauge("nsqd_topics", "Topics."),
    counter("nsqd_broken_invariants", "Finds that what a queue counts does not add up: a defect."),
    gauge("nsqd_disk_faults", "Queues and files with which something is wrong; 0 is healthy."),
)
_DEFECTS: Final = counter(
    "nsqd_defects", "Exceptions that nobody expected, by the part of nsqd that they cost a turn."
)
_REFUSED: Final = counter(
    "nsqd_connections_refused", "TCP connections closed at once, by the limit that was met."
)
_AUTH: Final = (
    gauge("nsqd_auth_asking_clients", "Clients for which an auth server is asked right now."),
    gauge("nsqd_auth_waiting_clients", "Clients that wait until an auth server may be asked."),
)
_LOOKUPD: Final = gauge("nsqd_lookupd_connected", "1 while registered at the nsqlookupd.")


def metrics_page(broker: Broker, gate: Gate) -> MetricsPage:
    """/metrics of ``broker`` and of the ``gate`` before its HTTP."""
    return MetricsPage(lambda: _gather(broker, gate))


async def _gather(broker: Broker, gate: Gate) -> Sequence[MetricSet]:
    topics, channels = Table(_TOPIC), Table(_CHANNEL)
    topics_dropped, channels_dropped = Table([_TOPIC_DROPPED]), Table([_CHANNEL_DROPPED])
    latencies = Table([_LATENCY])
    looks = 0
    for topic in list(broker.topics.values()):
        now_ns = broker.clock.now_ns()
        labels = {"topic": topic.name}
        topics.rows.append((labels, _topic(topic, now_ns)))
        _add_dropped(topics_dropped, labels, topic.core.dropped)
        looks += 1
        for channel in list(topic.channels.values()):
            both = {"topic": topic.name, "channel": channel.name}
            channels.rows.append((both, _channel(channel, now_ns)))
            _add_dropped(channels_dropped, both, channel.core.dropped)
            looks += 1 + _add_latencies(latencies, both, broker, channel)
            if looks >= _MAX_LOOKS:
                looks = 0
                await trio.lowlevel.checkpoint()
                now_ns = broker.clock.now_ns()
        if looks >= _MAX_LOOKS:
            looks = 0
            await trio.lowlevel.checkpoint()
    return [
        build_info("nsqd"),
        *_process(broker, await _queued_output_bytes(broker)),
        *gate_metrics("nsqd", gate),
        topics,
        topics_dropped,
        channels,
        channels_dropped,
        latencies,
    ]


def _topic(topic: Topic, now_ns: int) -> list[float | None]:
    core = topic.core
    return [
        core.depth,
        core.store.backend.depth,
        _age_s(core.depth, core.oldest_ns(), now_ns),
        core.message_count,
        core.message_bytes,
        len(topic.channels),
        core.paused,
    ]


def _channel(channel: Channel, now_ns: int) -> list[float | None]:
    core = channel.core
    return [
        core.depth,
        core.store.backend.depth,
        _age_s(core.depth, core.store.oldest_ns(), now_ns),
        core.in_flight_count,
        core.deferred_count,
        core.message_count,
        core.finish_count,
        core.requeue_count,
        core.timeout_count,
        len(channel.clients),
        core.paused,
    ]


def _age_s(depth: int, oldest_ns: int | None, now_ns: int) -> float | None:
    """None: something waits whose age is not known, for the disk does not tell."""
    if oldest_ns is None:
        return None if depth else 0.0
    return max(0.0, (now_ns - oldest_ns) / 1e9)


def _add_dropped(table: Table, labels: Labels, dropped: Mapping[str, int]) -> None:
    for reason, count in dropped.items():
        table.rows.append(({**labels, "reason": reason.replace(" ", "_")}, [count]))


def _add_latencies(table: Table, labels: Labels, broker: Broker, channel: Channel) -> int:
    """Those asked for by --e2e-processing-latency-percentile; how many looks that cost."""
    recorded = channel.core.latencies
    if recorded is None:
        return 0
    wanted = broker.options.e2e_processing_latency_percentile
    count, values_ns = quantiles([recorded], wanted, broker.clock.now_s())
    if count:
        for quantile, value_ns in zip(wanted, values_ns, strict=True):
            table.rows.append(({**labels, "quantile": f"{quantile:g}"}, [value_ns / 1e9]))
    return _QUANTILE_LOOKS


async def _queued_output_bytes(broker: Broker) -> int:
    """Bytes for clients that their sockets have not taken, added up some clients at a time."""
    queued = 0
    for place, client in enumerate(list(broker.clients), 1):
        queued += client.output.pending
        if place % _MAX_CLIENTS == 0:
            await trio.lowlevel.checkpoint()
    return queued


def _process(broker: Broker, queued_output_bytes: int) -> list[MetricSet]:
    admission = broker.admission
    values = [
        admission.connections,
        broker.client_failures,
        queued_output_bytes,
        len(broker.topics),
        broker.checks.broken_count,
        len(broker.folder.faults),
    ]
    peers = broker.lookups.peers.values()
    servers = broker.auth_servers
    asked: list[tuple[Labels, Sequence[float | None]]] = []
    if servers is not None:
        asked.append(({}, [servers.active_requests, servers.waiting_requests]))
    return [
        Table(_PROCESS, [({}, values)]),
        _one(_DEFECTS, [({"part": part}, [n]) for part, n in broker.defect_counts.items()]),
        _one(_REFUSED, [({"limit": limit}, [n]) for limit, n in admission.refused_by.items()]),
        Table(_AUTH, asked),
        _one(_LOOKUPD, [({"lookupd": peer.label}, [peer.is_connected]) for peer in peers]),
        HistogramMetrics.of(
            "nsqd_fsync_duration_seconds",
            "Duration of an fsync of a disk queue's file.",
            broker.folder.fsync_s,
        ),
        HistogramMetrics.of(
            "nsqd_event_loop_lag_seconds",
            "How much later than it wanted a task woke up, sampled twice a second.",
            broker.loop_lag_s,
        ),
    ]


def _one(family: Family, rows: list[tuple[Labels, Sequence[float | None]]]) -> Table:
    return Table([family], rows)
