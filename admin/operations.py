"""What users do to the cluster, by the JSON API or by a page; each action goes to the observers.

To be called within a request, after the role was checked. Nodes are asked one after the other, so
that the order is known. Spec: nsqadmin, sections 3 and 4.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from quart import request

from admin.cluster.queries import AllFailed, Cluster, url_of
from admin.cluster.steps import (
    Step,
    Verb,
    change_steps,
    creation_steps,
    deletion_steps,
    tombstone_steps,
)
from admin.upstream import NodeWarning, UpstreamError
from admin.user_action import UserAction
from trionsq.hostport import format_address

__all__ = ["Operations", "Reached"]

_INTERRUPTED: Final = "interrupted: the request ended before all nodes had answered"


@dataclass(frozen=True, slots=True)
class Reached:
    """How many nsqds have what was to change, as far as they say; errors of single nodes."""

    nodes: int
    warnings: list[str]


class Operations:
    """The actions. What each returns are the errors of single nodes."""

    def __init__(
        self,
        cluster: Cluster,
        user: Callable[[], str],
        observers: Sequence[Callable[[UserAction], None]],
    ) -> None:
        """``user`` gives the name of the sender of the request; "" if it is not known."""
        self._cluster = cluster
        self._user = user
        self._observers = observers

    async def create(self, topic: str, channel: str = "") -> list[str]:
        """Create a topic and, if it is named, a channel. The names must be valid.

        Without nsqlookupds nothing happens.
        """
        warnings = list[str]()
        actions = ["create_topic", "create_channel"] if channel else ["create_topic"]
        with self._observed(actions, warnings, topic=topic, channel=channel):
            await self._create(topic, channel, warnings)
        return warnings

    async def delete(
        self, topic: str, channel: str = "", known: Collection[str] = (), *, if_there: bool = False
    ) -> list[str]:
        """Delete a topic, or a channel of it.

        Args:
            topic: its name.
            channel: the name of a channel of it; "": the topic.
            known: nodes that had the topic lately. They are asked too, whatever nsqlookupds
                say: after its restart an nsqlookupd knows only some of the nodes.
            if_there: a node without the topic or channel is no error. In the original it is one.

        Raises:
            AllFailed: the nodes of the topic can't be known; nothing was done.
        """
        registered, others, warnings = await self._nodes_of(topic, known)
        action = "delete_channel" if channel else "delete_topic"
        with self._observed([action], warnings, topic=topic, channel=channel):
            lookupds = self._cluster.lookupd_addresses
            steps = deletion_steps(lookupds, registered, topic, channel)
            await self._take([replace(step, if_there=if_there) for step in steps], warnings)
            await self._take([replace(steps[-1], addresses=others, if_there=True)], warnings)
        return warnings

    async def apply(
        self,
        verb: Verb,
        topic: str,
        channel: str = "",
        known: Collection[str] = (),
        *,
        if_there: bool = False,
    ) -> Reached:
        """Pause, unpause or empty a topic or channel on every nsqd that has the topic.

        Observers learn of a failure, too. Arguments and errors are those of `delete`.
        """
        action = f"{verb}_channel" if channel else f"{verb}_topic"
        try:
            registered, others, warnings = await self._nodes_of(topic, known)
        except AllFailed as failure:
            self._notify_observers(action, (), topic=topic, channel=channel, error=str(failure))
            raise
        with self._observed([action], warnings, topic=topic, channel=channel):
            (step,) = change_steps(verb, registered, topic, channel)
            having = await self._take([replace(step, if_there=if_there)], warnings)
            having += await self._take([replace(step, addresses=others, if_there=True)], warnings)
        return Reached(having, warnings)

    async def tombstone(self, node: str, topic: str) -> list[str]:
        """Hide a node (host:port of HTTP) from the lookups of a topic; delete the topic there.

        Raises:
            AllFailed: the node does not answer.
        """
        warnings = list[str]()
        with self._observed(["tombstone_topic_producer"], warnings, topic=topic, node=node):
            *hide, delete = tombstone_steps(self._cluster.lookupd_addresses, [node], topic)
            await self._take(hide, warnings)
            try:
                await self._cluster.info(node)
            except UpstreamError as error:
                raise AllFailed("nsqd", [error]) from error
            await self._take([delete], warnings)
        return warnings

    def note_forgotten(self, node: str) -> None:
        """Tell the observers that the sender of the request had a dead node forgotten."""
        self._notify_observers("forget_node", (), node=node)

    async def _create(self, topic: str, channel: str, warnings: list[str]) -> None:
        if self._cluster.is_direct:
            return
        steps = creation_steps(self._cluster.lookupd_addresses, topic, channel)
        await self._take(steps, warnings)
        if not channel:
            return
        try:
            result = await self._cluster.producers(topic, late_s=math.inf)
        except AllFailed as failure:
            warnings += map(str, failure.errors)
            return
        warnings += result.warnings
        nodes = [producer.node for producer in result.value]
        await self._take([replace(steps[-1], addresses=nodes)], warnings)

    async def _nodes_of(
        self, topic: str, known: Collection[str]
    ) -> tuple[list[str], list[str], list[str]]:
        """Nodes that nsqlookupds name, the other ``known`` ones, and errors of nsqlookupds."""
        try:
            result = await self._cluster.producers(topic, late_s=math.inf)
        except AllFailed as failure:
            if not known:
                raise
            return [], list(known), [str(each) for each in failure.errors if each.status != 404]
        registered = [producer.node for producer in result.value]
        others = [node for node in known if node not in registered]
        return registered, others, list(result.warnings)

    async def _take(self, steps: Iterable[Step], warnings: list[str]) -> int:
        """POST to one address after the other; add errors to ``warnings``.

        Returns the number of nodes that did not say that there is nothing to change.
        """
        having = 0
        for step in steps:
            for address in step.addresses:
                try:
                    await self._cluster.upstream.post(url_of(address, step.path, **step.query))
                    having += 1
                except UpstreamError as error:
                    if not (step.if_there and error.status == 404):
                        having += 1
                        warnings.append(NodeWarning(error))
        return having

    @contextmanager
    def _observed(
        self,
        actions: Iterable[str],
        warnings: list[str],
        *,
        topic: str,
        channel: str = "",
        node: str = "",
    ) -> Iterator[None]:
        """Tell the observers of what the block did. If it is cancelled, some nodes did it."""
        try:
            yield
        except Exception:
            raise
        except BaseException:  # trio.Cancelled, alone or in a group
            warnings.append(_INTERRUPTED)
            self._notify_all(actions, warnings, topic, channel, node)
            raise
        self._notify_all(actions, warnings, topic, channel, node)

    def _notify_all(
        self, actions: Iterable[str], warnings: Sequence[str], topic: str, channel: str, node: str
    ) -> None:
        for action in actions:
            # A topic that is created with a channel is told of by itself.
            named = "" if action == "create_topic" else channel
            self._notify_observers(action, warnings, topic=topic, channel=named, node=node)

    def _notify_observers(
        self,
        action: str,
        warnings: Sequence[str],
        *,
        topic: str = "",
        channel: str = "",
        node: str = "",
        error: str = "",
    ) -> None:
        """Tell the observers that the sender of the request did ``action``."""
        user_action = UserAction(
            action=action,
            topic=topic,
            channel=channel,
            node=node,
            time_s=time.time(),
            user=self._user(),
            remote_ip=_remote_address(),
            user_agent=request.headers.get("User-Agent", ""),
            url=_request_url(),
            warnings=tuple(warnings),
            error=error,
        )
        for observer in self._observers:
            observer(user_action)


def _request_url() -> str:
    scheme = request.scope.get("scheme", "http")
    if request.headers.get("X-Scheme", "") == "https":
        scheme = "https"
    path = bytes(request.scope.get("raw_path") or request.path.encode()).decode("latin-1")
    if query := request.query_string.decode("latin-1"):
        path += f"?{query}"
    return f"{scheme}://{_request_host()}{path}"


def _remote_address() -> str:
    """Where the request came from: ``host:port``, ``@`` for a unix socket."""
    client = request.scope.get("client")
    if client is None or not client[0]:
        return "@"
    return format_address(client[0], client[1])


def _request_host() -> str:
    """The host that the request names."""
    return request.headers.get(":authority", "")
