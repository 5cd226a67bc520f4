"""Requests of the poller: /stats without clients, and from our nsqd the ages of messages.

Only the fields that rows need are decoded, and in pieces, so that a node with 100,000 channels
holds up the event loop for milliseconds at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
import trio
from msgspec import Struct

from admin.cluster.queries import url_of
from admin.cluster.shapes import Count
from admin.cluster.turns import decode_stats
from admin.upstream import Upstream

__all__ = [
    "ChannelMetrics",
    "NodeMetrics",
    "TopicMetrics",
    "ages_in",
    "poll_stats",
    "request_ages",
    "request_stats",
]


class ChannelMetrics(Struct, gc=False):
    """A channel on one node."""

    channel_name: str
    depth: Count = 0
    backend_depth: Count = 0
    in_flight_count: Count = 0
    deferred_count: Count = 0
    message_count: Count = 0
    requeue_count: Count = 0
    timeout_count: Count = 0
    client_count: Count = 0
    paused: bool = False


class TopicMetrics(Struct, gc=False):
    """A topic on one node."""

    topic_name: str
    channels: list[ChannelMetrics] | None = None
    depth: Count = 0
    backend_depth: Count = 0
    message_count: Count = 0
    message_bytes: Count = 0
    paused: bool = False


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
    body = await upstream.get_bytes(url_of(node, "/stats", **query), timeout_s=timeout_s)
    return await poll_stats(node, body)


async def poll_stats(node: str, body: bytes) -> NodeMetrics:
    """The answer of ``node`` to /stats. Raises as `admin.cluster.turns.decode_stats`."""
    head, topics = await decode_stats(node, body, _TOPIC)
    return NodeMetrics(head.version, head.health, head.start_time, topics, head.draining)


async def request_ages(
    upstream: Upstream, node: str, timeout_s: float
) -> dict[tuple[str, str], float]:
    """The age of the oldest message of each queue, in seconds, from the node's /metrics.

    By topic and channel; ``""`` is the topic's own queue.

    Raises:
        UpstreamError: no answer; ``status`` 404: an original nsqd, which has no /metrics.
    """
    body = await upstream.get_bytes(url_of(node, "/metrics"), timeout_s=timeout_s)
    ages = dict[tuple[str, str], float]()
    start = 0
    while start < len(body):
        # To the end of a line.
        end = body.find(b"\n", start + _AGES_BYTES) + 1 or len(body)
        ages.update(ages_in(body[start:end]))
        start = end
        await trio.lowlevel.checkpoint()
    return ages


# Read per turn of the event loop: some hundred lines of /metrics.
_AGES_BYTES: Final = 64 * 1024
_LINE: Final = re.compile(
    rb"^nsqd_(?:channel|topic)_oldest_message_age_seconds\{([^}\n]*)\} (\S+)", re.MULTILINE
)
# Names of topics and channels need no escapes.
_TOPIC_LABEL: Final = re.compile(rb'topic="([^"]*)"')
_CHANNEL_LABEL: Final = re.compile(rb'channel="([^"]*)"')


def ages_in(body: bytes) -> Iterator[tuple[tuple[str, str], float]]:
    """The ages above 0 in a page of /metrics; malformed lines are ignored."""
    for match in _LINE.finditer(body):
        labels, value = match.groups()
        topic, channel = _TOPIC_LABEL.search(labels), _CHANNEL_LABEL.search(labels)
        try:
            age_s = float(value)
        except ValueError:
            continue
        if topic is not None and 0 < age_s < float("inf"):
            name = channel[1].decode(errors="replace") if channel is not None else ""
            yield (topic[1].decode(errors="replace"), name), age_s
