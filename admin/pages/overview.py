"""The first page, "Is anything wrong?", and the counter."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup
from quart import Response

from admin.cluster.turns import compute
from admin.pages import format as shown
from admin.pages.drawing import bar
from admin.pages.site import Site, arguments
from admin.watch.history import WHOLE
from admin.watch.snapshot import ChannelRow, NodeRow, Problem, Snapshot
from trionsq.web.app import Endpoint

__all__ = ["OverviewPages", "verdict"]

_PROBLEMS_SHOWN: Final = 8
_MAX_PROBLEMS: Final = 500
_RANKED: Final = 6
_NODES_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to the question; ``kind`` is ``good``, ``warn`` or ``bad``."""

    kind: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class _Ranked:
    topic: str
    channel: str
    figure: str
    bar: Markup


@dataclass(frozen=True, slots=True)
class _Rank:
    """The worst channels by one value."""

    title: str
    none: str
    link: str
    rows: Sequence[_Ranked]


def verdict(problems: Iterable[Problem], nodes: int, nodes_up: int) -> Verdict:
    """One line about all problems."""
    counts = {"critical": 0, "warning": 0, "notice": 0}
    all_told = True
    for problem in problems:
        counts[problem.severity] += 1
        all_told = all_told and problem.kind != "lookup"
    if not nodes:
        why = (
            "No nsqd is registered yet."
            if all_told
            else "No nsqlookupd answers, so the nodes are unknown."
        )
        return Verdict("warn", "No nodes known", why)
    if not all_told:
        answer = f"{nodes_up} of {nodes} known nodes answer; there may be more"
    elif nodes_up == nodes:
        answer = "Every node answers"
    else:
        answer = f"{nodes_up} of {nodes} nodes answer"
    parts = [_counted(count, name) for name, count in counts.items() if count]
    text = f"{answer}. {', '.join(parts).capitalize()}." if parts else f"{answer}."
    if counts["critical"]:
        return Verdict("bad", "Something is wrong", text)
    if counts["warning"]:
        return Verdict("warn", "Something needs attention", text)
    return Verdict("good", "Nothing is wrong", text)


def _counted(count: int, name: str) -> str:
    plural = {"critical": "critical problems", "warning": "warnings", "notice": "notices"}
    one = {"critical": "critical problem"}.get(name, name)
    return f"{count:,} {one if count == 1 else plural[name]}"


class OverviewPages:
    """GET / and GET /counter, from the poller's last snapshot."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._poller = site.dashboard.poller

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("GET", "/", self.first), ("GET", "/counter", self.counter)]

    async def first(self) -> Response:
        """GET /."""
        snapshot = await self._poller.current()
        if snapshot is None:
            return self._site.page(
                "overview.html", "Overview", "overview", live=True, snapshot=None, error=""
            )
        drawing = self._site.charts(WHOLE, self._poller.marks.all())
        total = snapshot.total
        everything = arguments().get("problems") == "all"
        most = _MAX_PROBLEMS if everything else _PROBLEMS_SHOWN
        more = len(snapshot.problems) - _PROBLEMS_SHOWN
        up = sum(node.up for node in snapshot.nodes.values())
        return self._site.page(
            "overview.html",
            "Overview",
            "overview",
            live=True,
            snapshot=snapshot,
            verdict=verdict(snapshot.problems, len(snapshot.nodes), up),
            problems=snapshot.problems[:most],
            problems_more=max(more, 0),
            all_problems=everything,
            total=total,
            sparks=drawing.sparks,
            charts=drawing.cards(
                depth=total.depth if total.nodes else None,
                at_least=total.missing_nodes > 0,
                rate_in=total.rate_in,
                rate_out=total.rate_out,
            ),
            ranks=await compute(len(snapshot.channels), lambda: self._ranks(snapshot)),
            nodes=_node_chips(snapshot.nodes.values()),
            counts={
                "topics": len(snapshot.topics),
                "channels": len(snapshot.channels),
                "nodes": len(snapshot.nodes),
                "nodes_up": up,
            },
        )

    async def counter(self) -> Response:
        """GET /counter."""
        snapshot = await self._poller.current()
        channels: Collection[ChannelRow] = snapshot.channels.values() if snapshot else ()
        messages, rate_in, rows = await compute(
            len(channels),
            lambda: (
                sum(row.messages for row in channels),
                sum(row.rate_in or 0.0 for row in channels),
                _ranked(channels, lambda row: float(row.messages), shown.number),
            ),
        )
        drawing = self._site.charts(WHOLE)
        return self._site.page(
            "counter.html",
            "Counter",
            "counter",
            live=True,
            warnings=snapshot.warnings if snapshot else [],
            error="" if snapshot else "No node has answered yet.",
            messages=messages,
            counted_rate=round(rate_in, 3),
            chart=drawing.rate_chart(),
            rows=rows,
        )

    def _ranks(self, snapshot: Snapshot) -> list[_Rank]:
        def rank(title: str, none: str, sort: str, rows: Sequence[_Ranked]) -> _Rank:
            link = self._site.url("topics", show="channels", sort=f"-{sort}")
            return _Rank(title, none, link, rows)

        rows = snapshot.channels.values()
        ages = "No message waits, or no node reports ages."
        return [
            rank(
                "Greatest depth",
                "No channel has messages waiting.",
                "depth",
                _ranked(rows, lambda row: float(row.depth), shown.number),
            ),
            rank(
                "Oldest message",
                ages,
                "oldest",
                _ranked(rows, lambda row: row.oldest_age_s, shown.age),
            ),
            rank(
                "Most timeouts",
                "No messages time out.",
                "timeouts",
                _ranked(rows, lambda row: row.rate_timeout, _per_second),
            ),
            rank(
                "Most requeues",
                "No messages are requeued.",
                "requeues",
                _ranked(rows, lambda row: row.rate_requeue, _per_second),
            ),
        ]


def _per_second(value: float | None) -> str:
    return f"{shown.rate(value)}/s"


def _ranked(
    rows: Iterable[ChannelRow],
    figure: Callable[[ChannelRow], float | None],
    show: Callable[[float | None], str],
) -> list[_Ranked]:
    worst = heapq.nlargest(_RANKED, ((figure(row) or 0.0, row) for row in rows), key=_first)
    top = worst[0][0] if worst else 0.0
    return [
        _Ranked(row.topic, row.channel, show(value), bar(value, top))
        for value, row in worst
        if value > 0
    ]


def _first(pair: tuple[float, ChannelRow]) -> float:
    return pair[0]


def _node_chips(nodes: Iterable[NodeRow]) -> Sequence[Mapping[str, str]]:
    """The first nodes, those with problems in front."""
    chips = []
    for node in nodes:
        kind, state = "", "answers"
        if not node.up:
            kind, state = "bad", "does not answer"
        elif node.health != "OK":
            kind, state = "bad", "not healthy"
        elif node.draining:
            kind, state = "warn", "draining"
        elif node.out_of_date or not node.registered:
            kind = "warn"
            state = "out of date" if node.out_of_date else "not registered"
        chips.append({"node": node.node, "kind": kind, "state": state})
    order = {"bad": 0, "warn": 1, "": 2}
    chips.sort(key=lambda chip: (order[chip["kind"]], chip["node"]))
    return chips[:_NODES_SHOWN]
