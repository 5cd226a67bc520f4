"""The page about nsqlookupds: topics without a producer, and the form that creates one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quart import Response

from admin.cluster.queries import AllFailed, QueryResult
from admin.pages.format import when
from admin.pages.shared_queries import answering_node_has, lookup_waits
from admin.pages.site import Site, arguments
from admin.pages.wording import plural
from admin.watch.node import total_held
from trionsq.web.app import Endpoint

__all__ = ["LookupPage", "inactive_topics"]

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
        """GET /lookup; ``topic`` and ``channel`` fill the form."""
        inactive, error = await inactive_topics(self._site)
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
            channel=arguments().get("channel", ""),
            warnings=inactive.warnings,
            error=error,
        )

    def _silent(self, topic: str) -> list[str]:
        """A sentence for each node that had the topic and does not answer."""
        sentences = []
        for producer in self._poller.producers(topic):
            if (last := self._poller.last_seen(producer.node, topic)) is not None:
                messages = plural(total_held(last[1]), "message")
                sentences.append(
                    f"{producer.node} had this topic with {messages} when it was last seen, at"
                    f" {when(last[0])} UTC. The node does not answer now."
                )
        return sentences


async def inactive_topics(site: Site) -> tuple[QueryResult[dict[str, list[str]]], str]:
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
