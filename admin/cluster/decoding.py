"""The statistics of a node, decoded a topic at a time: 10 MB of JSON are no single step."""

from __future__ import annotations

from typing import Final

import msgspec
import trio
from msgspec import Raw, Struct

from admin.cluster.shapes import Count, NodeStats, TopicStats
from admin.upstream import UpstreamError

__all__ = ["PIECE_NBYTES", "PIECE_TOPICS", "node_stats"]

PIECE_NBYTES: Final = 256 * 1024
"""Bytes of JSON that are decoded before other tasks get their turn: one or two milliseconds."""

PIECE_TOPICS: Final = 200
"""The same in topics, which may be short."""


class _Outer(Struct):
    version: str = ""
    health: str = ""
    start_time: Count = 0
    topics: list[Raw] | None = None


_OUTER: Final = msgspec.json.Decoder(_Outer)
_TOPIC: Final = msgspec.json.Decoder(TopicStats)


async def node_stats(node: str, body: bytes) -> NodeStats:
    """What ``node`` answered to /stats.

    Raises:
        UpstreamError: it makes no sense.
    """
    try:
        outer = _OUTER.decode(body)
        topics, nbytes = list[TopicStats](), 0
        for number, raw in enumerate(outer.topics or (), 1):
            view = memoryview(raw)
            topics.append(_TOPIC.decode(view))
            nbytes += view.nbytes
            if nbytes >= PIECE_NBYTES or number % PIECE_TOPICS == 0:
                nbytes = 0
                await trio.lowlevel.checkpoint()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamError(node, f"{node} answered no NodeStats: {error}", 200) from None
    return NodeStats(outer.version, outer.health, outer.start_time, topics, len(body))
