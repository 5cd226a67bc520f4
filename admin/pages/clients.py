"""The table of connected clients. Spec: nsqadmin, section 6 (channel)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from admin.cluster.shapes import ClientStats
from admin.pages.listing import Column, Listing, listed

__all__ = ["ClientRow", "clients_listing"]

_SAFE_LINKS: Final = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Tag:
    """Something about a connection; ``link`` is "" or a page that tells more."""

    text: str
    title: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class ClientRow:
    """A client, where it is connected, and what it consumes."""

    client: ClientStats
    node: str
    hostname: str
    now_s: float
    topic: str = ""
    channel: str = ""

    @property
    def connected_s(self) -> float | None:
        """For how long, in whole seconds."""
        if not self.client.connect_ts:
            return None
        return max(int(self.now_s) - self.client.connect_ts, 0)

    @property
    def tags(self) -> list[Tag]:
        """What is special about the connection."""
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
            # What an auth server says is a link only if it is one.
            url = client.auth_identity_url
            link = url if url.lower().startswith(_SAFE_LINKS) else ""
            tags.append(Tag(client.auth_identity or "Authenticated", "authenticated", link))
        return tags

    @property
    def text(self) -> str:
        """What the search looks at."""
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
        of_node: it is one node's: not that but the channel is shown.
        extra: parameters that links keep.
    """
    now_s = time.time()
    rows = [
        ClientRow(client, node, hostname, now_s, topic, channel)
        for node, hostname, topic, channel, client in clients
    ]
    return listed(
        rows,
        _OF_NODE if of_node else _OF_CHANNEL,
        query,
        path=path,
        text=lambda row: row.text,
        sort="client",
        extra=extra,
    )
