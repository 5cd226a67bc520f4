"""What is done to the whole cluster: one call after the other, so that its order is known.

Each function returns what went wrong at single nodes. Spec: nsqadmin, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
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
    warnings = await _post(cluster, lookupds, "/topic/create", topic=topic)
    if not channel:
        return warnings
    names = {"topic": topic, "channel": channel}
    warnings += await _post(cluster, lookupds, "/channel/create", **names)
    nodes, failed = await _producers_now(cluster, topic)
    return [*warnings, *failed, *await _post(cluster, nodes, "/channel/create", **names)]


async def delete(cluster: Cluster, topic: str, channel: str = "") -> list[str]:
    """Delete a topic, or a channel of it.

    Raises:
        AllFailed: it can't be known who has it; nothing was done.
    """
    path, names = _target(topic, channel, "delete")
    producers = await cluster.producers(topic, late_s=math.inf)
    nodes = [producer.node for producer in producers.value]
    warnings = [*producers.warnings]
    warnings += await _post(cluster, cluster.lookupd_addresses, path, **names)
    return [*warnings, *await _post(cluster, nodes, path, **names)]


async def on_producers(cluster: Cluster, verb: str, topic: str, channel: str = "") -> Reached:
    """pause, unpause or empty a topic or a channel at every nsqd that has the topic.

    Raises:
        AllFailed: it can't be known who has it; nothing was done.
    """
    path, names = _target(topic, channel, verb)
    producers = await cluster.producers(topic, late_s=math.inf)
    nodes = [producer.node for producer in producers.value]
    failed = await _post(cluster, nodes, path, **names)
    return Reached(len(nodes), [*producers.warnings, *failed])


async def tombstone(cluster: Cluster, node: str, topic: str) -> list[str]:
    """Hide a node (host:port of HTTP) from the lookups of a topic, and delete the topic there.

    Raises:
        UpstreamError: the node doesn't say who it is.
    """
    warnings = await _post(
        cluster, cluster.lookupd_addresses, "/topic/tombstone", topic=topic, node=node
    )
    await cluster.info(node)
    return [*warnings, *await _post(cluster, [node], "/topic/delete", topic=topic)]


async def _producers_now(cluster: Cluster, topic: str) -> tuple[list[str], list[str]]:
    try:
        found = await cluster.producers(topic, late_s=math.inf)
    except AllFailed as failure:
        return [], list(map(str, failure.errors))
    return [producer.node for producer in found.value], found.warnings


async def _post(cluster: Cluster, addresses: Iterable[str], path: str, **query: str) -> list[str]:
    warnings = []
    for address in addresses:
        try:
            await cluster.upstream.post(url_of(address, path, **query))
        except UpstreamError as error:
            warnings.append(str(error))
    return warnings


def _target(topic: str, channel: str, verb: str) -> tuple[str, dict[str, str]]:
    if channel:
        return f"/channel/{verb}", {"topic": topic, "channel": channel}
    return f"/topic/{verb}", {"topic": topic}
