"""What nsqlookupds know that no node has, and the form that creates topics and channels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quart import Response

from admin.cluster.queries import AllFailed, Found
from admin.pages.format import number, when
from admin.pages.site import Site, arguments
from admin.pages.whereabouts import is_seen, waits
from trionsq.web.app import Endpoint

__all__ = ["Lookup"]

_SHOWN_MAX: Final = 100


class Lookup:
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
        found: Found[dict[str, list[str]]] = Found({}, [])
        error = ""
        try:
            wait = waits(known=self._poller.knows_nodes)
            found = await self._site.recent.get(
                "inactive", lambda: self._cluster.inactive_topics(**wait)
            )
        except AllFailed as failure:
            error = str(failure)
        inactive = {
            topic: channels
            for topic, channels in found.value.items()
            if not is_seen(self._poller, topic)
        }
        shown = list(inactive.items())[:_SHOWN_MAX]
        return self._site.page(
            "lookup.html",
            "Lookup",
            "lookup",
            lookupds=self._cluster.lookupd_addresses,
            inactive=shown,
            inactive_count=len(inactive),
            silent={topic: self._silent(topic) for topic, _ in shown},
            topic=arguments().get("topic", ""),
            warnings=found.warnings,
            error=error,
        )

    def _silent(self, topic: str) -> list[str]:
        """A sentence for each node that had the topic and does not answer."""
        said = []
        for producer in self._poller.producers(topic):
            if (seen := self._poller.last_seen(producer.node, topic)) is not None:
                count = sum(seen[1].values())
                messages = f"{number(count)} message{'' if count == 1 else 's'}"
                said.append(
                    f"{producer.node} had it with {messages} when it was last seen, at"
                    f" {when(seen[0])} UTC. It does not answer now."
                )
        return said
