"""What an action sends to which nodes, and in which order; nsqadmin and the command line share it.

nsqlookupds come before nsqds, so that consumers look up no topic or channel that is being deleted.
Spec: nsqadmin, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Step", "Verb", "change_steps", "creation_steps", "deletion_steps", "tombstone_steps"]

Verb = Literal["pause", "unpause", "empty"]


@dataclass(frozen=True, slots=True)
class Step:
    """One POST to each of several nodes; the next step begins when all have answered.

    Attributes:
        addresses: host:port of HTTP.
        path: of the URL.
        query: its parameters.
        if_there: a node without the topic or channel (404) is no error.
    """

    addresses: Sequence[str]
    path: str
    query: Mapping[str, str]
    if_there: bool = False


def creation_steps(lookupds: Sequence[str], topic: str, channel: str) -> list[Step]:
    """Register a topic and, if it is named, a channel."""
    steps = [Step(lookupds, "/topic/create", {"topic": topic})]
    if channel:
        steps.append(Step(lookupds, "/channel/create", {"topic": topic, "channel": channel}))
    return steps


def deletion_steps(
    lookupds: Sequence[str], nsqds: Sequence[str], topic: str, channel: str
) -> list[Step]:
    """Delete a topic or, if it is named, a channel of it."""
    path, query = _target(topic, channel, "delete")
    return [Step(lookupds, path, query), Step(nsqds, path, query)]


def change_steps(verb: Verb, nsqds: Sequence[str], topic: str, channel: str) -> list[Step]:
    """Pause, unpause or empty a topic or, if it is named, a channel of it."""
    return [Step(nsqds, *_target(topic, channel, verb))]


def tombstone_steps(lookupds: Sequence[str], nsqds: Iterable[str], topic: str) -> list[Step]:
    """Hide nsqds from the lookups of a topic, then delete it there."""
    nodes = list(nsqds)
    query = {"topic": topic}
    hidden = [Step(lookupds, "/topic/tombstone", {**query, "node": node}) for node in nodes]
    return [*hidden, Step(nodes, "/topic/delete", query)]


def _target(topic: str, channel: str, verb: str) -> tuple[str, dict[str, str]]:
    if channel:
        return f"/channel/{verb}", {"topic": topic, "channel": channel}
    return f"/topic/{verb}", {"topic": topic}
