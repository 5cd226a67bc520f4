"""The statistics of a node, decoded a topic at a time: 10 MB of JSON are no single step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec
import trio
from msgspec import Raw, Struct

from admin.cluster.shapes import Count, NodeStats, TopicStats
from admin.upstream import UpstreamError

__all__ = ["INLINE_MAX", "PIECE_NBYTES", "PIECE_TOPICS", "compute", "count_rows", "node_stats"]

PIECE_NBYTES: Final = 256 * 1024
"""Bytes of JSON that are decoded before other tasks get their turn: one or two milliseconds."""

PIECE_TOPICS: Final = 200
"""The same in topics, which may be short."""


T = TypeVar("T")


class StatsHead(Struct):
    """nsqd's /stats but for the topics; ``start_time`` in seconds since 1970."""

    version: str = ""
    health: str = ""
    start_time: Count = 0
    topics: list[Raw] | None = None


_HEAD: Final = msgspec.json.Decoder(StatsHead)
_TOPIC: Final = msgspec.json.Decoder(TopicStats)


async def decode_stats(
    node: str, body: bytes, topic: msgspec.json.Decoder[T]
) -> tuple[StatsHead, list[T]]:
    """Decode the answer of ``node`` to /stats: its head, and each topic by the decoder ``topic``.

    Raises:
        UpstreamError: it is not JSON, or not of this shape.
    """
    try:
        head = _HEAD.decode(body)
        topics, nbytes = list[T](), 0
        for number, raw in enumerate(head.topics or (), 1):
            view = memoryview(raw)
            topics.append(topic.decode(view))
            nbytes += view.nbytes
            if nbytes >= PIECE_NBYTES or number % PIECE_TOPICS == 0:
                nbytes = 0
                await trio.lowlevel.checkpoint()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamError(node, f"{node} answered no statistics: {error}", 200) from None
    return head, topics


async def node_stats(node: str, body: bytes) -> NodeStats:
    """The answer of ``node`` to /stats, with its clients. Raises as `decode_stats`."""
    head, topics = await decode_stats(node, body, _TOPIC)
    return NodeStats(head.version, head.health, head.start_time, topics, len(body))


INLINE_MAX: Final = 500
"""Rows that are worth no thread: a few milliseconds."""
# Nsqd says 300 to 750 bytes of a topic, channel or client; others may be shorter.
_ROW_NBYTES: Final = 100


def count_rows(answers: Iterable[NodeStats]) -> int:
    """How many topics, channels and clients nodes may have told of, by the length of it."""
    return sum(stats.nbytes for stats in answers) // _ROW_NBYTES


async def compute(rows: int, function: Callable[[], T]) -> T:
    """What ``function`` returns or raises; in a thread if it goes through many ``rows``.

    A cancellation takes effect when the function has returned.
    """
    if rows <= INLINE_MAX:
        await trio.lowlevel.checkpoint()
        return function()
    return await trio.to_thread.run_sync(function)
