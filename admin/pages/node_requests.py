"""A request to each of several nodes, for what only our nsqd knows."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import trio

from admin.cluster.queries import url_of
from admin.pages.site import Site
from admin.upstream import NodeWarning, UpstreamError

__all__ = ["WAIT_S", "NodeAnswers", "ask_nodes", "each_node", "is_lacking", "node_names"]

T = TypeVar("T")

WAIT_S: Final = 2.0
"""Maximum wait of a page for a node, in seconds."""
_MAX_NODES: Final = 1_000
# Codes such as CHANNEL_NOT_FOUND; for a path that it does not know, nsqd says NOT_FOUND.
_NOT_THERE: Final = re.compile(r"[A-Z]_NOT_[A-Z]")


@dataclass(slots=True)
class NodeAnswers(Generic[T]):
    """The answers by node; ``lacking``: nodes without the path, such as the original nsqd."""

    values: dict[str, T] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def node_names(site: Site) -> list[str]:
    """The nodes that answered the last poll, sorted."""
    snapshot = site.dashboard.poller.snapshot
    nodes = snapshot.nodes if snapshot is not None else {}
    return sorted(name for name, row in nodes.items() if row.up)[:_MAX_NODES]


async def ask_nodes(
    site: Site, nodes: Iterable[str], path: str, kind: type[T], **query: str
) -> NodeAnswers[T]:
    """GET ``path`` of each node, at most `WAIT_S` for each. ``kind`` is a msgspec type.

    Raises nothing but on cancellation.
    """
    upstream = site.dashboard.upstream

    async def ask(node: str) -> T:
        return await upstream.get_json(url_of(node, path, **query), kind, timeout_s=WAIT_S)

    return await each_node(nodes, ask)


async def each_node(nodes: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> NodeAnswers[T]:
    """What ``ask`` returns for each node; `Upstream` limits the requests."""
    answers, wanted = NodeAnswers[T](), list(nodes)
    found = dict[str, T | UpstreamError]()

    async def note(node: str) -> None:
        try:
            found[node] = await ask(node)
        except UpstreamError as error:
            found[node] = error

    async with trio.open_nursery() as nursery:
        for node in wanted:
            nursery.start_soon(note, node, name=f"nsqadmin request to {node}")
    for node in wanted:
        answer = found[node]
        if not isinstance(answer, UpstreamError):
            answers.values[node] = answer
        elif is_lacking(answer):
            answers.lacking.append(node)
        else:
            answers.warnings.append(NodeWarning(answer))
    return answers


def is_lacking(error: UpstreamError) -> bool:
    """Whether the node has no such path; a 404 of ours says what is not found."""
    return error.status == 404 and _NOT_THERE.search(str(error)) is None
