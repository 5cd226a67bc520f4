"""The statistics of a node, decoded a topic at a time: 10 MB of JSON are no single step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec
import trio
from msgspec import Raw, Struct

from admin.cluster.shapes import Count, NodeStats, TopicStats
from admin.upstream import UpstreamError

__all__ = ["MAX_INLINE", "PIECE_BYTES", "PIECE_TOPICS", "compute", "count_rows", "node_stats"]

PIECE_BYTES: Final = 256 * 1024
"""JSON decoded per turn of the event loop: one or two milliseconds."""

PIECE_TOPICS: Final = 200
"""Topics decoded per turn, because topics may be short."""


T = TypeVar("T")


class StatsHead(Struct):
    """nsqd's /stats but for the topics; ``start_time`` in seconds since 1970; only ours drains."""

    version: str = ""
    health: str = ""
    start_time: Count = 0
    topics: list[Raw] | None = None
    draining: bool = False


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
            if nbytes >= PIECE_BYTES or number % PIECE_TOPICS == 0:
                nbytes = 0
                await trio.lowlevel.checkpoint()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamError(node, f"{node} answered no statistics: {error}", 200) from None
    return head, topics


async def node_stats(node: str, body: bytes) -> NodeStats:
    """The answer of ``node`` to /stats, with its clients. Raises as `decode_stats`."""
    head, topics = await decode_stats(node, body, _TOPIC)
    return NodeStats(head.version, head.health, head.start_time, topics, len(body))


MAX_INLINE: Final = 500
"""Rows that are processed without a thread: a few milliseconds."""
# nsqd sends 300 to 750 bytes for a topic, channel or client; other servers may send less.
_ROW_BYTES: Final = 100


def count_rows(answers: Iterable[NodeStats]) -> int:
    """An estimate of the topics, channels and clients in answers, by their size."""
    return sum(stats.nbytes for stats in answers) // _ROW_BYTES


async def compute(rows: int, function: Callable[[], T]) -> T:
    """Call ``function``, in a thread if it processes many ``rows``.

    Returns or raises what the function does. A cancellation takes effect when it has returned.
    """
    if rows <= MAX_INLINE:
        await trio.lowlevel.checkpoint()
        return function()
    return await trio.to_thread.run_sync(function)
