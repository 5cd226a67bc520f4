"""What the poller asks nodes for: figures without clients, and from our nsqd the age of messages.

Clusters are large and polls are many, so only what rows are made of is decoded, and in pieces: a
node with 100,000 channels holds the event loop for milliseconds at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
import trio
from msgspec import Meta, Raw, Struct

from admin.cluster.decoding import PIECE_NBYTES, PIECE_TOPICS
from admin.cluster.queries import url_of
from admin.upstream import Upstream, UpstreamError

__all__ = ["ChannelFigures", "NodeFigures", "TopicFigures", "ages_in", "ask_ages", "ask_figures"]

# Peers lie; larger numbers could not be made floats.
Count = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class ChannelFigures(Struct, gc=False):
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


class TopicFigures(Struct, gc=False):
    """A topic on one node."""

    topic_name: str
    channels: list[ChannelFigures] | None = None
    depth: Count = 0
    backend_depth: Count = 0
    message_count: Count = 0
    message_bytes: Count = 0
    paused: bool = False


class NodeFigures(Struct):
    """A node; ``start_time`` in seconds since 1970."""

    version: str = ""
    health: str = ""
    start_time: Count = 0
    topics: list[TopicFigures] | None = None


class _Outer(Struct):
    version: str = ""
    health: str = ""
    start_time: Count = 0
    topics: list[Raw] | None = None


_OUTER: Final = msgspec.json.Decoder(_Outer)
_TOPIC: Final = msgspec.json.Decoder(TopicFigures)


async def ask_figures(upstream: Upstream, node: str, timeout_s: float) -> NodeFigures:
    """What the nsqd at host:port says of itself.

    Raises:
        UpstreamError: no answer in time, or none that makes sense.
    """
    query = {"format": "json", "include_clients": "false", "include_mem": "false"}
    body = await upstream.get_bytes(url_of(node, "/stats", **query), timeout_s=timeout_s)
    try:
        return await decoded(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamError(node, f"{node} answered no statistics: {error}", 200) from None


async def decoded(body: bytes) -> NodeFigures:
    """The JSON of /stats. Raises msgspec.DecodeError."""
    outer = _OUTER.decode(body)
    topics = list[TopicFigures]()
    nbytes = 0
    for number, raw in enumerate(outer.topics or (), 1):
        view = memoryview(raw)
        topics.append(_TOPIC.decode(view))
        nbytes += view.nbytes
        if nbytes >= PIECE_NBYTES or number % PIECE_TOPICS == 0:
            nbytes = 0
            await trio.lowlevel.checkpoint()
    return NodeFigures(outer.version, outer.health, outer.start_time, topics)


async def ask_ages(upstream: Upstream, node: str, timeout_s: float) -> dict[tuple[str, str], float]:
    """How long the oldest message of each queue waits, in seconds, where the node tells.

    By topic and channel; ``""`` is the topic's own queue.

    Raises:
        UpstreamError: no answer; with ``status`` 404 it is not our nsqd, which has /metrics.
    """
    body = await upstream.get_bytes(url_of(node, "/metrics"), timeout_s=timeout_s)
    ages = dict[tuple[str, str], float]()
    start = 0
    while start < len(body):
        # To the end of a line.
        end = body.find(b"\n", start + _AGES_NBYTES) + 1 or len(body)
        ages.update(ages_in(body[start:end]))
        start = end
        await trio.lowlevel.checkpoint()
    return ages


# Of a page of /metrics that are read in one turn: some hundred lines.
_AGES_NBYTES: Final = 64 * 1024
_LINE: Final = re.compile(
    rb"^nsqd_(?:channel|topic)_oldest_message_age_seconds\{([^}\n]*)\} (\S+)", re.MULTILINE
)
# Names of topics and channels need no escapes.
_TOPIC_LABEL: Final = re.compile(rb'topic="([^"]*)"')
_CHANNEL_LABEL: Final = re.compile(rb'channel="([^"]*)"')


def ages_in(body: bytes) -> Iterator[tuple[tuple[str, str], float]]:
    """The ages in a page of /metrics that are above 0; lines that make no sense are passed over."""
    for found in _LINE.finditer(body):
        labels, value = found.groups()
        topic, channel = _TOPIC_LABEL.search(labels), _CHANNEL_LABEL.search(labels)
        try:
            age_s = float(value)
        except ValueError:
            continue
        if topic is not None and 0 < age_s < float("inf"):
            name = channel[1].decode(errors="replace") if channel is not None else ""
            yield (topic[1].decode(errors="replace"), name), age_s
