"""Requests of the poller: /stats without clients; from our nsqd with the counts of finished ones.

Only the fields that rows need are decoded, and in pieces, so that a node with 100,000 channels
holds up the event loop for milliseconds at a time.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from admin.cluster.queries import url_of
from admin.cluster.shapes import Count, Latency
from admin.cluster.turns import decode_stats
from admin.upstream import Upstream

__all__ = [
    "ChannelMetrics",
    "NodeMetrics",
    "TopicMetrics",
    "poll_stats",
    "reason",
    "request_stats",
]


class ChannelMetrics(Struct, gc=False):
    """A channel on one node; ``finish_count`` is -1 if the node does not tell it."""

    channel_name: str
    depth: Count = 0
    backend_depth: Count = 0
    in_flight_count: Count = 0
    deferred_count: Count = 0
    message_count: Count = 0
    requeue_count: Count = 0
    timeout_count: Count = 0
    client_count: Count = 0
    finish_count: Count = -1
    paused: bool = False
    e2e_processing_latency: Latency | None = None


class TopicMetrics(Struct, gc=False):
    """A topic on one node."""

    topic_name: str
    channels: list[ChannelMetrics] | None = None
    depth: Count = 0
    backend_depth: Count = 0
    message_count: Count = 0
    message_bytes: Count = 0
    paused: bool = False
    e2e_processing_latency: Latency | None = None


class NodeMetrics(Struct):
    """A node; ``start_time`` in seconds since 1970."""

    version: str = ""
    health: str = ""
    start_time: Count = 0
    topics: list[TopicMetrics] | None = None
    draining: bool = False


_TOPIC: Final = msgspec.json.Decoder(TopicMetrics)


async def request_stats(upstream: Upstream, node: str, timeout_s: float) -> NodeMetrics:
    """The /stats of the nsqd at host:port, without clients.

    Raises:
        UpstreamError: no answer in time, or none that makes sense.
    """
    query = {"format": "json", "include_clients": "false", "include_mem": "false"}
    query["include_counts"] = "true"
    body = await upstream.get_bytes(url_of(node, "/stats", **query), timeout_s=timeout_s)
    return await poll_stats(node, body)


async def poll_stats(node: str, body: bytes) -> NodeMetrics:
    """The answer of ``node`` to /stats. Raises as `admin.cluster.turns.decode_stats`."""
    head, topics = await decode_stats(node, body, _TOPIC)
    return NodeMetrics(head.version, head.health, head.start_time, topics, head.draining)


_REQUEST: Final = re.compile(r'^(?:Get|Post) "(?:https?://)?([^/"]*)[^"]*": ')


def reason(error: object, *, named: bool = False) -> str:
    """The text of an error without the request, which says nothing to an operator.

    ``named``: with the address of the peer.
    """
    return _REQUEST.sub(r"\1: " if named else "", str(error))
