"""The list of topics or channels, and the page about nsqlookupds, with the form to create."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio
from markupsafe import Markup
from quart import Response

from admin.cluster.queries import AllFailed, QueryResult
from admin.cluster.turns import compute
from admin.pages.charts import SeriesCharts
from admin.pages.format import number, when
from admin.pages.listing import Column, Listing, make_listing
from admin.pages.shared_queries import answering_node_has, lookup_waits
from admin.pages.site import Site, arguments
from admin.watch.history import channel_key, topic_key
from admin.watch.snapshot import ChannelRow, Row, Snapshot, TopicRow
from trionsq.web.app import Endpoint

__all__ = ["LookupPage", "TopicListPages"]


@dataclass(frozen=True, slots=True)
class _Inactive:
    topic: str
    channels: Sequence[str]


_COMMON: Final[Sequence[Column[Any]]] = (
    Column("in_flight", "In flight", lambda row: row.in_flight),
    Column("in", "In /s", lambda row: row.rate_in),
    Column("out", "Out /s", lambda row: row.rate_out),
)
_CLIENTS: Final = Column[Any]("clients", "Clients", lambda row: row.clients)
_TOPICS: Final[Sequence[Column[Any]]] = (
    Column("name", "Topic", lambda row: row.topic, is_number=False),
    Column("depth", "Waiting", lambda row: row.depth + row.channels_depth),
    *_COMMON,
    Column("messages", "Messages", lambda row: row.messages),
    Column("channels", "Channels", lambda row: row.channels),
    _CLIENTS,
)
_CHANNELS: Final[Sequence[Column[Any]]] = (
    Column("name", "Channel", lambda row: (row.topic, row.channel), is_number=False),
    Column("depth", "Waiting", lambda row: row.depth),
    *_COMMON,
    Column("timeouts", "Timeouts /s", lambda row: row.rate_timeout),
    Column("requeues", "Requeues /s", lambda row: row.rate_requeue),
    Column("oldest", "Oldest", lambda row: row.oldest_age_s),
    _CLIENTS,
)
_INACTIVE: Final[Sequence[Column[Any]]] = (
    Column("name", "Topic", lambda row: row.topic, is_number=False),
    Column("channels", "Channels", lambda row: len(row.channels)),
)

_FILTERS: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "waiting": ("With messages", lambda row: _waiting(row) + row.missing_messages > 0),
    "alone": ("Without clients", lambda row: row.clients == 0),
    "paused": ("Paused", lambda row: row.paused),
}


def _waiting(row: Row) -> int:
    return row.depth + (row.channels_depth if isinstance(row, TopicRow) else 0)


class TopicListPages:
    """GET /topics."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._poller = site.dashboard.poller

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("GET", "/topics", self.topics)]

    async def topics(self) -> Response:
        """GET /topics: ``show`` is topics, channels or inactive; ``filter`` one of `_FILTERS`."""
        query = arguments()
        show = query.get("show", "topics")
        if show == "inactive":
            return await self._inactive(query)
        show = "channels" if show == "channels" else "topics"
        snapshot = await self._poller.current()
        filter_name = query.get("filter", "")
        filter_name = filter_name if filter_name in _FILTERS else ""
        rows = len(snapshot.topics) + len(snapshot.channels) if snapshot else 0
        listing = await compute(rows, lambda: self._listing(snapshot, show, filter_name, query))
        sparks = dict[int, Markup]()
        for row in listing.rows:
            await trio.lowlevel.checkpoint()
            sparks[id(row)] = self._spark(row)
        return self._site.page(
            "topics.html",
            "Channels" if show == "channels" else "Topics",
            "topics",
            live=True,
            show=show,
            flt=filter_name,
            listing=listing,
            chips=self._chips(snapshot, show, filter_name),
            spark=lambda row: sparks[id(row)],
            window=SeriesCharts(self._poller.history, ("whole",)).window(),
            warnings=snapshot.warnings if snapshot else [],
            error="" if snapshot else "No node has answered yet.",
        )

    def _listing(
        self, snapshot: Snapshot | None, show: str, filter_name: str, query: Mapping[str, str]
    ) -> Listing[Any]:
        rows: list[Any] = []
        text: Callable[[Any], str] = _topic_name
        if snapshot is not None and show == "topics":
            rows = list(snapshot.topics.values())
            if query.get("q", "").strip():
                text = _with_channels(snapshot)
        elif snapshot is not None:
            rows = list(snapshot.channels.values())
            text = _channel_name
        if filter_name:
            rows = [row for row in rows if _FILTERS[filter_name][1](row)]
        return make_listing(
            rows,
            _CHANNELS if show == "channels" else _TOPICS,
            query,
            path=self._site.url("topics"),
            text=text,
            sort="name",
            extra={"show": "" if show == "topics" else show, "filter": filter_name},
        )

    async def _inactive(self, query: Mapping[str, str]) -> Response:
        inactive, error = await _inactive_topics(self._site)
        rows = [_Inactive(topic, channels) for topic, channels in inactive.value.items()]
        listing = make_listing(
            rows,
            _INACTIVE,
            query,
            path=self._site.url("topics"),
            text=lambda row: " ".join([row.topic, *row.channels]),
            sort="name",
            extra={"show": "inactive"},
        )
        return self._site.page(
            "topics.html",
            "Inactive topics",
            "topics",
            show="inactive",
            flt="",
            listing=listing,
            chips=self._chips(self._poller.snapshot, "inactive", ""),
            spark=self._spark,
            window="",
            warnings=inactive.warnings,
            error=error,
        )

    def _chips(
        self, snapshot: Snapshot | None, show: str, filter_name: str
    ) -> list[dict[str, Any]]:
        url = self._site.url
        topics = len(snapshot.topics) if snapshot else None
        channels = len(snapshot.channels) if snapshot else None
        chips: list[dict[str, Any]] = [
            {
                "name": "Topics",
                "link": url("topics"),
                "on": show == "topics" and not filter_name,
                "count": topics,
            },
            {
                "name": "Channels",
                "link": url("topics", show="channels"),
                "on": show == "channels" and not filter_name,
                "count": channels,
            },
        ]
        kind = "channels" if show == "channels" else ""
        for name, (title, _) in _FILTERS.items():
            link = url("topics", show=kind, filter=name)
            chips.append({"name": title, "link": link, "on": filter_name == name, "count": None})
        if not self._site.dashboard.cluster.is_direct:
            link = url("topics", show="inactive")
            chips.append(
                {"name": "Inactive", "link": link, "on": show == "inactive", "count": None}
            )
        return chips

    def _spark(self, row: Row) -> Markup:
        if isinstance(row, ChannelRow):
            key = channel_key(row.topic, row.channel)
        else:
            assert isinstance(row, TopicRow)
            key = topic_key(row.topic)
        return SeriesCharts(self._poller.history, key).depth_spark()


def _topic_name(row: Any) -> str:
    return str(row.topic)


def _channel_name(row: Any) -> str:
    return f"{row.topic} / {row.channel}"


def _with_channels(snapshot: Snapshot) -> Callable[[Any], str]:
    """The search text of a topic includes the names of its channels."""
    names: dict[str, list[str]] = {}
    for topic, channel in snapshot.channels:
        names.setdefault(topic, []).append(channel)
    return lambda row: " ".join([row.topic, *names.get(row.topic, ())])


_MAX_INACTIVE: Final = 100


class LookupPage:
    """GET /lookup."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._cluster = site.dashboard.cluster
        self._poller = site.dashboard.poller

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("GET", "/lookup", self.lookup)]

    async def lookup(self) -> Response:
        """GET /lookup; ``topic`` fills the form."""
        inactive, error = await _inactive_topics(self._site)
        rows = list(inactive.value.items())[:_MAX_INACTIVE]
        return self._site.page(
            "lookup.html",
            "Lookup",
            "lookup",
            lookupds=self._cluster.lookupd_addresses,
            inactive=rows,
            inactive_count=len(inactive.value),
            silent={topic: self._silent(topic) for topic, _ in rows},
            topic=arguments().get("topic", ""),
            warnings=inactive.warnings,
            error=error,
        )

    def _silent(self, topic: str) -> list[str]:
        """A sentence for each node that had the topic and does not answer."""
        sentences = []
        for producer in self._poller.producers(topic):
            if (last := self._poller.last_seen(producer.node, topic)) is not None:
                count = sum(last[1].values())
                messages = f"{number(count)} message{'' if count == 1 else 's'}"
                sentences.append(
                    f"{producer.node} had this topic with {messages} when it was last seen, at"
                    f" {when(last[0])} UTC. The node does not answer now."
                )
        return sentences


async def _inactive_topics(site: Site) -> tuple[QueryResult[dict[str, list[str]]], str]:
    """Topics without a producer, with their channels; and the error if nobody answered."""
    cluster, poller = site.dashboard.cluster, site.dashboard.poller
    wait = lookup_waits(known=poller.knows_nodes)
    try:
        result = await site.recent.get("inactive", lambda: cluster.inactive_topics(**wait))
    except AllFailed as failure:
        return QueryResult({}, []), str(failure)
    inactive = {
        topic: channels
        for topic, channels in result.value.items()
        if not answering_node_has(poller, topic)
    }
    return QueryResult(inactive, result.warnings), ""
