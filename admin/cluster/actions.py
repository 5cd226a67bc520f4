"""What is done to the whole cluster: one call after the other, so that its order is known.

Each function returns what went wrong at single nodes. Spec: nsqadmin, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from admin.cluster.queries import AllFailed, Cluster, url_of
from admin.upstream import UpstreamError

__all__ = ["Reached", "create", "delete", "on_producers", "tombstone"]


@dataclass(frozen=True, slots=True)
class Reached:
    """How many nsqds were asked to do something, and what went wrong."""

    nodes: int
    warnings: list[str]


async def create(cluster: Cluster, topic: str, channel: str) -> list[str]:
    """Create a topic and, if it is named, a channel; without nsqlookupds nothing happens."""
    if cluster.is_direct:
        return []
    lookupds = cluster.lookupd_addresses
    warnings = await _post(cluster, lookupds, "/topic/create", {"topic": topic})
    if not channel:
        return warnings
    names = {"topic": topic, "channel": channel}
    warnings += await _post(cluster, lookupds, "/channel/create", names)
    nodes, failed = await _producers_now(cluster, topic)
    return [*warnings, *failed, *await _post(cluster, nodes, "/channel/create", names)]


async def delete(
    cluster: Cluster, topic: str, channel: str = "", known: Collection[str] = ()
) -> list[str]:
    """Delete a topic, or a channel of it; ``known`` as in `on_producers`.

    Raises:
        AllFailed: it can't be known who has it; nothing was done.
    """
    path, names = _target(topic, channel, "delete")
    told, more, warnings = await _who_has(cluster, topic, known)
    warnings += await _post(cluster, cluster.lookupd_addresses, path, names)
    warnings += await _post(cluster, told, path, names)
    return [*warnings, *await _post(cluster, more, path, names, if_there=True)]


async def on_producers(
    cluster: Cluster, verb: str, topic: str, channel: str = "", known: Collection[str] = ()
) -> Reached:
    """pause, unpause or empty a topic or a channel at every nsqd that has the topic.

    ``known`` are nodes that had it lately. They are told too, whatever nsqlookupds say: after its
    restart one knows some of the nodes only.

    Raises:
        AllFailed: it can't be known who has it; nothing was done.
    """
    path, names = _target(topic, channel, verb)
    told, more, warnings = await _who_has(cluster, topic, known)
    warnings += await _post(cluster, told, path, names)
    warnings += await _post(cluster, more, path, names, if_there=True)
    return Reached(len(told) + len(more), warnings)


async def tombstone(cluster: Cluster, node: str, topic: str) -> list[str]:
    """Hide a node (host:port of HTTP) from the lookups of a topic, and delete the topic there.

    Raises:
        UpstreamError: the node doesn't say who it is.
    """
    warnings = await _post(
        cluster, cluster.lookupd_addresses, "/topic/tombstone", {"topic": topic, "node": node}
    )
    await cluster.info(node)
    return [*warnings, *await _post(cluster, [node], "/topic/delete", {"topic": topic})]


async def _who_has(
    cluster: Cluster, topic: str, known: Collection[str]
) -> tuple[list[str], list[str], list[str]]:
    """Nodes that nsqlookupds tell of, others that are ``known``, and what went wrong."""
    try:
        found = await cluster.producers(topic, late_s=math.inf)
    except AllFailed as failure:
        if not known:
            raise
        return [], list(known), [str(each) for each in failure.errors if each.status != 404]
    told = [producer.node for producer in found.value]
    return told, [node for node in known if node not in told], list(found.warnings)


async def _producers_now(cluster: Cluster, topic: str) -> tuple[list[str], list[str]]:
    try:
        found = await cluster.producers(topic, late_s=math.inf)
    except AllFailed as failure:
        return [], list(map(str, failure.errors))
    return [producer.node for producer in found.value], found.warnings


async def _post(
    cluster: Cluster,
    addresses: Iterable[str],
    path: str,
    query: Mapping[str, str],
    *,
    if_there: bool = False,
) -> list[str]:
    """What went wrong; with ``if_there`` a node may lack the topic or channel."""
    warnings = []
    for address in addresses:
        try:
            await cluster.upstream.post(url_of(address, path, **query))
        except UpstreamError as error:
            if not (if_there and error.status == 404):
                warnings.append(str(error))
    return warnings


def _target(topic: str, channel: str, verb: str) -> tuple[str, dict[str, str]]:
    if channel:
        return f"/channel/{verb}", {"topic": topic, "channel": channel}
    return f"/topic/{verb}", {"topic": topic}
