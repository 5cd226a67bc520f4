"""Statistics of many nodes as the objects of the JSON API, with the keys of NSQ 1.3.

Pure. Spec: nsqadmin, section 3 (shapes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from admin.cluster.shapes import ChannelStats, ClientStats, Latency, NodeStats, Producer, TopicStats

__all__ = [
    "Entry",
    "channel_object",
    "client_entry",
    "counter",
    "node_entry",
    "node_object",
    "topic_object",
    "topics_on_nodes",
]

Entry = dict[str, Any]
"""An object of the JSON API, its keys in their order."""

_TOPIC_SUMS: Final = ("depth", "memory_depth", "backend_depth", "message_count")
_CHANNEL_SUMS: Final = (
    "depth",
    "memory_depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)
_SECOND_NS: Final = 10**9


def topics_on_nodes(
    pairs: Iterable[tuple[Producer, NodeStats]], now_ns: int | None = None
) -> list[Entry]:
    """A topic object for each topic of each node, sorted by the nodes' host names.

    ``now_ns`` is the time since 1970, for how long clients are connected.
    """
    ordered = sorted(pairs, key=lambda pair: (pair[0].hostname, pair[0].node))
    return [
        _topic_on_node(producer, topic, now_ns)
        for producer, stats in ordered
        for topic in stats.topics or ()
    ]


def topic_object(topic: str, entries: Sequence[Entry]) -> Entry:
    """The topic over all nodes, from its objects on each node."""
    return {
        "node": "*",
        "hostname": "",
        "topic_name": topic,
        **_sums(entries, _TOPIC_SUMS),
        "nodes": list(entries),
        "channels": _joined_channels(entries),
        "paused": any(entry["paused"] for entry in entries),
        "e2e_processing_latency": _latency(entries, topic, ""),
    }


def channel_object(topic: str, channel: str, entries: Sequence[Entry]) -> Entry:
    """The channel over all nodes, from its objects on each node."""
    clients = [client for entry in entries for client in entry["clients"] or ()]
    clients.sort(key=lambda client: str(client["hostname"]))
    return {
        "node": "*",
        "hostname": "",
        "topic_name": topic,
        "channel_name": channel,
        **_sums(entries, _CHANNEL_SUMS),
        "nodes": list(entries),
        "clients": clients or None,
        "paused": any(entry["paused"] for entry in entries),
        "e2e_processing_latency": _latency(entries, topic, channel),
    }


def node_object(node: str, topics: Sequence[Entry]) -> Entry:
    """A node, from its topic objects."""
    channels = [channel for topic in topics for channel in topic["channels"]]
    return {
        "node": node,
        "topics": list(topics) or None,
        "total_messages": sum(topic["message_count"] for topic in topics),
        "total_clients": sum(len(channel["clients"] or ()) for channel in channels),
    }


def node_entry(node: Producer) -> Entry:
    """A node in the list of all."""
    tombstones = node.tombstones or []
    topics = [
        {"topic": topic, "tombstoned": number < len(tombstones) and tombstones[number]}
        for number, topic in enumerate(node.topics or ())
    ]
    return {
        "remote_addresses": node.remote_addresses,
        "remote_address": node.remote_address,
        "hostname": node.hostname,
        "broadcast_address": node.broadcast_address,
        "tcp_port": node.tcp_port,
        "http_port": node.http_port,
        "version": node.version,
        "topics": sorted(topics, key=lambda each: str(each["topic"])),
        "out_of_date": node.out_of_date,
    }


def counter(pairs: Iterable[tuple[Producer, NodeStats]]) -> Entry:
    """The messages of each channel of each node, by ``topic:channel:node``."""
    counters = {
        f"{topic.topic_name}:{channel.channel_name}:{producer.node}": {
            "node": producer.node,
            "topic_name": topic.topic_name,
            "channel_name": channel.channel_name,
            "message_count": channel.message_count,
        }
        for producer, stats in pairs
        for topic in stats.topics or ()
        for channel in topic.channels or ()
    }
    return dict(sorted(counters.items()))


def _topic_on_node(producer: Producer, topic: TopicStats, now_ns: int | None) -> Entry:
    name = topic.topic_name
    return {
        "node": producer.node,
        "hostname": producer.hostname,
        "topic_name": name,
        "depth": topic.depth,
        "memory_depth": topic.depth - topic.backend_depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "nodes": None,
        "channels": [
            _channel_on_node(producer, name, channel, now_ns) for channel in topic.channels or ()
        ],
        "paused": topic.paused,
        "e2e_processing_latency": _latency_on_node(topic.e2e_processing_latency),
    }


def _channel_on_node(
    producer: Producer, topic: str, channel: ChannelStats, now_ns: int | None
) -> Entry:
    clients = None
    if channel.clients is not None:
        clients = [client_entry(producer.node, each, now_ns or 0) for each in channel.clients]
        clients.sort(key=lambda client: str(client["hostname"]))
    return {
        "node": producer.node,
        "hostname": producer.hostname,
        "topic_name": topic,
        "channel_name": channel.channel_name,
        "depth": channel.depth,
        "memory_depth": channel.depth - channel.backend_depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "message_count": channel.message_count,
        "client_count": channel.client_count,
        "nodes": None,
        "clients": clients,
        "paused": channel.paused,
        "e2e_processing_latency": _latency_on_node(channel.e2e_processing_latency),
    }


def client_entry(node: str, client: ClientStats, now_ns: int) -> Entry:
    """A client as the JSON API shows it; ``connected`` is in nanoseconds."""
    return {
        "node": node,
        "remote_address": client.remote_address,
        "version": client.version,
        "client_id": client.client_id,
        "hostname": client.hostname,
        "user_agent": client.user_agent,
        "connect_ts": client.connect_ts,
        "connected": now_ns - client.connect_ts * _SECOND_NS,
        "in_flight_count": client.in_flight_count,
        "ready_count": client.ready_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "message_count": client.message_count,
        "sample_rate": client.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "authed": client.authed,
        "auth_identity": client.auth_identity,
        "auth_identity_url": client.auth_identity_url,
        "tls": client.tls,
        "tls_cipher_suite": client.tls_cipher_suite,
        "tls_version": client.tls_version,
        "tls_negotiated_protocol": client.tls_negotiated_protocol,
        "tls_negotiated_protocol_is_mutual": client.tls_negotiated_protocol_is_mutual,
    }


def _sums(entries: Sequence[Entry], keys: Sequence[str]) -> Entry:
    return {key: sum(entry[key] for entry in entries) for key in keys}


def _joined_channels(entries: Sequence[Entry]) -> list[Entry]:
    """Each channel of a topic once; a channel on a single node stays as it is there."""
    by_name: dict[str, list[Entry]] = {}
    for entry in entries:
        for channel in entry["channels"]:
            by_name.setdefault(channel["channel_name"], []).append(channel)
    return [
        channels[0]
        if len(channels) == 1
        else channel_object(channels[0]["topic_name"], name, channels)
        for name, channels in sorted(by_name.items())
    ]


def _latency_on_node(latency: Latency | None) -> Entry:
    count = latency.count if latency is not None else 0
    percentiles = latency.percentiles if latency is not None else None
    rows = None
    if percentiles is not None:
        rows = [_percentile_on_node(each, count) for each in percentiles]
    return {"count": count, "percentiles": rows, "topic": "", "channel": "", "host": ""}


def _percentile_on_node(percentile: Mapping[str, int | float], count: int) -> Entry:
    value = percentile.get("value", 0)
    return {
        "average": value,
        "count": count,
        "max": value,
        "min": value,
        "quantile": percentile.get("quantile", 0),
        "value": value,
    }


def _latency(entries: Sequence[Entry], topic: str, channel: str) -> Entry:
    latencies = [entry["e2e_processing_latency"] for entry in entries]
    by_quantile: dict[float, list[Entry]] = {}
    for latency in latencies:
        for percentile in latency["percentiles"] or ():
            by_quantile.setdefault(percentile["quantile"], []).append(percentile)
    joined = [_joined_percentile(each) for each in by_quantile.values()]
    return {
        "count": sum(latency["count"] for latency in latencies),
        "percentiles": joined or None,
        "topic": topic,
        "channel": channel,
        "host": "*",
    }


def _joined_percentile(entries: Sequence[Entry]) -> Entry:
    """Join one quantile; nodes without samples do not count."""
    counted = [entry for entry in entries if entry["count"]]
    count = sum(entry["count"] for entry in counted)
    total = sum(entry["average"] * entry["count"] for entry in counted)
    return {
        "average": total // count if count and total % count == 0 else total / max(count, 1),
        "count": count,
        "max": max((entry["max"] for entry in counted), default=0),
        "min": min((entry["min"] for entry in counted), default=0),
        "quantile": entries[0]["quantile"],
    }
