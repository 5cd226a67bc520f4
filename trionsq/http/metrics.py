"""The metrics of nsqd at /metrics; docs/metrics.md explains each.

They are gathered some topics and channels at a time, so a page is not a snapshot of one moment. But
the metrics of one channel are, and so are those of one topic without its channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.broker.logs import durability_of, log_of
from trionsq.broker.topic import Topic
from trionsq.core.latency import quantiles
from trionsq.http.logstream import Readers
from trionsq.http.node_metrics import node_metrics, table_of
from trionsq.storage.log.retention import Retention
from trionsq.storage.log.topiclog import TopicLog
from trionsq.web.gate import Gate
from trionsq.web.metrics import (
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

# Topics and channels that are read before other tasks run: about a millisecond.
_MAX_READS: Final = 100
# The quantiles of a busy channel cost as much as reading so many channels.
_QUANTILE_READS: Final = 10

# Clients whose output is added up before other tasks run.
_MAX_CLIENTS: Final = 1_000

_OLDEST: Final = "Age of the oldest waiting message, in memory or on disk; 0 if none waits."
_TOPIC: Final = (
    gauge("nsqd_topic_depth_messages", "Messages that wait at the topic for its channels."),
    gauge("nsqd_topic_backend_depth_messages", "Of the depth, messages on disk."),
    gauge("nsqd_topic_oldest_message_age_seconds", _OLDEST),
    counter("nsqd_topic_messages", "Messages published."),
    counter("nsqd_topic_message_bytes", "Bytes of bodies published."),
    gauge("nsqd_topic_channels", "Channels."),
    gauge("nsqd_topic_paused", "1 while the topic is paused: its channels get no messages."),
)
_CHANNEL: Final = (
    gauge("nsqd_channel_depth_messages", "Messages that wait for a consumer."),
    gauge("nsqd_channel_backend_depth_messages", "Of the depth, messages on disk."),
    gauge("nsqd_channel_oldest_message_age_seconds", _OLDEST),
    gauge("nsqd_channel_in_flight_messages", "Messages sent and not yet finished."),
    gauge("nsqd_channel_deferred_messages", "Deferred messages in memory."),
    counter("nsqd_channel_messages", "Messages received from the topic."),
    counter("nsqd_channel_finished_messages", "Messages finished by FIN."),
    counter("nsqd_channel_requeued_messages", "Messages requeued by REQ."),
    counter(
        "nsqd_channel_timed_out_messages", "Messages whose timeout passed; they were requeued."
    ),
    counter("nsqd_channel_replayed_messages", "Messages that an operator asked for once more."),
    gauge("nsqd_channel_clients", "Clients subscribed."),
    gauge("nsqd_channel_paused", "1 while the channel is paused: its consumers get no messages."),
)
_STORAGE: Final = gauge("nsqd_topic_storage", "1: which engine keeps the messages, and how safely.")
_LOG: Final = (
    gauge("nsqd_log_segments", "Files of the topic's log."),
    gauge("nsqd_log_disk_bytes", "Size of these files."),
    gauge("nsqd_log_unsafe_messages", "Messages whose publishers wait for the disk."),
    gauge("nsqd_log_unsafe_bytes", "Size of these messages, and some for each."),
    gauge("nsqd_log_unsynced_bytes", "Bytes that are answered and not durable: interval only."),
    counter("nsqd_log_rounds", "Rounds that were written. All messages of one are safe together."),
    counter("nsqd_log_failed_rounds", "Rounds that were refused: the disk did not take them."),
    counter("nsqd_log_refused_messages", "Messages refused: the disk failed, or is full."),
    gauge(
        "nsqd_log_damaged_places",
        "Damaged places of the log that are still there, and that no operator has noted.",
    ),
    gauge("nsqd_log_first_sequence", "Sequence of the oldest message that the log may have."),
    gauge("nsqd_log_next_sequence", "Sequence that the next message gets."),
    gauge("nsqd_log_first_timestamp_seconds", "When the oldest file of the log was made."),
    gauge("nsqd_log_last_timestamp_seconds", "When the newest message in memory was published."),
    gauge("nsqd_log_retain_seconds", "How long finished messages stay; 0: as long as needed."),
    gauge("nsqd_log_retain_bytes", "How many bytes of the log stay; 0: as many as needed."),
)
_HOLDER: Final = gauge(
    "nsqd_log_oldest_segment", "1: what keeps the oldest file of the log; see docs/durability.md."
)
_TOPIC_DROPPED: Final = counter(
    "nsqd_topic_dropped_messages", "Messages discarded on purpose, by reason."
)
_CHANNEL_DROPPED: Final = counter(
    "nsqd_channel_dropped_messages", "Messages discarded on purpose, by reason."
)
_LATENCY: Final = gauge(
    "nsqd_channel_e2e_latency_seconds",
    "Quantiles of the time from publishing to FIN, over --e2e-processing-latency-window-time.",
)
_PROCESS: Final = (
    gauge("nsqd_connections", "TCP clients."),
    counter("nsqd_client_failures", "Connections that a defect of nsqd has ended."),
    gauge(
        "nsqd_queued_output_bytes", "Bytes of output that the sockets of clients have not accepted."
    ),
    gauge("nsqd_topics", "Topics."),
    counter("nsqd_broken_invariants", "Checks that found counters which do not add up: a defect."),
    gauge("nsqd_disk_faults", "Queues and files with a fault; 0 is healthy."),
    gauge("nsqd_draining", "1 while nsqd refuses publishes because it is drained."),
)
_DEFECTS: Final = counter("nsqd_defects", "Unexpected exceptions, by the part of nsqd that failed.")
_REFUSED: Final = counter(
    "nsqd_connections_refused", "TCP connections closed at once, by the limit that was reached."
)
_AUTH: Final = (
    gauge("nsqd_auth_asking_clients", "Clients with a request at an auth server."),
    gauge("nsqd_auth_waiting_clients", "Clients that wait for a free request to an auth server."),
)
_LOOKUPD: Final = gauge("nsqd_lookupd_connected", "1 while registered at the nsqlookupd.")


def metrics_page(broker: Broker, gate: Gate, readers: Readers) -> MetricsPage:
    """Return /metrics of ``broker``, of the ``gate`` before its HTTP and of who reads its logs."""
    return MetricsPage(lambda: _gather(broker, gate, readers))


async def _gather(broker: Broker, gate: Gate, readers: Readers) -> Sequence[MetricSet]:
    topics, channels = Table(_TOPIC), Table(_CHANNEL)
    topics_dropped, channels_dropped = Table([_TOPIC_DROPPED]), Table([_CHANNEL_DROPPED])
    latencies = Table([_LATENCY])
    storages, logs, holders = Table([_STORAGE]), Table(_LOG), Table([_HOLDER])
    retentions = broker.logs.retentions
    damaged = _damaged(broker)
    reads = 0
    for topic in list(broker.topics.values()):
        now_ns = broker.clock.now_ns()
        labels = {"topic": topic.name}
        topics.rows.append((labels, _topic(topic, now_ns)))
        topic_log = log_of(topic)
        storage = {"storage": topic.storage, "durability": durability_of(topic)}
        storages.rows.append(({**labels, **storage}, [1]))
        if topic_log is not None:
            kept, holder = retentions.of(topic_log), retentions.holder(topic_log)
            logs.rows.append((labels, _log(topic_log, damaged[topic.name], kept)))
            held = {"held_by": holder.kind, "channel": holder.channel}
            holders.rows.append(({**labels, **held}, [1]))
        _add_dropped(topics_dropped, labels, topic.core.dropped)
        reads += 1
        for channel in list(topic.channels.values()):
            both = {"topic": topic.name, "channel": channel.name}
            channels.rows.append((both, _channel(channel, now_ns)))
            _add_dropped(channels_dropped, both, channel.core.dropped)
            reads += 1 + _add_latencies(latencies, both, broker, channel)
            if reads >= _MAX_READS:
                reads = 0
                await trio.lowlevel.checkpoint()
                now_ns = broker.clock.now_ns()
        if reads >= _MAX_READS:
            reads = 0
            await trio.lowlevel.checkpoint()
    return [
        build_info("nsqd"),
        *_process(broker, await _queued_output_bytes(broker)),
        *gate_metrics("nsqd", gate),
        *node_metrics(broker, readers),
        storages,
        logs,
        holders,
        topics,
        topics_dropped,
        channels,
        channels_dropped,
        latencies,
    ]


def _topic(topic: Topic, now_ns: int) -> list[float | None]:
    core = topic.core
    return [
        core.depth + topic.letters,
        core.store.backend.on_disk + topic.letters,
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
        core.store.backend.on_disk,
        _age_s(core.depth, core.store.oldest_ns(), now_ns),
        core.in_flight_count,
        core.deferred_count,
        core.message_count,
        core.finish_count,
        core.requeue_count,
        core.timeout_count,
        core.replayed_count,
        len(channel.clients),
        core.paused,
    ]


def _damaged(broker: Broker) -> Counter[str]:
    """Count the damaged places by topic."""
    node = broker.logs.node
    return Counter() if node is None else Counter(place.topic for place in node.damaged)


def _log(topic_log: TopicLog, damaged_count: int, kept: Retention) -> list[float | None]:
    figures, segments = topic_log.figures, topic_log.segments
    first_ns = segments[0].header.created_ns if segments else None
    last_ns = topic_log.cache.time_of(topic_log.safe_end - 1)
    unsafe_count, unsafe_nbytes = topic_log.unsafe
    return [
        len(segments),
        figures.disk_nbytes(segments),
        unsafe_count,
        unsafe_nbytes,
        topic_log.unsynced_nbytes,
        figures.rounds,
        figures.failed_rounds,
        figures.refused_count,
        damaged_count,
        topic_log.first,
        topic_log.end,
        None if first_ns is None else first_ns / 1e9,
        None if last_ns is None else last_ns / 1e9,
        kept.time_ns / 1e9,
        kept.nbytes,
    ]


def _age_s(depth: int, oldest_ns: int | None, now_ns: int) -> float | None:
    """Return the age of the oldest message; None if it is on disk and its age is unknown."""
    if oldest_ns is None:
        return None if depth else 0.0
    return max(0.0, (now_ns - oldest_ns) / 1e9)


def _add_dropped(table: Table, labels: Labels, dropped: Mapping[str, int]) -> None:
    for reason, count in dropped.items():
        table.rows.append(({**labels, "reason": reason.replace(" ", "_")}, [count]))


def _add_latencies(table: Table, labels: Labels, broker: Broker, channel: Channel) -> int:
    """Add the quantiles of --e2e-processing-latency-percentile; return their cost in reads."""
    latencies = channel.core.latencies
    if latencies is None:
        return 0
    percentiles = broker.options.e2e_processing_latency_percentile
    count, values_ns = quantiles([latencies], percentiles, broker.clock.now_s())
    if count:
        for quantile, value_ns in zip(percentiles, values_ns, strict=True):
            table.rows.append(({**labels, "quantile": f"{quantile:g}"}, [value_ns / 1e9]))
    return _QUANTILE_READS


async def _queued_output_bytes(broker: Broker) -> int:
    """Add up the output that sockets have not accepted, some clients at a time."""
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
        broker.drain.is_on,
    ]
    peers = broker.lookups.peers.values()
    servers = broker.auth_servers
    auth_rows: list[tuple[Labels, Sequence[float | None]]] = []
    if servers is not None:
        auth_rows.append(({}, [servers.active_requests, servers.waiting_requests]))
    return [
        Table(_PROCESS, [({}, values)]),
        table_of(_DEFECTS, [({"part": part}, [n]) for part, n in broker.defect_counts.items()]),
        table_of(_REFUSED, [({"limit": limit}, [n]) for limit, n in admission.refused_by.items()]),
        Table(_AUTH, auth_rows),
        table_of(_LOOKUPD, [({"lookupd": peer.label}, [peer.is_connected]) for peer in peers]),
        HistogramMetrics.of(
            "nsqd_fsync_duration_seconds",
            "Duration of an fsync of a disk queue's file.",
            broker.folder.fsync_s,
        ),
        HistogramMetrics.of(
            "nsqd_event_loop_lag_seconds",
            "How late a task woke up, sampled twice a second.",
            broker.loop_lag_s,
        ),
    ]
