"""Clients: the table of them, how they get on, and the page of all."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from quart import Response

from admin.cluster.shapes import ClientStats, NodeStats, Producer
from admin.cluster.turns import compute, count_rows
from admin.pages.export import FILE_FORMATS, export_file, file_response
from admin.pages.listing import SIZES, Column, Listing, make_listing
from admin.pages.shared_queries import RecentResults
from admin.pages.site import Site, arguments
from admin.upstream import UpstreamError
from trionsq.web.app import Endpoint

__all__ = ["STUCK_S", "ClientPage", "ClientProgress", "ClientRow", "clients_listing"]

STUCK_S: Final = 30.0
"""A client is stuck if it has all messages it is ready for, and finishes none for so long."""

_SAFE_LINKS: Final = ("http://", "https://")
_SIZES: Final = SIZES[:3]
_MAX_CLIENTS: Final = 50_000
_FORGET_S: Final = 600.0
# Half a millisecond: the event loop may wait for the lock.
_ROWS_PER_LOCK: Final = 500
# Two looks that are closer give no rate.
_LEAST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Tag:
    """A property of a connection; ``link`` is the URL of a page about it, or ""."""

    text: str
    title: str = ""
    link: str = ""


@dataclass(slots=True)
class ClientRow:
    """A client, its node, and its channel.

    Attributes:
        client: as the node shows it.
        node, hostname: the node.
        now_s: the time of the look, in seconds since 1970.
        topic, channel: what it consumes.
        rate: messages that it finishes per second; None: not known yet.
        idle_s: for how long it has finished nothing, as far as is known.
        connected_to: nodes to which the same client is connected for that channel.
        of_nodes: nodes that have the channel.
    """

    client: ClientStats
    node: str
    hostname: str
    now_s: float
    topic: str = ""
    channel: str = ""
    rate: float | None = None
    idle_s: float = 0.0
    connected_to: int = 0
    of_nodes: int = 0

    @property
    def connected_s(self) -> float | None:
        """Time since it connected, in whole seconds."""
        if not self.client.connect_ts:
            return None
        return max(int(self.now_s) - self.client.connect_ts, 0)

    @property
    def is_full(self) -> bool:
        """Whether it has all messages that it is ready for."""
        return self.client.in_flight_count >= max(self.client.ready_count, 1)

    @property
    def is_stuck(self) -> bool:
        """Whether it is full, and finishes nothing for `STUCK_S`."""
        return self.is_full and self.idle_s >= STUCK_S

    @property
    def names(self) -> list[str]:
        """What it calls itself, beside its address."""
        names = dict.fromkeys((self.client.client_id, self.client.hostname))
        return [name for name in names if name and name != self.client.remote_address]

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What the connections of one client to several nodes have in common."""
        return self.topic, self.channel, self.client.hostname, self.client.client_id

    @property
    def tags(self) -> list[Tag]:
        """The properties of the connection."""
        client, tags = self.client, list[Tag]()
        if client.sample_rate > 0:
            tags.append(Tag(f"Sampled {client.sample_rate} %"))
        if client.tls:
            parts = (
                client.tls_version,
                client.tls_cipher_suite,
                client.tls_negotiated_protocol,
            )
            tags.append(Tag("TLS", ", ".join(filter(None, parts))))
        if client.deflate:
            tags.append(Tag("Deflate"))
        if client.snappy:
            tags.append(Tag("Snappy"))
        if client.authed:
            # Only http and https: an auth server may send anything.
            url = client.auth_identity_url
            link = url if url.lower().startswith(_SAFE_LINKS) else ""
            tags.append(Tag(client.auth_identity or "Authenticated", "authenticated", link))
        return tags

    @property
    def text(self) -> str:
        """The text for the search."""
        client = self.client
        parts = (client.remote_address, client.client_id, client.hostname, client.user_agent)
        more = (client.version, client.auth_identity, self.node, self.hostname)
        where = f"{self.topic}/{self.channel}"
        return " ".join([*parts, *more, where, *(tag.text for tag in self.tags)])


@dataclass(slots=True)
class _Progress:
    finished: int
    looked_s: float
    changed_s: float
    rate: float | None = None


class ClientProgress:
    """What clients have finished from one look at them to the next.

    Nodes count what a client finished; only two looks make a rate. Bounded: the clients that
    were not seen for longest are forgotten.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, str, str], _Progress] = OrderedDict()
        self._lock = threading.Lock()

    def update(self, rows: Sequence[ClientRow]) -> None:
        """Set the rates of ``rows``, which were looked at now. May be called in a thread."""
        now_s = time.monotonic()
        for start in range(0, len(rows), _ROWS_PER_LOCK):
            with self._lock:
                for row in rows[start : start + _ROWS_PER_LOCK]:
                    self._update_row(row, now_s)

    def _update_row(self, row: ClientRow, now_s: float) -> None:
        key = (row.node, row.client.remote_address, row.topic, row.channel)
        finished = row.client.finish_count
        known = self._known.get(key)
        if known is None or finished < known.finished:
            known = self._known[key] = _Progress(finished, now_s, now_s)
        elif now_s - known.looked_s >= _LEAST_S:
            known.rate = (finished - known.finished) / (now_s - known.looked_s)
            if finished > known.finished or not row.client.in_flight_count:
                known.changed_s = now_s
            known.finished, known.looked_s = finished, now_s
        self._known.move_to_end(key)
        row.rate, row.idle_s = known.rate, now_s - known.changed_s
        # Two at a time, so that the forgotten go faster than others come.
        for _ in range(2):
            oldest = next(iter(self._known.values()))
            if len(self._known) <= _MAX_CLIENTS and now_s - oldest.looked_s < _FORGET_S:
                break
            self._known.popitem(last=False)


_NAME: Final = Column[ClientRow](
    "client", "Client", lambda row: row.client.remote_address, is_number=False
)
_AGENT: Final = Column[ClientRow](
    "agent", "User agent", lambda row: row.client.user_agent, is_number=False
)
_TAGS: Final = Column[ClientRow]("attributes", "Attributes", None, is_number=False)
_NODE: Final = Column[ClientRow]("node", "Node", lambda row: row.node, is_number=False)
_WHERE: Final = Column[ClientRow](
    "where", "Channel", lambda row: (row.topic, row.channel), is_number=False
)
_FIGURES: Final[Sequence[Column[ClientRow]]] = (
    Column("in_flight", "In flight", lambda row: row.client.in_flight_count),
    Column("ready", "Ready", lambda row: row.client.ready_count),
    Column("rate", "Finished /s", lambda row: row.rate),
    Column("finished", "Finished", lambda row: row.client.finish_count),
    Column("requeued", "Requeued", lambda row: row.client.requeue_count),
    Column("messages", "Messages", lambda row: row.client.message_count),
    Column("connected", "Connected", lambda row: row.connected_s),
)
# On /clients stuck ones come first.
_STUCK: Final = Column[ClientRow](
    "stuck",
    "Nodes",
    lambda row: (row.is_stuck, row.idle_s if row.is_stuck else 0.0, row.client.in_flight_count),
)
_COLUMNS: Final[Mapping[str, Sequence[Column[ClientRow]]]] = {
    "channel": (_NAME, _AGENT, _TAGS, _NODE, *_FIGURES),
    "node": (_NAME, _WHERE, _AGENT, _TAGS, *_FIGURES),
    "all": (_NAME, _WHERE, _AGENT, _TAGS, _NODE, _STUCK, *_FIGURES),
}
_VALUES: Final[Mapping[str, Callable[[ClientRow], object]]] = {
    "remote_address": lambda row: row.client.remote_address,
    "client_id": lambda row: row.client.client_id,
    "hostname": lambda row: row.client.hostname,
    "user_agent": lambda row: row.client.user_agent,
    "version": lambda row: row.client.version,
    "topic": lambda row: row.topic,
    "channel": lambda row: row.channel,
    "node": lambda row: row.node,
    "in_flight": lambda row: row.client.in_flight_count,
    "ready": lambda row: row.client.ready_count,
    "finished_per_s": lambda row: row.rate,
    "finished": lambda row: row.client.finish_count,
    "requeued": lambda row: row.client.requeue_count,
    "messages": lambda row: row.client.message_count,
    "connected_s": lambda row: row.connected_s,
    "stuck": lambda row: row.is_stuck,
}


def clients_listing(
    clients: Iterable[tuple[str, str, str, str, ClientStats]],
    query: Mapping[str, str],
    path: str,
    *,
    of_node: bool = False,
    extra: Mapping[str, str] | None = None,
    progress: ClientProgress | None = None,
) -> Listing[ClientRow]:
    """A page of clients.

    Args:
        clients: node, host name, topic, channel and the client.
        query: of the request.
        path: of the page.
        of_node: whether the table is on a node's page: it has the channel instead of the node.
        extra: parameters that links keep.
        progress: makes rates.
    """
    rows = _rows(clients)
    if progress is not None:
        progress.update(rows)
    return make_listing(
        rows,
        _COLUMNS["node" if of_node else "channel"],
        query,
        path=path,
        text=lambda row: row.text,
        sort="client",
        extra=extra,
        sizes=_SIZES,
    )


def _rows(clients: Iterable[tuple[str, str, str, str, ClientStats]]) -> list[ClientRow]:
    now_s = time.time()
    return [
        ClientRow(client, node, hostname, now_s, topic, channel)
        for node, hostname, topic, channel, client in clients
    ]


@dataclass(slots=True)
class AllClients:
    """The clients of all nodes, and the errors of nodes."""

    rows: list[ClientRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class ClientPage:
    """GET /clients.

    Attributes:
        progress: of all clients that a page shows.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._poller = site.dashboard.poller
        self.progress = ClientProgress()
        # All clients are a long answer: nodes give it no oftener than they are polled.
        self._recent = RecentResults(kept_s=0.9 * self._poller.interval_s)

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("GET", "/clients", self.clients)]

    async def clients(self) -> Response:
        """GET /clients: search, order and page; ``as``: a file, csv or json."""
        everyone = await self.all_clients()
        query, path = arguments(), self._site.url("clients")

        def make() -> Listing[ClientRow]:
            return make_listing(
                everyone.rows,
                _COLUMNS["all"],
                query,
                path=path,
                text=lambda row: row.text,
                sort="-stuck",
                sizes=_SIZES,
            )

        listing = await compute(len(everyone.rows), make)
        if (kind := query.get("as", "")) in FILE_FORMATS:
            content = await compute(
                len(listing.matching), lambda: export_file(listing.matching, _VALUES, kind)
            )
            return file_response(content, "clients", kind)
        return self._site.page(
            "clients.html",
            "Clients",
            "clients",
            live=True,
            listing=listing,
            stuck=sum(1 for row in everyone.rows if row.is_stuck),
            stuck_s=STUCK_S,
            warnings=everyone.warnings,
            error=listing.problem,
        )

    async def all_clients(self) -> AllClients:
        """The clients of all nodes; one query for all viewers of a poll's interval."""
        await self._poller.current()
        return await self._recent.get("clients", self._query)

    async def _query(self) -> AllClients:
        snapshot = self._poller.snapshot
        names = snapshot.nodes if snapshot is not None else ()
        producers = [each for each in map(self._poller.producer, names) if each is not None]
        answers = await self._site.dashboard.cluster.each_stats(
            producers, clients=True, silent=self._poller.silent_nodes
        )
        warnings = [
            f"{answer.node}: its clients are missing here. {answer}"
            for answer in answers.values()
            if isinstance(answer, UpstreamError)
        ]
        statistics = [stats for stats in answers.values() if isinstance(stats, NodeStats)]
        rows = await compute(count_rows(statistics), lambda: self._collect(producers, answers))
        return AllClients(rows, warnings)

    def _collect(
        self, producers: Iterable[Producer], answers: Mapping[str, NodeStats | UpstreamError]
    ) -> list[ClientRow]:
        found = list[tuple[str, str, str, str, ClientStats]]()
        having = dict[tuple[str, str], int]()
        for producer in producers:
            stats = answers.get(producer.node)
            for topic in (stats.topics or ()) if isinstance(stats, NodeStats) else ():
                for channel in topic.channels or ():
                    name = topic.topic_name, channel.channel_name
                    having[name] = having.get(name, 0) + 1
                    found += [
                        (producer.node, producer.hostname, *name, client)
                        for client in channel.clients or ()
                    ]
        rows = _rows(found)
        self.progress.update(rows)
        nodes = dict[tuple[str, str, str, str], set[str]]()
        for row in rows:
            nodes.setdefault(row.identity, set()).add(row.node)
        for row in rows:
            row.connected_to = len(nodes[row.identity])
            row.of_nodes = having[row.topic, row.channel]
        return rows
