"""Queries of several pages: the nodes of a topic, and recent results for all viewers.

The nodes of a topic are those that nsqlookupds list and those where the poller has seen it. An
nsqlookupd that is silent, hangs or was just restarted knows less than the poller, and it soon
forgets a node that died; so no page depends on it alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, TypeVar, cast

import trio

from admin.cluster.queries import HUNG_S, LATE_S, AllFailed
from admin.cluster.shapes import Producer
from admin.dashboard import Dashboard
from admin.watch.poller import Poller

__all__ = [
    "MAX_RESULTS",
    "RESULT_LIFETIME_S",
    "LookupWaits",
    "RecentResults",
    "TopicNodes",
    "answering_node_has",
    "lookup_waits",
    "nodes_of_topic",
]


class LookupWaits(TypedDict, total=False):
    """How long a page waits for nsqlookupds: arguments of `Cluster.producers`."""

    late_s: float
    first_s: float


@dataclass(slots=True)
class TopicNodes:
    """The nodes of a topic.

    Attributes:
        producers: the nodes that have the topic, or had it at their last answer.
        warnings: errors of nsqlookupds.
        error: why no nsqlookupd answered; "" if one did.
        is_registered: whether an nsqlookupd knows the topic, with or without a node.
    """

    producers: list[Producer]
    warnings: list[str] = field(default_factory=list)
    error: str = ""
    is_registered: bool = False

    @property
    def nobody(self) -> bool:
        """Whether certainly no node has the topic: all nsqlookupds answered."""
        return not (self.producers or self.warnings or self.error)


def answering_node_has(poller: Poller, topic: str) -> bool:
    """Whether a node that answers has the topic, whatever nsqlookupds list."""
    row = poller.snapshot.topics.get(topic) if poller.snapshot is not None else None
    return row is not None and row.nodes > 0


def lookup_waits(*, known: bool) -> LookupWaits:
    """How long to wait for nsqlookupds: shorter if the answer is ``known`` without them."""
    return {"late_s": HUNG_S, "first_s": HUNG_S} if known else {"late_s": LATE_S}


async def nodes_of_topic(dashboard: Dashboard, topic: str) -> TopicNodes:
    """The nodes of ``topic``. Waits `HUNG_S` for nsqlookupds if the poller knows some."""
    known = dashboard.poller.producers(topic)
    try:
        registered = await dashboard.cluster.producers(topic, **lookup_waits(known=bool(known)))
    except AllFailed as failure:
        # nsqlookupd answers 404 for a topic that it does not know.
        unheard = [error for error in failure.errors if error.status != 404]
        if not known:
            return TopicNodes([], error=str(failure) if unheard else "")
        return TopicNodes(known, [str(error) for error in unheard])
    names = {producer.node for producer in registered.value}
    more = [producer for producer in known if producer.node not in names]
    known_there = bool(registered.value) or not dashboard.cluster.is_direct
    return TopicNodes([*registered.value, *more], registered.warnings, is_registered=known_there)


T = TypeVar("T")

RESULT_LIFETIME_S: Final = 1.0
"""Lifetime of a result, in seconds."""
MAX_RESULTS: Final = 32
"""Maximum results; the oldest goes first."""


@dataclass(slots=True)
class _Finding:
    done: trio.Event = field(default_factory=trio.Event)
    found: bool = False
    value: Any = None
    until_s: float = 0.0


class RecentResults:
    """Results by key, so that many viewers of a page cause one query.

    A caller waits for a query of its key that is running.
    """

    def __init__(self, kept_s: float = RESULT_LIFETIME_S) -> None:
        self._kept_s = kept_s
        self._findings: OrderedDict[Hashable, _Finding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._findings)

    async def get(self, key: Hashable, find: Callable[[], Awaitable[T]]) -> T:
        """The result of ``find``, a new or a recent one. Errors are raised and not kept."""
        while (finding := self._findings.get(key)) is not None:
            if not finding.done.is_set():
                await finding.done.wait()
            if finding.found and trio.current_time() < finding.until_s:
                return cast(T, finding.value)
            if self._findings.get(key) is finding:
                del self._findings[key]
        return await self._find(key, find)

    def clear(self) -> None:
        """Forget all results, because something changed; running queries, too."""
        self._findings.clear()

    async def _find(self, key: Hashable, find: Callable[[], Awaitable[T]]) -> T:
        finding = self._findings[key] = _Finding()
        self._drop()
        try:
            finding.value = value = await find()
            finding.found, finding.until_s = True, trio.current_time() + self._kept_s
            return value
        finally:
            finding.done.set()
            if not finding.found and self._findings.get(key) is finding:
                del self._findings[key]

    def _drop(self) -> None:
        now_s = trio.current_time()
        over = [k for k, f in self._findings.items() if f.done.is_set() and f.until_s <= now_s]
        for key in over:
            del self._findings[key]
        while len(self._findings) > MAX_RESULTS:
            self._findings.popitem(last=False)
