"""The list of topics or channels: search, filters, groups by prefix, and the same as a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

import trio
from markupsafe import Markup
from quart import Response

from admin.cluster.turns import compute
from admin.pages.charts import SeriesCharts
from admin.pages.export import FILE_FORMATS, export_file, file_response
from admin.pages.favourites import favourites
from admin.pages.groups import group_rows
from admin.pages.listing import SIZE_DEFAULT, Column, Listing, make_listing
from admin.pages.lookup import inactive_topics
from admin.pages.search import BadSearchError, make_matcher
from admin.pages.site import Site, arguments
from admin.watch.history import channel_key, topic_key
from admin.watch.snapshot import ChannelRow, Row, Snapshot, TopicRow
from trionsq.web.app import Endpoint

__all__ = ["TopicListPages"]

_MAX_PREFIX: Final = 64
_MAX_Q: Final = 200


@dataclass(frozen=True, slots=True)
class _Inactive:
    topic: str
    channels: Sequence[str]


_IN_FLIGHT: Final = Column[Any]("in_flight", "In flight", lambda row: row.in_flight)
_FINISHED: Final = Column[Any]("out", "Finished /s", lambda row: row.rate_out)
_COMMON: Final[Sequence[Column[Any]]] = (
    _IN_FLIGHT,
    Column("in", "Published /s", lambda row: row.rate_in),
    _FINISHED,
)
_CLIENTS: Final = Column[Any]("clients", "Clients", lambda row: row.clients)
_MESSAGES: Final = Column[Any]("messages", "Messages", lambda row: row.messages)
_TOPICS: Final[Sequence[Column[Any]]] = (
    Column("name", "Topic", lambda row: row.topic, is_number=False),
    Column("depth", "Depth", lambda row: row.depth + row.channels_depth),
    *_COMMON,
    _MESSAGES,
    Column("channels", "Channels", lambda row: row.channels),
    _CLIENTS,
)
_CHANNELS: Final[Sequence[Column[Any]]] = (
    Column("name", "Channel", lambda row: (row.topic, row.channel), is_number=False),
    Column("depth", "Depth", lambda row: row.depth),
    _IN_FLIGHT,
    Column("in", "Received /s", lambda row: row.rate_in),
    _FINISHED,
    Column("timeouts", "Timeouts /s", lambda row: row.rate_timeout),
    Column("requeues", "Requeues /s", lambda row: row.rate_requeue),
    Column("oldest", "Oldest", lambda row: row.oldest_age_s),
    _CLIENTS,
)
_GROUPS: Final[Sequence[Column[Any]]] = (
    Column("name", "Prefix", lambda row: row.prefix, is_number=False),
    Column("members", "Names", lambda row: row.members),
    Column("depth", "Depth", lambda row: row.depth),
    *_COMMON,
    _MESSAGES,
    _CLIENTS,
)
_INACTIVE: Final[Sequence[Column[Any]]] = (
    Column("name", "Topic", lambda row: row.topic, is_number=False),
    Column("channels", "Channels", lambda row: len(row.channels)),
)

_FILTERS: Final[Mapping[str, tuple[str, Callable[[Any, AbstractSet[str]], bool]]]] = {
    "waiting": ("With messages", lambda row, _: _waiting(row) + row.missing_messages > 0),
    "alone": ("Without clients", lambda row, _: row.clients == 0),
    "paused": ("Paused", lambda row, _: row.paused),
    "favourites": ("Favourites", lambda row, names: _full_name(row) in names),
}
"""Their titles, and which rows they let through of a browser with those favourites."""


def _waiting(row: Row) -> int:
    return row.depth + (row.channels_depth if isinstance(row, TopicRow) else 0)


def _full_name(row: Any) -> str:
    return f"{row.topic}/{row.channel}" if isinstance(row, ChannelRow) else str(row.topic)


def _values(show: str) -> Mapping[str, Callable[[Any], Any]]:
    """The columns of a file."""
    is_channel = show == "channels"
    only: dict[str, Callable[[Any], Any]] = (
        {
            "channel": lambda row: row.channel,
            "timeouts": lambda row: row.timeouts,
            "timeouts_per_s": lambda row: row.rate_timeout,
            "requeues": lambda row: row.requeues,
            "requeues_per_s": lambda row: row.rate_requeue,
        }
        if is_channel
        else {"channels": lambda row: row.channels, "message_bytes": lambda row: row.nbytes}
    )
    return {
        "topic": lambda row: row.topic,
        **only,
        "depth": _waiting,
        "backend_depth": lambda row: row.backend_depth,
        "in_flight": lambda row: row.in_flight,
        "deferred": lambda row: row.deferred,
        "messages": lambda row: row.messages,
        "in_per_s": lambda row: row.rate_in,
        "out_per_s": lambda row: row.rate_out,
        "oldest_age_s": lambda row: row.oldest_age_s,
        "clients": lambda row: row.clients,
        "paused": lambda row: row.paused,
        "nodes": lambda row: row.nodes,
        "missing_nodes": lambda row: row.missing_nodes,
    }


_GROUP_VALUES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "prefix": lambda row: row.prefix,
    "names": lambda row: row.members,
    "depth": lambda row: row.depth,
    "in_flight": lambda row: row.in_flight,
    "messages": lambda row: row.messages,
    "in_per_s": lambda row: row.rate_in,
    "out_per_s": lambda row: row.rate_out,
    "clients": lambda row: row.clients,
}
_OF_INACTIVE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "topic": lambda row: row.topic,
    "channels": lambda row: " ".join(row.channels),
}


class TopicListPages:
    """GET /topics."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._poller = site.dashboard.poller

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("GET", "/topics", self.topics)]

    async def topics(self) -> Response:
        """GET /topics: a list of topics or channels, or a file of it.

        ``show`` is topics, channels or inactive; ``filter`` one of `_FILTERS`; ``prefix``: only
        names that begin so; ``group``: a row for each common prefix; ``as``: a file, csv or json.
        """
        query = arguments()
        if query.get("show") == "inactive":
            return await self._inactive(query)
        snapshot = await self._poller.current()
        view = _View(query, snapshot, favourites(), self._site.url("topics"))
        listing = await compute(view.count, view.make)
        if (kind := query.get("as", "")) in FILE_FORMATS:
            values = _GROUP_VALUES if view.grouped else _values(view.show)
            content = await compute(
                len(listing.matching), lambda: export_file(listing.matching, values, kind)
            )
            return file_response(content, view.show, kind)
        sparks = dict[int, Markup]()
        for row in () if view.grouped else listing.rows:
            await trio.lowlevel.checkpoint()
            sparks[id(row)] = self._spark(row)
        return self._site.page(
            "topics.html",
            "Channels" if view.show == "channels" else "Topics",
            "topics",
            live=True,
            show=view.show,
            flt=view.filter,
            grouped=view.grouped,
            prefix=view.prefix,
            listing=listing,
            chips=self._chips(view, listing),
            favourites=view.favourites,
            spark=lambda row: sparks[id(row)],
            window=SeriesCharts(self._poller.history, ("whole",)).window(),
            warnings=snapshot.warnings if snapshot else [],
            error=listing.problem or ("" if snapshot else "No node has answered yet."),
        )

    async def _inactive(self, query: Mapping[str, str]) -> Response:
        inactive, error = await inactive_topics(self._site)
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
        if (kind := query.get("as", "")) in FILE_FORMATS:
            return file_response(
                export_file(listing.matching, _OF_INACTIVE, kind), "inactive", kind
            )
        view = _View(query, self._poller.snapshot, favourites(), self._site.url("topics"))
        await compute(view.count, view.make)
        return self._site.page(
            "topics.html",
            "Inactive topics",
            "topics",
            show="inactive",
            flt="",
            grouped=False,
            prefix="",
            listing=listing,
            chips=self._chips(view, listing, inactive=True),
            favourites=(),
            spark=self._spark,
            window="",
            warnings=inactive.warnings,
            error=listing.problem or error,
        )

    def _chips(
        self, view: _View, listing: Listing[Any], *, inactive: bool = False
    ) -> list[dict[str, Any]]:
        """Links to other views of the list, with the number of rows that they find."""
        kept = {"q": listing.q, "sort": listing.sort if listing.sort != "name" else ""}
        kept |= {"prefix": view.prefix, "size": str(listing.size)}
        kept = {name: value for name, value in kept.items() if value}
        kind = "channels" if view.show == "channels" else ""

        def chip(name: str, count: int | None, on: bool, **query: str) -> dict[str, Any]:
            query = {key: value for key, value in (kept | query).items() if value}
            if query.get("size") == str(SIZE_DEFAULT):
                del query["size"]
            link = self._site.url("topics", **query)
            return {"name": name, "count": count, "on": on, "link": link}

        plain = not (inactive or view.filter or view.grouped)
        chips = [
            chip("Topics", view.topics_found, plain and not kind),
            chip("Channels", view.channels_found, plain and bool(kind), show="channels"),
        ]
        for name, (title, _) in _FILTERS.items():
            if name == "favourites" and not view.favourites:
                continue
            on = view.filter == name and not inactive
            chips.append(chip(title, view.filtered.get(name), on, show=kind, filter=name))
        chips.append(chip("By prefix", None, view.grouped and not inactive, show=kind, group="yes"))
        if not self._site.dashboard.cluster.is_direct:
            chips.append(chip("Inactive", None, inactive, show="inactive"))
        return chips

    def _spark(self, row: Row) -> Markup:
        if isinstance(row, ChannelRow):
            key = channel_key(row.topic, row.channel)
        else:
            assert isinstance(row, TopicRow)
            key = topic_key(row.topic)
        return SeriesCharts(self._poller.history, key).depth_spark()


class _View:
    """What a request for a list selects of a snapshot. `make` may run in a thread.

    Attributes:
        show, filter, prefix, grouped: of the query.
        favourites: of the browser.
        count: rows to look at.
        topics_found, channels_found: topics and channels that match; None without a snapshot.
        filtered: rows of ``show`` that match, by filter.
    """

    def __init__(
        self,
        query: Mapping[str, str],
        snapshot: Snapshot | None,
        favourite_names: Sequence[str],
        path: str,
    ) -> None:
        self.show = "channels" if query.get("show") == "channels" else "topics"
        self.filter = query.get("filter", "") if query.get("filter", "") in _FILTERS else ""
        self.prefix = query.get("prefix", "")[:_MAX_PREFIX]
        self.grouped = bool(query.get("group"))
        self.favourites = favourite_names
        self.count = len(snapshot.topics) + len(snapshot.channels) if snapshot else 0
        self.topics_found: int | None = None
        self.channels_found: int | None = None
        self.filtered = dict[str, int]()
        self._query = query
        self._snapshot = snapshot
        self._path = path

    def make(self) -> Listing[Any]:
        """The list; sets the counts."""
        topics, channels = self._select()
        rows: list[Any] = channels if self.show == "channels" else topics
        if self._snapshot is not None:
            self.topics_found, self.channels_found = len(topics), len(channels)
            names = set(self.favourites)
            for name, (_, wanted) in _FILTERS.items():
                self.filtered[name] = sum(1 for row in rows if wanted(row, names))
            if self.filter:
                rows = [row for row in rows if _FILTERS[self.filter][1](row, names)]
        extra = {"show": "" if self.show == "topics" else self.show, "filter": self.filter}
        extra |= {"prefix": self.prefix, "group": "yes" if self.grouped else ""}
        columns = _CHANNELS if self.show == "channels" else _TOPICS
        if self.grouped:
            rows, columns = group_rows(rows, self.prefix), _GROUPS
        listing = make_listing(
            rows,
            columns,
            self._query,
            path=self._path,
            text=None,
            sort="name",
            extra=extra,
            total=max(len(rows), self._total),
        )
        return replace(listing, problem=self._problem) if self._problem else listing

    def _select(self) -> tuple[list[TopicRow], list[ChannelRow]]:
        """Topics and channels with the prefix that match the search."""
        self._problem, self._total = "", 0
        snapshot = self._snapshot
        if snapshot is None:
            return [], []
        topics = [row for row in snapshot.topics.values() if row.topic.startswith(self.prefix)]
        channels = [row for row in snapshot.channels.values() if row.topic.startswith(self.prefix)]
        self._total = 0 if self.grouped else len(channels if self.show == "channels" else topics)
        if not (q := self._query.get("q", "").strip()):
            return topics, channels
        try:
            found = make_matcher(q[:_MAX_Q])
        except BadSearchError as error:
            self._problem = str(error)
            return [], []
        channels = [row for row in channels if found(f"{row.topic}/{row.channel}")]
        having = {row.topic for row in channels}
        return [row for row in topics if row.topic in having or found(row.topic)], channels
