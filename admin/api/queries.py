"""Queries by the API: topics, channels, nodes, counter. Spec: nsqadmin, section 3."""

from __future__ import annotations

import math
import time

from quart import Response

from admin.api.responses import long_response, response, upstream_errors
from admin.cluster import merge
from admin.cluster.queries import QueryResult
from admin.cluster.shapes import NodeStats, Producer
from admin.cluster.turns import count_rows
from admin.dashboard import Dashboard
from admin.upstream import UpstreamError
from trionsq.web.protocol import HttpError, flag
from trionsq.web.request import query

__all__ = ["Queries"]


class Queries:
    """The endpoints that change nothing."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._cluster = dashboard.cluster

    async def topics(self) -> Response:
        """GET /api/topics: names; with inactive=true those without producers."""
        with upstream_errors():
            if flag(query(), b"inactive", False):
                # Scripts delete what this lists.
                inactive = await self._cluster.inactive_topics(late_s=math.inf)
                return response(inactive.warnings, topics=inactive.value)
            topics = await self._cluster.topics()
        return response(topics.warnings, topics=topics.value or None)

    async def topic(self, topic: str) -> Response:
        """GET /api/topics/:topic."""
        with upstream_errors():
            producers = await self._cluster.producers(topic)
            stats = await self._cluster.stats(producers.value, topic=topic)
        pairs = _pairs(producers, stats)

        def members() -> merge.Entry:
            entries = merge.topics_on_nodes(pairs)
            of_topic = [each for each in entries if each["topic_name"] == topic]
            return merge.topic_object(topic, of_topic)

        return await long_response([*producers.warnings, *stats.warnings], _rows(pairs), members)

    async def channel(self, topic: str, channel: str) -> Response:
        """GET /api/topics/:topic/:channel."""
        with upstream_errors():
            producers = await self._cluster.producers(topic)
            stats = await self._cluster.stats(
                producers.value, topic=topic, channel=channel, clients=True
            )
        pairs = _pairs(producers, stats)

        def members() -> merge.Entry:
            entries = merge.topics_on_nodes(pairs, now_ns=time.time_ns())
            channels = [
                each
                for entry in entries
                if entry["topic_name"] == topic
                for each in entry["channels"]
                if each["channel_name"] == channel
            ]
            return merge.channel_object(topic, channel, channels) if channels else {}

        return await long_response([*producers.warnings, *stats.warnings], _rows(pairs), members)

    async def nodes(self) -> Response:
        """GET /api/nodes."""
        with upstream_errors():
            nodes = await self._cluster.nodes()
        rows = sum(len(node.topics or ()) for node in nodes.value)
        return await long_response(
            nodes.warnings, rows, lambda: {"nodes": [*map(merge.node_entry, nodes.value)]}
        )

    async def node(self, node: str) -> Response:
        """GET /api/nodes/:node, named by address and port of HTTP."""
        with upstream_errors():
            nodes = await self._cluster.nodes()
            matching = [producer for producer in nodes.value if producer.node == node]
            if not matching:
                raise HttpError(404, "NODE_NOT_FOUND")
            stats = await self._cluster.stats(matching[:1], clients=True)
        pairs = _pairs(QueryResult(matching[:1], nodes.warnings), stats)
        return await long_response(
            [*nodes.warnings, *stats.warnings],
            _rows(pairs),
            lambda: merge.node_object(node, merge.topics_on_nodes(pairs, now_ns=time.time_ns())),
        )

    async def counter(self) -> Response:
        """GET /api/counter."""
        with upstream_errors():
            nodes = await self._cluster.nodes()
            stats = await self._cluster.stats(nodes.value, late_s=math.inf)
        pairs = _pairs(nodes, stats)
        return await long_response(
            [*nodes.warnings, *stats.warnings],
            _rows(pairs),
            lambda: {"stats": merge.counter(pairs)},
        )


def _rows(pairs: list[tuple[Producer, NodeStats]]) -> int:
    return count_rows(stats for _, stats in pairs)


def _pairs(
    producers: QueryResult[list[Producer]], stats: QueryResult[dict[str, NodeStats | UpstreamError]]
) -> list[tuple[Producer, NodeStats]]:
    """Each node that answered, with its statistics."""
    by_node = {producer.node: producer for producer in producers.value}
    return [
        (by_node[node], answer)
        for node, answer in stats.value.items()
        if isinstance(answer, NodeStats)
    ]
