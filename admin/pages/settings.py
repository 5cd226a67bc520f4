"""What nsqds say at /topic/settings: which engine keeps a topic, how safely, and what its log has.

The original nsqd and older ones of ours have no such path; of them nothing is shown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeVar

import trio
from msgspec import Struct

from admin.cluster.queries import url_of
from admin.cluster.shapes import Count
from admin.pages.format import nbytes
from admin.upstream import Upstream, UpstreamError

__all__ = ["LogPlace", "NodeSettings", "SettingsQueries", "StoredHow"]

_WAIT_S: Final = 1.0
_HELD_BY: Final = {
    "topic": "the topic: no channel has had it",
    "retention": "retention",
    "none": "nothing: it is the only one",
}
_T = TypeVar("_T")
# How long a node without the path is not asked again, and for how many nodes that is known.
_KEPT_S: Final = 300.0
_MAX_NODES: Final = 10_000


class LogPlace(Struct, gc=False):
    """A message of a log; ``time``: when it was published, as RFC 3339 writes it."""

    sequence: Count = 0
    time: str = ""

    @property
    def when(self) -> str:
        """The time for a reader, in seconds."""
        return f"{self.time[:19].replace('T', ' ')} UTC" if self.time else ""


class _OldestSegment(Struct, gc=False):
    held_by: str = ""
    channel: str = ""


class StoredHow(Struct):
    """A topic on one node.

    Attributes:
        topic: its name.
        storage: ``log`` or ``default``.
        durability: ``memory``, ``interval`` or ``always``.
        first: the oldest message of the log.
        last: the newest one.
        segments: files of the log.
        bytes: their size.
        retain: how long finished messages stay.
        retain_bytes: how many bytes of the log stay.
        oldest_segment: what keeps the oldest file.
    """

    topic: str = ""
    storage: str = ""
    durability: str = ""
    first: LogPlace | None = None
    last: LogPlace | None = None
    segments: Count = 0
    bytes: Count = 0
    retain: str = ""
    retain_bytes: Count = 0
    oldest_segment: _OldestSegment | None = None

    @property
    def has_figures(self) -> bool:
        """Whether the node says what the log has."""
        return self.storage == "log" and self.oldest_segment is not None

    @property
    def kept(self) -> str:
        """How long finished messages stay."""
        limits = [self.retain] if self.retain not in ("", "0s") else []
        if self.retain_bytes > 0:
            limits.append(nbytes(self.retain_bytes))
        return " or ".join(limits) or "as long as they are needed"

    @property
    def held_by(self) -> str:
        """What keeps the oldest file."""
        oldest = self.oldest_segment or _OldestSegment()
        if oldest.held_by == "channel":
            return f"channel {oldest.channel}, which has not finished it"
        return _HELD_BY.get(oldest.held_by, oldest.held_by)

    @property
    def label(self) -> str:
        """For a reader: ``log, always``; the default engine has one durability only."""
        return f"{self.storage}, {self.durability}" if self.storage == "log" else self.storage


class _Damaged(Struct):
    text: str = ""


class NodeSettings(Struct):
    """All topics of a node, and the trouble of its logs."""

    disk_full: bool = False
    damaged_count: Count = 0
    damaged: list[_Damaged] | None = None
    topics: list[StoredHow] | None = None

    @property
    def trouble(self) -> list[str]:
        """Sentences on what is wrong."""
        found = [each.text for each in self.damaged or ()]
        if (more := self.damaged_count - len(found)) > 0:
            found.append(f"{more} more places are damaged.")
        if self.disk_full:
            found.insert(0, "The disk is full: topics with a log take no messages.")
        return found

    def labels(self) -> dict[str, str]:
        """The labels of the topics, by name."""
        return {each.topic: each.label for each in self.topics or ()}


class SettingsQueries:
    """Asks nodes for their settings."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        # Nodes without the path, and until when that is valid.
        self._lacking: OrderedDict[str, float] = OrderedDict()

    async def of_topic(self, nodes: Iterable[str], topic: str) -> dict[str, StoredHow]:
        """How nodes keep a topic, of those that say it within a second."""
        found: dict[str, StoredHow] = {}

        async def ask(node: str) -> None:
            stored = await self._get(node, StoredHow, topic=topic)
            if stored is not None and stored.label:
                found[node] = stored

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(ask, node)
        return found

    async def of_node(self, node: str) -> NodeSettings:
        """All that a node says; nothing if it has no such path, or does not answer in time."""
        return await self._get(node, NodeSettings) or NodeSettings()

    async def _get(self, node: str, kind: type[_T], **query: str) -> _T | None:
        if trio.current_time() < self._lacking.get(node, -1.0):
            return None
        url = url_of(node, "/topic/settings", **query)
        try:
            return await self._upstream.get_json(url, kind, timeout_s=_WAIT_S)
        except UpstreamError as error:
            if error.status == 404 and "TOPIC_NOT_FOUND" not in str(error):
                self._lacking[node] = trio.current_time() + _KEPT_S
                if len(self._lacking) > _MAX_NODES:
                    self._lacking.popitem(last=False)
            return None
