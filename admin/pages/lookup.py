"""What nsqlookupds know that no node has, and the form that creates topics and channels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quart import Response

from admin.cluster.queries import AllFailed, Found
from admin.pages.site import Site, arguments
from trionsq.web.app import Endpoint

__all__ = ["Lookup"]

_SHOWN_MAX: Final = 100


class Lookup:
    """GET /lookup."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._cluster = site.dashboard.cluster

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("GET", "/lookup", self.lookup)]

    async def lookup(self) -> Response:
        """GET /lookup; ``topic`` fills the form."""
        found: Found[dict[str, list[str]]] = Found({}, [])
        error = ""
        try:
            found = await self._site.recent.get("inactive", self._cluster.inactive_topics)
        except AllFailed as failure:
            error = str(failure)
        return self._site.page(
            "lookup.html",
            "Lookup",
            "lookup",
            lookupds=self._cluster.lookupd_addresses,
            inactive=list(found.value.items())[:_SHOWN_MAX],
            inactive_count=len(found.value),
            topic=arguments().get("topic", ""),
            warnings=found.warnings,
            error=error,
        )
