"""The pages of all nodes and of one node. Spec: nsqadmin, section 6."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec
from quart import Response

from admin.access.cross_site import form
from admin.cluster.queries import AllFailed, QueryResult
from admin.cluster.shapes import ChannelStats, NodeStats, Producer, TopicStats
from admin.cluster.turns import compute, count_rows
from admin.pages.clients import clients_listing
from admin.pages.listing import Column, Listing, make_listing
from admin.pages.node_facts import node_facts
from admin.pages.node_list import NODE_COLUMNS, NodeEntry, last_seen, search_text
from admin.pages.node_requests import WAIT_S
from admin.pages.settings import NodeSettings, SettingsQueries
from admin.pages.shared_queries import lookup_waits
from admin.pages.site import Site, arguments
from admin.upstream import UpstreamError
from admin.watch.history import node_key
from admin.watch.node import total_held
from admin.watch.snapshot import NodeRow
from trionsq.web.app import Endpoint

__all__ = ["NodePages"]

_MAX_LAST_TOPICS: Final = 200
_MAX_NAME: Final = 300


@dataclass(frozen=True, slots=True)
class _OneChannel:
    topic: str
    stats: ChannelStats


_TOPICS: Final[Sequence[Column[TopicStats]]] = (
    Column("name", "Topic", lambda row: row.topic_name, is_number=False),
    Column("depth", "Depth", lambda row: row.depth),
    Column("disk", "Memory + disk", lambda row: row.backend_depth),
    Column("held", "At channels", lambda row: _held(row)),
    Column("messages", "Messages", lambda row: row.message_count),
    Column("channels", "Channels", lambda row: len(row.channels or ())),
)
_CHANNELS: Final[Sequence[Column[_OneChannel]]] = (
    Column("name", "Channel", lambda row: (row.topic, row.stats.channel_name), is_number=False),
    Column("depth", "Depth", lambda row: row.stats.depth),
    Column("disk", "Memory + disk", lambda row: row.stats.backend_depth),
    Column("in_flight", "In flight", lambda row: row.stats.in_flight_count),
    Column("deferred", "Deferred", lambda row: row.stats.deferred_count),
    Column("requeued", "Requeued", lambda row: row.stats.requeue_count),
    Column("timeouts", "Timed out", lambda row: row.stats.timeout_count),
    Column("messages", "Messages", lambda row: row.stats.message_count),
    Column("clients", "Clients", lambda row: row.stats.client_count),
)


@dataclass(slots=True)
class _NodeResult:
    """The answers about one node."""

    producer: Producer | None = None
    stats: NodeStats = field(default_factory=NodeStats)
    warnings: list[str] = field(default_factory=list)
    error: str = ""
    is_silent: bool = False
    settings: NodeSettings = field(default_factory=NodeSettings)


class NodePages:
    """GET /nodes and /nodes/:node."""

    def __init__(self, site: Site, settings: SettingsQueries) -> None:
        self._site = site
        self._settings = settings
        self._cluster = site.dashboard.cluster
        self._poller = site.dashboard.poller

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [
            ("GET", "/nodes", self.nodes),
            ("GET", "/nodes/<node>", self.node),
            ("POST", "/do/forget", self.forget),
        ]

    async def forget(self) -> Response:
        """POST /do/forget: a dead node that nobody lists is polled no more."""
        node = (await form()).get("node", "")[:_MAX_NAME]
        if self._poller.forget(node):
            self._site.dashboard.operations.note_forgotten(node)
            return self._site.done(self._site.url("nodes"), [f"Forgot {node}."])
        text = f"{node} answers, is still registered or expected, or is not known."
        return self._site.done(self._site.url("nodes"), [text], "bad")

    async def nodes(self) -> Response:
        """GET /nodes."""
        result: QueryResult[list[Producer]] = QueryResult([], [])
        error = ""
        try:
            result = await self._nodes()
        except AllFailed as failure:
            error = str(failure)
        snapshot = await self._poller.current()
        rows = dict(snapshot.nodes) if snapshot else {}
        node_rows = [NodeEntry(node, rows.pop(node.node, None)) for node in result.value]
        # Nodes that no nsqlookupd lists now.
        node_rows += [NodeEntry(self._producer_of(row), row) for row in rows.values()]
        listing = make_listing(
            node_rows,
            NODE_COLUMNS,
            arguments(),
            path=self._site.url("nodes"),
            text=search_text,
            sort="node",
        )
        return self._site.page(
            "nodes.html",
            "Nodes",
            "nodes",
            live=True,
            listing=listing,
            lookupd_count=len(self._cluster.lookupd_addresses),
            warnings=result.warnings,
            error=error,
        )

    async def node(self, node: str) -> Response:
        """GET /nodes/:node: ``show`` is topics, channels or clients."""
        query = arguments()
        show = query.get("show", "")
        show = show if show in ("channels", "clients") else "topics"
        key = ("node", node, show == "clients")
        result = await self._site.recent.get(key, lambda: self._query_node(node, show == "clients"))
        snapshot = await self._poller.current()
        row = snapshot.nodes.get(node) if snapshot else None
        topics = result.stats.topics or []
        rows = count_rows([result.stats])
        drawing = self._site.charts(node_key(node), self._poller.marks.of_node(node))
        return self._site.page(
            "node.html",
            node,
            "nodes",
            live=True,
            node=node,
            show=show,
            producer=result.producer,
            row=row,
            told=not result.error,
            is_silent=result.is_silent,
            last_seen=last_seen(row) if result.is_silent and row and row.answered_s else "",
            last_topics=self._last_topics(node) if result.is_silent else [],
            can_forget=bool(row and not (row.up or row.registered or row.expected)),
            facts=node_facts(row, snapshot.vitals.get(node) if snapshot else None, time.time()),
            links=self._site.node_links(node),
            charts=drawing.cards(
                depth=row.depth if row and row.up else None,
                rate_in=row.rate_in if row else None,
                rate_out=row.rate_out if row else None,
            ),
            chips=self._chips(node, show),
            counts=await compute(rows, lambda: _counts(topics)),
            held=_held,
            stored=result.settings.labels(),
            trouble=result.settings.trouble,
            tombstoned=_tombstoned(result.producer),
            sparks=drawing.sparks,
            listing=await compute(rows, lambda: self._listing(node, show, result, query)),
            warnings=result.warnings,
            error=result.error,
        )

    async def _nodes(self) -> QueryResult[list[Producer]]:
        wait = lookup_waits(known=self._poller.knows_nodes)
        return await self._site.recent.get("nodes", lambda: self._cluster.nodes(**wait))

    async def _query_node(self, node: str, clients: bool) -> _NodeResult:
        try:
            result = await self._nodes()
        except AllFailed as failure:
            if self._poller.producer(node) is None:
                return _NodeResult(error=str(failure))
            result = QueryResult([], list(map(str, failure.errors)))
        producer = next((each for each in result.value if each.node == node), None)
        producer = producer or self._poller.producer(node)
        if producer is None:
            return _NodeResult(warnings=result.warnings, error=f"There is no node {node}.")
        silent = self._poller.silent_nodes
        # The polls have its last figures, so the page is not held up for long.
        known = self._poller.producer(node) is not None
        answers = await self._cluster.each_stats(
            [producer], clients=clients, first_s=WAIT_S if known else math.inf, silent=silent
        )
        stats = answers[node]
        if isinstance(stats, UpstreamError):
            return _NodeResult(producer, warnings=result.warnings, error=str(stats), is_silent=True)
        settings = await self._settings.of_node(node)
        return _NodeResult(producer, stats, result.warnings, settings=settings)

    def _chips(self, node: str, show: str) -> list[dict[str, object]]:
        return [
            {
                "name": name.capitalize(),
                "link": self._site.url("nodes", node, show="" if name == "topics" else name),
                "on": show == name,
            }
            for name in ("topics", "channels", "clients")
        ]

    def _listing(
        self, node: str, show: str, result: _NodeResult, query: Mapping[str, str]
    ) -> Listing[Any]:
        path = self._site.url("nodes", node)
        topics = result.stats.topics or []
        if show == "topics":
            return make_listing(
                topics, _TOPICS, query, path=path, text=lambda row: row.topic_name, sort="name"
            )
        extra = {"show": show}
        if show == "channels":
            channels = [_OneChannel(t.topic_name, c) for t in topics for c in t.channels or ()]
            return make_listing(
                channels,
                _CHANNELS,
                query,
                path=path,
                text=lambda row: f"{row.topic} / {row.stats.channel_name}",
                sort="name",
                extra=extra,
            )
        clients = (
            (node, "", topic.topic_name, channel.channel_name, client)
            for topic in topics
            for channel in topic.channels or ()
            for client in channel.clients or ()
        )
        return clients_listing(clients, query, path, of_node=True, extra=extra)

    def _producer_of(self, row: NodeRow) -> Producer:
        """A node that no nsqlookupd lists now, as the poller knows it."""
        names = list(self._poller.topics_at(row.node))
        known = self._poller.producer(row.node) or Producer()
        return msgspec.structs.replace(
            known, version=row.version, topics=names, tombstones=None, remote_addresses=None
        )

    def _last_topics(self, node: str) -> list[tuple[str, int]]:
        """The first topics of a node at its last answer, with their messages."""
        topics = []
        for topic in islice(self._poller.topics_at(node), _MAX_LAST_TOPICS):
            last = self._poller.last_seen(node, topic)
            topics.append((topic, total_held(last[1]) if last else 0))
        return sorted(topics)


def _held(topic: TopicStats) -> int:
    """The depth of its channels."""
    return sum(channel.depth for channel in topic.channels or ())


def _counts(topics: Iterable[TopicStats]) -> dict[str, int]:
    """The totals of a node. The depth is of topics and channels, as in the poller's rows."""
    counts = dict.fromkeys(
        ("topics", "channels", "messages", "depth", "backend_depth", "clients"), 0
    )
    for topic in topics:
        counts["topics"] += 1
        counts["messages"] += topic.message_count
        counts["depth"] += topic.depth
        counts["backend_depth"] += topic.backend_depth
        for channel in topic.channels or ():
            counts["channels"] += 1
            counts["depth"] += channel.depth
            counts["backend_depth"] += channel.backend_depth
            counts["clients"] += channel.client_count
    return counts


def _tombstoned(producer: Producer | None) -> frozenset[str]:
    if producer is None:
        return frozenset()
    pairs = zip(producer.topics or (), producer.tombstones or (), strict=False)
    return frozenset(name for name, hidden in pairs if hidden)
