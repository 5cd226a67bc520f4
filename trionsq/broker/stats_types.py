"""The documents of /info and /stats. Keys stand in nsqd's order.

Spec: nsqd-http, section 5.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

__all__ = [
    "ChannelStats",
    "ClientHead",
    "ClientStats",
    "Info",
    "Latency",
    "MemoryMetrics",
    "PubCount",
    "Quantile",
    "TopicStats",
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


class ClientHead(TypedDict):
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


class ClientStats(ClientHead):
    """One connection."""

    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool


class ChannelStats(TypedDict):
    """One channel; ``clients`` is None if nobody asked for them, ``finish_count`` is ours."""

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
    finish_count: NotRequired[int]


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


class MemoryMetrics(TypedDict):
    """Memory of the process, under the names that nsqd gives to its own; see `memory_metrics`."""

    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int
