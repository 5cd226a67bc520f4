"""GET /search: topics, channels, nodes and clients at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from quart import Response, request

from admin.cluster.turns import compute
from admin.pages.clients import ClientPage, ClientRow
from admin.pages.lookup import inactive_topics
from admin.pages.search import BadSearchError, make_matcher
from admin.pages.site import Site, arguments
from admin.watch.snapshot import Snapshot
from trionsq.web.app import Endpoint

__all__ = ["SearchPage"]

_MAX_Q: Final = 200
_MAX_HITS: Final = 20

# Its title, the path of the whole list, the number of hits, and the first of them: text and path.
_Section = tuple[str, str, int, Sequence[tuple[str, str]]]


class SearchPage:
    """The search of the top bar."""

    def __init__(self, site: Site, clients: ClientPage) -> None:
        self._site = site
        self._clients = clients
        self._poller = site.dashboard.poller

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("GET", "/search", self.search)]

    async def search(self) -> Response:
        """GET /search: ``q``. What is found alone is opened."""
        q = arguments().get("q", "").strip()[:_MAX_Q]
        sections, error, warnings = list[_Section](), "", list[str]()
        if q:
            everyone = await self._clients.all_clients()
            inactive, failure = await inactive_topics(self._site)
            warnings = [*everyone.warnings, *([failure] if failure else inactive.warnings)]
            snapshot = self._poller.snapshot
            rows = len(everyone.rows) + len(inactive.value)
            rows += len(snapshot.topics) + len(snapshot.channels) if snapshot else 0
            try:
                sections = await compute(
                    rows, lambda: self._find(q, snapshot, everyone.rows, inactive.value)
                )
            except BadSearchError as problem:
                error = str(problem)
        hits = sum(count for _, _, count, _ in sections)
        if hits == 1 and "HX-Request" not in request.headers:
            response = Response(b"", 303)
            response.headers["Location"] = next(path for *_, found in sections for _, path in found)
            return response
        return self._site.page(
            "search.html",
            f"Search: {q}",
            live=bool(q),
            q=q,
            hits=hits,
            sections=sections,
            warnings=warnings,
            error=error,
        )

    def _find(
        self,
        q: str,
        snapshot: Snapshot | None,
        clients: Sequence[ClientRow],
        inactive: Iterable[str],
    ) -> list[_Section]:
        """The sections; may run in a thread. Raises BadSearchError."""
        found, url = make_matcher(q), self._site.url
        sections = list[_Section]()

        def add(title: str, path: str, hits: Iterable[tuple[str, str]]) -> None:
            every = list(hits)
            if every:
                sections.append((title, path, len(every), every[:_MAX_HITS]))

        if snapshot is not None:
            topics = sorted(name for name in snapshot.topics if found(name))
            add("Topics", url("topics", q=q), ((name, url("topics", name)) for name in topics))
            channels = sorted(name for name in snapshot.channels if found("/".join(name)))
            add(
                "Channels",
                url("topics", show="channels", q=q),
                ((" / ".join(name), url("topics", *name)) for name in channels),
            )
            nodes = list(snapshot.nodes.values())
            add(
                "Nodes",
                url("nodes"),
                (
                    (f"{row.node} {row.hostname}", url("nodes", row.node))
                    for row in nodes
                    if found(f"{row.node} {row.hostname} {row.version} {row.tcp_port}")
                ),
            )
        add(
            "Clients",
            url("clients", q=q),
            (
                (
                    f"{row.client.remote_address} {row.client.client_id} {row.client.user_agent}",
                    url("topics", row.topic, row.channel, q=row.client.remote_address),
                )
                for row in clients
                if found(row.text)
            ),
        )
        add(
            "Inactive topics",
            url("topics", show="inactive", q=q),
            ((name, url("topics", name)) for name in inactive if found(name)),
        )
        return sections
