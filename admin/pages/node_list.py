"""The rows of the list of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from admin.cluster.shapes import Producer
from admin.pages.format import clock, number, when
from admin.pages.listing import Column
from admin.watch.snapshot import NodeRow

__all__ = ["NODE_COLUMNS", "NodeEntry", "last_seen", "search_text"]

_MAX_SEARCHED: Final = 5000


@dataclass(frozen=True, slots=True)
class NodeEntry:
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
        """The first topics in order, and whether each is tombstoned."""
        hidden = self.producer.tombstones or []
        names = self.producer.topics or []
        return sorted(
            (name, n < len(hidden) and hidden[n]) for n, name in enumerate(names[:_MAX_SEARCHED])
        )

    @property
    def topic_count(self) -> int:
        return len(self.producer.topics or ())

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
    def is_old(self) -> bool:
        """Whether the figures are of an earlier answer."""
        return self.row is not None and not self.row.up and self.row.answered_s is not None

    @property
    def seen_at(self) -> str:
        """The time of the last answer."""
        return clock(self.row.answered_s) if self.row is not None else ""

    @property
    def depth(self) -> int | None:
        """The last known depth; None: it never answered."""
        return self.row.depth if self.row and (self.row.up or self.is_old) else None

    @property
    def clients(self) -> int | None:
        """The last known number of clients."""
        return self.row.clients if self.row and (self.row.up or self.is_old) else None

    @property
    def rate_in(self) -> float | None:
        return self.row.rate_in if self.row and self.row.up else None

    @property
    def rate_out(self) -> float | None:
        return self.row.rate_out if self.row and self.row.up else None

    @property
    def can_forget(self) -> bool:
        """Whether an admin may have it forgotten."""
        row = self.row
        return row is not None and not (row.up or row.registered or row.expected)


NODE_COLUMNS: Final[Sequence[Column[NodeEntry]]] = (
    Column("node", "Node", lambda row: row.node, is_number=False),
    Column("state", "State", lambda row: (row.kind != "bad", row.state), is_number=False),
    Column("ports", "TCP port", lambda row: row.tcp_port),
    Column("version", "Version", lambda row: (row.out_of_date, row.version)),
    Column("lookupds", "Lookupds", lambda row: len(row.lookupds)),
    Column("depth", "Depth", lambda row: row.depth),
    Column("in", "Published /s", lambda row: row.rate_in),
    Column("out", "Finished /s", lambda row: row.rate_out),
    Column("clients", "Clients", lambda row: row.clients),
    Column("topics", "Topics", lambda row: len(row.topics), is_number=False),
)


def last_seen(row: NodeRow) -> str:
    """A sentence on the last state of a silent node."""
    figures = ((row.topics, "topic"), (row.channels, "channel"), (row.clients, "client"))
    had = [f"{number(count)} {name}{'' if count == 1 else 's'}" for count, name in figures]
    return (
        f"Last seen {when(row.answered_s)} UTC with a depth of {number(row.depth)},"
        f" {number(row.in_flight)} in flight, {', '.join(had)}."
    )


def search_text(row: NodeEntry) -> str:
    names = [name for name, _ in row.topics[:_MAX_SEARCHED]]
    return " ".join([row.node, row.hostname, row.version, row.state, *row.lookupds, *names])
