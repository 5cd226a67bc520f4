"""Tables: search, sort and paging by query parameters; and the table of clients.

``q`` is the search text (all of its words, in any case), ``sort`` names a column (with ``-`` in
front: descending), ``page`` counts from 1, ``size`` is the number of rows. Invalid values are
ignored, because a link may be old. Spec: nsqadmin, section 6 (channel).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from admin.cluster.shapes import ClientStats

__all__ = ["SIZES", "ClientRow", "Column", "Listing", "clients_listing", "make_listing", "matches"]

Row = TypeVar("Row")

SIZES: Final = (25, 50, 100, 250)
_SIZE_DEFAULT: Final = 50
_MAX_Q_LENGTH: Final = 200


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column, sorted by ``key``: None comes last. Without a key it can't be sorted."""

    name: str
    title: str
    key: Callable[[Row], Any] | None
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """One page of rows, with the state of its controls.

    ``found`` of ``total`` rows match the search; ``first`` to ``last`` of them are on the page.
    """

    rows: Sequence[Row]
    columns: Sequence[Column[Row]]
    path: str
    q: str
    sort: str
    page: int
    pages: int
    size: int
    total: int
    found: int
    extra: Mapping[str, str]

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size + 1 if self.found else 0

    @property
    def last(self) -> int:
        return min(self.page * self.size, self.found)

    @property
    def near(self) -> Sequence[int | None]:
        """The page numbers to choose from; None marks a gap."""
        candidates = {1, self.pages, *range(self.page - 2, self.page + 3)}
        numbers: list[int | None] = []
        for number in sorted(candidates & set(range(1, self.pages + 1))):
            if numbers and numbers[-1] is not None and number > numbers[-1] + 1:
                numbers.append(None)
            numbers.append(number)
        return numbers

    def link(self, **changes: str | int) -> str:
        """The path of this listing with changed parameters, on page 1 unless ``page`` is one."""
        values: dict[str, str | int] = {**self.extra, "q": self.q, "sort": self.sort}
        values |= {"page": self.page, "size": self.size}
        if changes and "page" not in changes:
            values["page"] = 1
        values |= changes
        defaults: dict[str, str | int] = {"q": "", "page": 1, "size": _SIZE_DEFAULT}
        parameters = {
            name: value for name, value in values.items() if value != defaults.get(name, "")
        }
        return f"{self.path}?{urlencode(parameters)}" if parameters else self.path

    def sort_link(self, column: Column[Row]) -> str:
        """The link that sorts by a column, or reverses it. Numbers start with the highest."""
        down = f"-{column.name}"
        if self.sort in (column.name, down):
            return self.link(sort=column.name if self.sort == down else down)
        return self.link(sort=down if column.is_number else column.name)

    def aria_sort(self, column: Column[Row]) -> str:
        """The value of ``aria-sort``."""
        if self.sort == column.name:
            return "ascending"
        return "descending" if self.sort == f"-{column.name}" else "none"


def make_listing(
    rows: Sequence[Row],
    columns: Sequence[Column[Row]],
    query: Mapping[str, str],
    *,
    path: str,
    text: Callable[[Row], str],
    sort: str,
    extra: Mapping[str, str] | None = None,
) -> Listing[Row]:
    """The page of rows for ``query``.

    Args:
        rows: all rows.
        columns: the columns.
        query: the query parameters of the request.
        path: of the page, for links.
        text: the text of a row for the search.
        sort: the default order.
        extra: further parameters that links keep.
    """
    q = query.get("q", "").strip()[:_MAX_Q_LENGTH]
    matching = [row for row in rows if matches(q, text(row))] if q else list(rows)
    by_name = {column.name: column.key for column in columns if column.key is not None}
    order = query.get("sort", sort)
    if order.removeprefix("-") not in by_name:
        order = sort
    matching = _sorted(matching, by_name[order.removeprefix("-")], down=order.startswith("-"))
    size = _number(query.get("size", ""), _SIZE_DEFAULT)
    size = size if size in SIZES else _SIZE_DEFAULT
    pages = max(-(-len(matching) // size), 1)
    page = min(max(_number(query.get("page", ""), 1), 1), pages)
    return Listing(
        rows=matching[(page - 1) * size : page * size],
        columns=columns,
        path=path,
        q=q,
        sort=order,
        page=page,
        pages=pages,
        size=size,
        total=len(rows),
        found=len(matching),
        extra={name: value for name, value in (extra or {}).items() if value},
    )


def matches(q: str, text: str) -> bool:
    """Whether ``text`` contains all words of ``q``, in any case."""
    lowered = text.lower()
    return all(word in lowered for word in q.lower().split())


def _sorted(rows: list[Row], key: Callable[[Row], Any], *, down: bool) -> list[Row]:
    known = [row for row in rows if key(row) is not None]
    unknown = [row for row in rows if key(row) is None]
    return sorted(known, key=key, reverse=down) + unknown


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


_SAFE_LINKS: Final = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Tag:
    """A property of a connection; ``link`` is the URL of a page about it, or ""."""

    text: str
    title: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class ClientRow:
    """A client, its node, and its channel."""

    client: ClientStats
    node: str
    hostname: str
    now_s: float
    topic: str = ""
    channel: str = ""

    @property
    def connected_s(self) -> float | None:
        """Time since it connected, in whole seconds."""
        if not self.client.connect_ts:
            return None
        return max(int(self.now_s) - self.client.connect_ts, 0)

    @property
    def tags(self) -> list[Tag]:
        """The properties of the connection."""
        client, tags = self.client, list[Tag]()
        if client.sample_rate > 0:
            tags.append(Tag(f"Sampled {client.sample_rate} %"))
        if client.tls:
            cipher = ", ".join(
                part
                for part in (
                    client.tls_version,
                    client.tls_cipher_suite,
                    client.tls_negotiated_protocol,
                )
                if part
            )
            tags.append(Tag("TLS", cipher))
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
        more = (client.auth_identity, self.node, self.hostname, self.topic, self.channel)
        return " ".join([*parts, *more, *(tag.text for tag in self.tags)])


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
    Column("finished", "Finished", lambda row: row.client.finish_count),
    Column("requeued", "Requeued", lambda row: row.client.requeue_count),
    Column("messages", "Messages", lambda row: row.client.message_count),
    Column("connected", "Connected", lambda row: row.connected_s),
)
_OF_CHANNEL: Final = (_NAME, _AGENT, _TAGS, _NODE, *_FIGURES)
_OF_NODE: Final = (_NAME, _WHERE, _AGENT, _TAGS, *_FIGURES)


def clients_listing(
    clients: Iterable[tuple[str, str, str, str, ClientStats]],
    query: Mapping[str, str],
    path: str,
    *,
    of_node: bool = False,
    extra: Mapping[str, str] | None = None,
) -> Listing[ClientRow]:
    """A page of clients.

    Args:
        clients: node, host name, topic, channel and the client.
        query: of the request.
        path: of the page.
        of_node: whether the table is on a node's page: it has the channel instead of the node.
        extra: parameters that links keep.
    """
    now_s = time.time()
    rows = [
        ClientRow(client, node, hostname, now_s, topic, channel)
        for node, hostname, topic, channel, client in clients
    ]
    return make_listing(
        rows,
        _OF_NODE if of_node else _OF_CHANNEL,
        query,
        path=path,
        text=lambda row: row.text,
        sort="client",
        extra=extra,
    )
