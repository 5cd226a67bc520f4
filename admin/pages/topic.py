"""The pages of one topic and of one channel, from the nodes' current answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import trio
from quart import Response

from admin.cluster.shapes import NodeStats
from admin.cluster.turns import compute, count_rows
from admin.pages.charts import SeriesCharts
from admin.pages.listing import Column, clients_listing, make_listing
from admin.pages.merging import ClusterView, QueueMetrics, channel_view, topic_view
from admin.pages.messages import PeekSupport
from admin.pages.settings import SettingsQueries, StoredHow
from admin.pages.shared_queries import nodes_of_topic
from admin.pages.site import Site, arguments
from admin.watch.history import channel_key, topic_key
from trionsq.web.app import Endpoint

__all__ = ["TopicPages"]


_CHANNELS: Final = (Column[QueueMetrics]("name", "Channel", lambda row: row.name, is_number=False),)


@dataclass(slots=True)
class _TopicResult:
    """The answers; ``error``: why there are none; ``nobody``: certainly no node has it; ``stored``:
    how nodes keep it, of those that say so."""

    view: ClusterView
    warnings: list[str] = field(default_factory=list)
    error: str = ""
    nodes: list[str] = field(default_factory=list)
    nobody: bool = False
    stored: dict[str, StoredHow] = field(default_factory=dict)


class TopicPages:
    """GET /topics/:topic and /topics/:topic/:channel."""

    def __init__(self, site: Site, peekers: PeekSupport, settings: SettingsQueries) -> None:
        self._site = site
        self._peekers = peekers
        self._settings = settings
        self._poller = site.dashboard.poller
        self._cluster = site.dashboard.cluster

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [
            ("GET", "/topics/<topic>", self.topic),
            ("GET", "/topics/<topic>/<channel>", self.channel),
        ]

    async def topic(self, topic: str) -> Response:
        """GET /topics/:topic."""
        result = await self._site.recent.get(("topic", topic), lambda: self._query_topic(topic))
        history, snapshot = self._poller.history, await self._poller.current()
        row = snapshot.topics.get(topic) if snapshot else None
        marks = self._poller.marks.of_topic(topic, "", result.nodes)
        drawing = self._site.charts(topic_key(topic), marks)
        every = result.view.channels_list
        query, path = arguments(), self._site.url("topics", topic)
        channels = await compute(
            len(every),
            lambda: make_listing(
                every, _CHANNELS, query, path=path, text=lambda row: row.name, sort="name"
            ),
        )
        for channel in channels.rows:
            await trio.lowlevel.checkpoint()
            key = channel_key(topic, channel.name)
            channel.spark = SeriesCharts(history, key).depth_spark()
            of_channel = snapshot.channels.get((topic, channel.name)) if snapshot else None
            channel.rate_out = of_channel.rate_out if of_channel else None
        return self._site.page(
            "topic.html",
            topic,
            "topics",
            live=True,
            topic=topic,
            view=result.view,
            stored=result.stored,
            channels=channels,
            nobody=result.nobody,
            row=row,
            sparks=drawing.sparks,
            charts=drawing.cards(
                depth=None
                if result.view.is_unknown or result.error
                else result.view.depth + result.view.channels_depth,
                at_least=bool(result.view.silent),
                rate_in=row.rate_in if row else None,
                rate_out=row.rate_out if row else None,
                quantiles=snapshot.latencies.get((topic, ""), ()) if snapshot else (),
            ),
            window=drawing.window(),
            warnings=result.warnings,
            error=result.error,
            peek_why=await self._peek_why(result),
        )

    async def channel(self, topic: str, channel: str) -> Response:
        """GET /topics/:topic/:channel."""
        key = ("channel", topic, channel)
        result = await self._site.recent.get(key, lambda: self._query_topic(topic, channel))
        snapshot = await self._poller.current()
        row = snapshot.channels.get((topic, channel)) if snapshot else None
        marks = self._poller.marks.of_topic(topic, channel, result.nodes)
        drawing = self._site.charts(channel_key(topic, channel), marks)
        clients = (
            (node.node, node.hostname, topic, channel, client)
            for node, client in result.view.clients_list
        )
        path = self._site.url("topics", topic, channel)
        return self._site.page(
            "channel.html",
            f"{channel} of {topic}",
            "topics",
            live=True,
            topic=topic,
            channel=channel,
            view=result.view,
            nobody=result.nobody,
            missing=not any(not node.error for node in result.view.nodes),
            row=row,
            sparks=drawing.sparks,
            charts=drawing.cards(
                came="received",
                depth=None if result.view.is_unknown or result.error else result.view.depth,
                at_least=bool(result.view.silent),
                rate_in=row.rate_in if row else None,
                rate_out=row.rate_out if row else None,
                quantiles=snapshot.latencies.get((topic, channel), ()) if snapshot else (),
            ),
            listing=clients_listing(clients, arguments(), path),
            warnings=result.warnings,
            error=result.error,
            peek_why=await self._peek_why(result),
        )

    async def _query_topic(self, topic: str, channel: str = "") -> _TopicResult:
        nodes_result = await nodes_of_topic(self._site.dashboard, topic)
        if nodes_result.error:
            return _TopicResult(ClusterView(name=channel or topic), error=nodes_result.error)
        producers = nodes_result.producers
        stored: dict[str, StoredHow] = {}
        silent = self._poller.silent_nodes

        async def ask_settings() -> None:
            asked = [node.node for node in producers if node.node not in silent]
            stored.update(await self._settings.of_topic(asked, topic))

        async with trio.open_nursery() as nursery:
            if not channel:
                nursery.start_soon(ask_settings)
            answers = await self._cluster.each_stats(
                producers, topic=topic, channel=channel, clients=bool(channel), silent=silent
            )
        statistics = [stats for stats in answers.values() if isinstance(stats, NodeStats)]
        view = await compute(
            count_rows(statistics),
            lambda: (
                channel_view(topic, channel, producers, answers)
                if channel
                else topic_view(topic, producers, answers)
            ),
        )
        for node in view.silent:
            if (last := self._poller.last_seen(node.node, topic)) is not None:
                node.last_seen_s, held = last
                node.last_held = held.get(channel, 0) if channel else sum(held.values())
        # Errors of single nodes are in their rows.
        nodes = [node.node for node in producers]
        # A channel may be on none of the nodes that have its topic.
        nobody = not (view.nodes or nodes_result.warnings)
        return _TopicResult(view, nodes_result.warnings, "", nodes, nobody, stored)

    async def _peek_why(self, result: _TopicResult) -> str:
        """Why peeking is not possible; "" if it is, or the user may not peek."""
        if not self._site.may("operator"):
            return ""
        if not result.nodes:
            return "No node has it."
        return await self._peekers.why_not(result.nodes)
