"""What users do, by the JSON API or by a page: done, then told to the observers.

To be called within a request, after the role was checked. Spec: nsqadmin, sections 3 and 4.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from quart import request

from admin.cluster import actions
from admin.cluster.queries import AllFailed
from admin.upstream import UpstreamError
from trionsq.hostport import format_address

if TYPE_CHECKING:
    from admin.dashboard import Dashboard

__all__ = ["Done", "Operations", "Verb"]

log = logging.getLogger("trionsq")

Verb = Literal["pause", "unpause", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Something that a user did, or tried to.

    Attributes:
        action: such as ``pause_channel``, one of those of spec/nsqadmin, section 4.
        topic, channel, node: to what; "" where there is none.
        time_s: seconds since 1970.
        user: who, as far as known; "" if not.
        remote_ip: host:port of the connection.
        user_agent, url: of the request.
        warnings: what went wrong at single nodes.
        error: why nothing was done; "" if it was.
    """

    action: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    time_s: float
    user: str
    remote_ip: str
    user_agent: str
    url: str
    warnings: tuple[str, ...] = ()
    error: str = ""


class Operations:
    """Each method returns what went wrong at single nodes."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    async def create(self, topic: str, channel: str = "") -> list[str]:
        """Create a topic and, if it is named, a channel. The names must be valid."""
        warnings = await actions.create(self._dashboard.cluster, topic, channel)
        self.tell("create_topic", warnings, topic=topic)
        if channel:
            self.tell("create_channel", warnings, topic=topic, channel=channel)
        return warnings

    async def delete(self, topic: str, channel: str = "", known: Collection[str] = ()) -> list[str]:
        """Delete a topic, or a channel of it; ``known`` nodes had it lately.

        Raises:
            AllFailed: it can't be known who has it.
        """
        warnings = await actions.delete(self._dashboard.cluster, topic, channel, known)
        action = "delete_channel" if channel else "delete_topic"
        self.tell(action, warnings, topic=topic, channel=channel)
        return warnings

    async def apply(
        self, verb: Verb, topic: str, channel: str = "", known: Collection[str] = ()
    ) -> actions.Reached:
        """Pause, unpause or empty; told also if it failed. ``known`` and errors as of `delete`."""
        action = f"{verb}_channel" if channel else f"{verb}_topic"
        try:
            reached = await actions.on_producers(
                self._dashboard.cluster, verb, topic, channel, known
            )
        except AllFailed as failure:
            self.tell(action, (), topic=topic, channel=channel, error=str(failure))
            raise
        self.tell(action, reached.warnings, topic=topic, channel=channel)
        return reached

    async def tombstone(self, node: str, topic: str) -> list[str]:
        """Hide a node of a topic, and delete the topic there.

        Raises:
            AllFailed: the node does not answer.
        """
        try:
            warnings = await actions.tombstone(self._dashboard.cluster, node, topic)
        except UpstreamError as error:
            raise AllFailed("nsqd", [error]) from error
        self.tell("tombstone_topic_producer", warnings, topic=topic, node=node)
        return warnings

    def tell(
        self,
        action: str,
        warnings: list[str] | tuple[str, ...],
        *,
        topic: str = "",
        channel: str = "",
        node: str = "",
        error: str = "",
    ) -> None:
        """Tell the observers that the sender of the request did ``action``."""
        done = Done(
            action=action,
            topic=topic,
            channel=channel,
            node=node,
            time_s=time.time(),
            user=self._dashboard.access.user(),
            remote_ip=remote_address(),
            user_agent=request.headers.get("User-Agent", ""),
            url=self._url(),
            warnings=tuple(warnings),
            error=error,
        )
        for observer in self._dashboard.observers:
            observer(done)

    def _url(self) -> str:
        scheme = request.scope.get("scheme", "http")
        if request.headers.get("X-Scheme", "") == "https":
            scheme = "https"
        path = bytes(request.scope.get("raw_path") or request.path.encode()).decode("latin-1")
        if query := request.query_string.decode("latin-1"):
            path += f"?{query}"
        return f"{scheme}://{given_host()}{path}"


def remote_address() -> str:
    """Where the request came from: ``host:port``, ``@`` for a unix socket."""
    client = request.scope.get("client")
    if client is None or not client[0]:
        return "@"
    return format_address(client[0], client[1])


def given_host() -> str:
    """The host that the request names."""
    return request.headers.get(":authority", "")
