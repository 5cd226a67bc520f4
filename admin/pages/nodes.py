"""The pages of all nodes and of one node. Spec: nsqadmin, section 6."""

from __future__ import annotations

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
from admin.pages.format import number, when
from admin.pages.listing import Column, Listing, clients_listing, make_listing
from admin.pages.settings import NodeSettings, SettingsQueries
from admin.pages.shared_queries import lookup_waits
from admin.pages.site import Site, arguments
from admin.upstream import UpstreamError
from admin.watch.history import node_key
from admin.watch.snapshot import NodeRow
from trionsq.web.app import Endpoint

__all__ = ["NodePages"]

_MAX_SEARCHED: Final = 5000
_MAX_LAST_TOPICS: Final = 200
_MAX_NAME: Final = 300


@dataclass(frozen=True, slots=True)
class _NodeRow:
    """A row of the list: a node as nsqlookupds and as the poller know it."""

    producer: Producer
    row: NodeRow | None

    @property
    def node(self) -> str:
        return self.producer.node

    @property
    def hostname(self) -> str:
        return self.producer.hostname

    @property
    def tcp_port(self) -> int:
        return self.producer.tcp_port

    @property
    def http_port(self) -> int:
        return self.producer.http_port

    @property
    def version(self) -> str:
        return self.producer.version

    @property
    def out_of_date(self) -> bool:
        return self.producer.out_of_date

    @property
    def lookupds(self) -> Sequence[str]:
        return self.producer.remote_addresses or ()

    @property
    def topics(self) -> Sequence[tuple[str, bool]]:
        """The first topics, and whether each is tombstoned."""
        hidden = self.producer.tombstones or []
        names = self.producer.topics or []
        return [
            (name, n < len(hidden) and hidden[n]) for n, name in enumerate(names[:_MAX_SEARCHED])
        ]

    @property
    def topic_count(self) -> int:
        return len(self.producer.topics or ())

    @property
    def last_seen(self) -> str:
        """The last state of a silent node; "" if it answers or never did."""
        row = self.row
        if row is None or row.up or row.answered_s is None:
            return ""
        return last_seen(row)

    @property
    def kind(self) -> str:
        row = self.row
        if row is None or (row.up and row.health == "OK"):
            return "warn" if row is not None and row.draining else ""
        return "bad"

    @property
    def state(self) -> str:
        if self.row is None:
            return "not polled yet"
        if not self.row.up:
            return "does not answer"
        if self.row.health != "OK":
            return "not healthy"
        return "draining" if self.row.draining else "answers"

    @property
    def reason(self) -> str:
        if self.row is None:
            return ""
        return self.row.error if not self.row.up else self.row.health.removeprefix("OK")

    @property
    def depth(self) -> int | None:
        return self.row.depth if self.row and self.row.up else None

    @property
    def clients(self) -> int | None:
        return self.row.clients if self.row and self.row.up else None

    @property
    def rate_in(self) -> float | None:
        return self.row.rate_in if self.row and self.row.up else None

    @property
    def rate_out(self) -> float | None:
        return self.row.rate_out if self.row and self.row.up else None


_COLUMNS: Final[Sequence[Column[_NodeRow]]] = (
    Column("node", "Node", lambda row: row.node, is_number=False),
    Column("state", "State", lambda row: (row.kind != "bad", row.state), is_number=False),
    Column("ports", "TCP, HTTP", lambda row: (row.tcp_port, row.http_port)),
    Column("version", "Version", lambda row: (row.out_of_date, row.version)),
    Column("lookupds", "Lookupds", lambda row: len(row.lookupds)),
    Column("depth", "Waiting", lambda row: row.depth),
    Column("in", "In /s", lambda row: row.rate_in),
    Column("out", "Out /s", lambda row: row.rate_out),
    Column("clients", "Clients", lambda row: row.clients),
    Column("topics", "Topics", lambda row: len(row.topics), is_number=False),
)


@dataclass(frozen=True, slots=True)
class _OneChannel:
    topic: str
    stats: ChannelStats


_TOPICS: Final[Sequence[Column[TopicStats]]] = (
    Column("name", "Topic", lambda row: row.topic_name, is_number=False),
    Column("depth", "Waiting", lambda row: row.depth),
    Column("disk", "Memory + disk", lambda row: row.backend_depth),
    Column("held", "At channels", lambda row: _held(row)),
    Column("messages", "Messages", lambda row: row.message_count),
    Column("channels", "Channels", lambda row: len(row.channels or ())),
)
_CHANNELS: Final[Sequence[Column[_OneChannel]]] = (
    Column("name", "Channel", lambda row: (row.topic, row.stats.channel_name), is_number=False),
    Column("depth", "Waiting", lambda row: row.stats.depth),
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
        node_rows = [_NodeRow(node, rows.pop(node.node, None)) for node in result.value]
        # Nodes that no nsqlookupd lists now.
        node_rows += [_NodeRow(self._producer_of(row), row) for row in rows.values()]
        listing = make_listing(
            node_rows,
            _COLUMNS,
            arguments(),
            path=self._site.url("nodes"),
            text=_text,
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
        stats = (await self._cluster.each_stats([producer], clients=clients, silent=silent))[node]
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
            topics.append((topic, sum(last[1].values()) if last else 0))
        return sorted(topics)


def last_seen(row: NodeRow) -> str:
    """A sentence on the last state of a silent node."""
    figures = ((row.topics, "topic"), (row.channels, "channel"), (row.clients, "client"))
    had = [f"{number(count)} {name}{'' if count == 1 else 's'}" for count, name in figures]
    return (
        f"Last seen {when(row.answered_s)} UTC with {number(row.depth)} waiting,"
        f" {number(row.in_flight)} in flight, {', '.join(had)}."
    )


def _held(topic: TopicStats) -> int:
    """The depth of its channels."""
    return sum(channel.depth for channel in topic.channels or ())


def _text(row: _NodeRow) -> str:
    names = [name for name, _ in row.topics[:_MAX_SEARCHED]]
    return " ".join([row.node, row.hostname, row.version, row.state, *row.lookupds, *names])


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
