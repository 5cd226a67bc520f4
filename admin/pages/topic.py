"""The pages of one topic and of one channel, from the nodes' current answers."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio
from quart import Response

from admin.cluster.shapes import NodeStats
from admin.cluster.turns import compute, count_rows
from admin.pages.charts import SeriesCharts
from admin.pages.clients import ClientProgress, clients_listing
from admin.pages.favourites import favourites, keep_favourite
from admin.pages.format import when
from admin.pages.listing import Column, make_listing
from admin.pages.merging import ClusterView, QueueMetrics, channel_view, topic_view
from admin.pages.peeking import PeekSupport
from admin.pages.policies import AppliedSetting, applied_settings
from admin.pages.settings import SettingsQueries, StoredHow
from admin.pages.shared_queries import nodes_of_topic
from admin.pages.site import Site, arguments
from admin.pages.trend import describe_trend, find_span
from admin.watch.history import channel_key, topic_key
from admin.watch.snapshot import Problem
from trionsq.web.app import Endpoint

__all__ = ["TopicPages"]


_CHANNELS: Final = (Column[QueueMetrics]("name", "Channel", lambda row: row.name, is_number=False),)


@dataclass(slots=True)
class _TopicResult:
    """The answers; ``error``: why there are none; ``nobody``: certainly no node has it; ``stored``:
    how nodes keep it, of those that say so; ``applied``: what policies set; ``is_unheard_of``:
    nsqlookupd does not know it, and no node had it."""

    view: ClusterView
    warnings: list[str] = field(default_factory=list)
    error: str = ""
    nodes: list[str] = field(default_factory=list)
    nobody: bool = False
    stored: dict[str, StoredHow] = field(default_factory=dict)
    applied: list[AppliedSetting] = field(default_factory=list)
    is_unheard_of: bool = False


class TopicPages:
    """GET /topics/:topic and /topics/:topic/:channel."""

    def __init__(self, site: Site, peekers: PeekSupport, settings: SettingsQueries) -> None:
        self._site = site
        self._peekers = peekers
        self._settings = settings
        self._poller = site.dashboard.poller
        self._cluster = site.dashboard.cluster
        self._progress = ClientProgress()

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [
            ("GET", "/topics/<topic>", self.topic),
            ("GET", "/topics/<topic>/<channel>", self.channel),
        ]

    async def topic(self, topic: str) -> Response:
        """GET /topics/:topic; ``star`` makes it a favourite (``yes``), or ends that (``no``)."""
        if (response := self._star(topic)) is not None:
            return response
        result = await self._site.recent.get(("topic", topic), lambda: self._query_topic(topic))
        if result.is_unheard_of:
            return self._missing("topic", topic, await self._near_topics(topic))
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
            problems=self._problems(topic),
            paused_by=self._paused_by(topic) if result.view.paused else "",
            star=topic in favourites(),
        )

    async def channel(self, topic: str, channel: str) -> Response:
        """GET /topics/:topic/:channel; ``star`` as in `topic`."""
        if (response := self._star(topic, channel)) is not None:
            return response
        key = ("channel", topic, channel)
        result = await self._site.recent.get(key, lambda: self._query_topic(topic, channel))
        history, snapshot = self._poller.history, await self._poller.current()
        if result.is_unheard_of or (result.nobody and result.nodes):
            others = [name for of, name in snapshot.channels if of == topic] if snapshot else []
            near = [
                (name, self._site.url("topics", topic, name)) for name in _near(channel, others)
            ]
            return self._missing("channel", f"{topic} / {channel}", near)
        row = snapshot.channels.get((topic, channel)) if snapshot else None
        marks = self._poller.marks.of_topic(topic, channel, result.nodes)
        drawing = self._site.charts(channel_key(topic, channel), marks)
        query = arguments()
        clients = (
            (node.node, node.hostname, topic, channel, client)
            for node, client in result.view.clients_list
        )
        path = self._site.url("topics", topic, channel)
        view = result.view
        listing = await compute(
            len(view.clients_list),
            lambda: clients_listing(clients, query, path, progress=self._progress),
        )
        span_s = find_span([mark.at_s for mark in marks], time.time(), history.slot_s)
        trend = describe_trend(
            history.last_depths(channel_key(topic, channel), span_s),
            history.slot_s,
            view.depth,
            is_paused=view.paused,
        )
        return self._site.page(
            "channel.html",
            f"{topic} / {channel}",
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
                depth=None if view.is_unknown or result.error else view.depth,
                at_least=bool(view.silent),
                rate_in=row.rate_in if row else None,
                rate_out=row.rate_out if row else None,
                quantiles=snapshot.latencies.get((topic, channel), ()) if snapshot else (),
            ),
            listing=listing,
            applied=result.applied,
            trend="" if view.silent else trend,
            problems=self._problems(topic, channel),
            paused_by=self._paused_by(topic, channel) if view.paused else "",
            star=f"{topic}/{channel}" in favourites(),
            warnings=result.warnings,
            error=result.error,
            peek_why=await self._peek_why(result),
        )

    def _star(self, topic: str, channel: str = "") -> Response | None:
        """The redirect after a change of the favourites; None if the request is for the page."""
        wish = arguments().get("star")
        if wish not in ("yes", "no"):
            return None
        parts = [part for part in (topic, channel) if part]
        response = Response(b"", 303)
        response.headers["Location"] = self._site.url("topics", *parts)
        path = self._site.dashboard.base_path
        keep_favourite(response, "/".join(parts), path, on=wish == "yes")
        return response

    def _missing(self, kind: str, name: str, near: Sequence[tuple[str, str]]) -> Response:
        """The page of a name that nobody knows; ``near``: names like it, and their pages.

        Its status is 200, as the original's, whose pages are all one.
        """
        return self._site.page(
            "missing.html",
            f"No {kind} {name}",
            "topics",
            kind=kind,
            name=name,
            near=near,
        )

    async def _near_topics(self, topic: str) -> list[tuple[str, str]]:
        snapshot = self._poller.snapshot
        names = list(snapshot.topics) if snapshot is not None else []
        near = await compute(len(names), lambda: _near(topic, names))
        return [(name, self._site.url("topics", name)) for name in near]

    def _problems(self, topic: str, channel: str = "") -> list[Problem]:
        """The problems of the topic itself, or of a channel, as the overview has them."""
        snapshot = self._poller.snapshot
        where = f"{topic} / {channel}" if channel else topic
        return [each for each in snapshot.problems if each.where == where] if snapshot else []

    def _paused_by(self, topic: str, channel: str = "") -> str:
        """Who paused it here, and when; of an earlier nsqadmin the state file has the names."""
        action = "pause_channel" if channel else "pause_topic"
        entry = self._site.dashboard.access.audit.find_last(action, topic, channel)
        mark = self._poller.marks.find_last(action, topic, channel)
        if entry is not None:
            address = entry.address or "a local program"
            who = entry.user or (address if self._site.may("admin") else _NAMELESS)
            return f"Paused by {who} on {when(entry.time_s)} UTC."
        if mark is not None:
            return f"Paused by {mark.user or _NAMELESS} on {when(mark.at_s)} UTC."
        return "Not paused from this nsqadmin, as far as it remembers."

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

        applied = list[AppliedSetting]()

        async def ask_policies() -> None:
            asked = [node.node for node in producers if node.node not in silent]
            applied.extend(await applied_settings(self._site, asked, topic, channel))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_policies if channel else ask_settings)
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
                node.note_last(*last, channel)
        # Errors of single nodes are in their rows.
        nodes = [node.node for node in producers]
        # A channel may be on none of the nodes that have its topic.
        nobody = not (view.nodes or nodes_result.warnings)
        unheard_of = nobody and not producers and not nodes_result.is_registered
        return _TopicResult(
            view, nodes_result.warnings, "", nodes, nobody, stored, applied, unheard_of
        )

    async def _peek_why(self, result: _TopicResult) -> str:
        """Why peeking is not possible; "" if it is, or the user may not peek."""
        if not self._site.may("operator"):
            return ""
        if not result.nodes:
            return "No node has it."
        return await self._peekers.why_not(result.nodes)


_NEAR_NAMES: Final = 5
_NAMELESS: Final = "a user without a name"


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Names that a mistyped one may mean."""
    return difflib.get_close_matches(name, names, _NEAR_NAMES)
