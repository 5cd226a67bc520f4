"""The forms: create, pause, unpause; empty, delete and tombstone after a typed confirmation.

Each form is answered by a redirect to the page that shows the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from quart import Response

from admin.access.cross_site import form
from admin.cluster.queries import AllFailed
from admin.cluster.shapes import ChannelStats, NodeStats, TopicStats
from admin.cluster.steps import Verb
from admin.pages.shared_queries import nodes_of_topic
from admin.pages.site import Site, arguments
from admin.pages.wording import plural
from admin.upstream import UpstreamError
from trionsq.web.app import Endpoint
from trionsq.web.protocol import HttpError
from trionsq.wire.names import is_valid_name

__all__ = ["FormHandlers", "Stake", "stake"]

_TEXTS: Final[Mapping[tuple[str, bool], tuple[str, str, str]]] = {
    # By verb and whether it is a channel's: the button, the effect, the fate of the messages.
    ("empty", False): (
        "Empty queue",
        "All messages waiting at the topic are discarded on every node. "
        "Messages at its channels stay.",
        "will be lost.",
    ),
    ("empty", True): (
        "Empty queue",
        "All waiting, in-flight and deferred messages are discarded on every node.",
        "will be lost.",
    ),
    ("delete", False): (
        "Delete topic",
        "The topic and all of its channels are deleted on every node, with their messages. "
        "Clients are disconnected. Publishing to the topic creates it again.",
        "will be lost.",
    ),
    ("delete", True): (
        "Delete channel",
        "The channel is deleted on every node, with its messages. Its clients are disconnected.",
        "will be lost.",
    ),
    ("tombstone", False): (
        "Tombstone",
        "nsqlookupds hide this node from consumers of the topic, and the topic with all of its "
        "channels is deleted on the node. Stop publishing there first.",
        "on this node will be lost.",
    ),
}


@dataclass(slots=True)
class Stake:
    """Messages that will be lost; ``parts`` says where; ``failed`` has the errors of nodes."""

    messages: int | None = None
    parts: str = ""
    failed: list[str] = field(default_factory=list)


def stake(
    answers: Mapping[str, NodeStats | UpstreamError], verb: str, topic: str, channel: str
) -> Stake:
    """The messages that ``verb`` would discard, on the nodes that answered. Pure."""
    failed = [str(answer) for answer in answers.values() if isinstance(answer, UpstreamError)]
    statistics = [answer for answer in answers.values() if isinstance(answer, NodeStats)]
    if not statistics:
        return Stake(None, "", failed)
    topics = [t for stats in statistics for t in stats.topics or () if t.topic_name == topic]
    channels = [
        c for t in topics for c in t.channels or () if not channel or c.channel_name == channel
    ]
    at_topic = 0 if channel else sum(t.depth for t in topics)
    if verb == "empty" and not channel:
        return Stake(at_topic, "", failed)
    return Stake(at_topic + _held(channels), _parts(topics, channels, channel), failed)


def _held(channels: Iterable[ChannelStats]) -> int:
    return sum(c.depth + c.in_flight_count + c.deferred_count for c in channels)


def _parts(topics: Iterable[TopicStats], channels: Iterable[ChannelStats], channel: str) -> str:
    channels = list(channels)
    waiting = sum(c.depth for c in channels)
    in_flight = sum(c.in_flight_count for c in channels)
    deferred = sum(c.deferred_count for c in channels)
    parts = [f"{waiting:,} waiting", f"{in_flight:,} in flight", f"{deferred:,} deferred"]
    if channel:
        return ", ".join(parts)
    at_topic = sum(t.depth for t in topics)
    names = len({c.channel_name for c in channels})
    return f"{at_topic:,} at the topic; at {plural(names, 'channel')} {', '.join(parts)}"


class FormHandlers:
    """GET /confirm/:verb and POST /do/:verb."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._cluster = site.dashboard.cluster
        self._operations = site.dashboard.operations

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [
            ("GET", "/confirm/<verb>", self.confirm),
            ("POST", "/do/create", self.create),
            ("POST", "/do/pause", self.pause),
            ("POST", "/do/unpause", self.unpause),
            ("POST", "/do/empty", self.empty),
            ("POST", "/do/delete", self.delete),
            ("POST", "/do/tombstone", self.tombstone),
        ]

    async def confirm(self, verb: str) -> Response:
        """GET /confirm/:verb: the number of messages at stake, and a field for the name."""
        query = arguments()
        topic, channel, node = (query.get(name, "") for name in ("topic", "channel", "node"))
        texts = _TEXTS.get((verb, bool(channel)))
        if texts is None or not topic or (verb == "tombstone") != bool(node):
            raise HttpError(404, "NOT_FOUND")
        return await self._confirm_page(verb, topic, channel, node)

    async def _confirm_page(self, verb: str, topic: str, channel: str, node: str) -> Response:
        label, text, lost = _TEXTS[verb, bool(channel)]
        at_stake = await self._stake(verb, topic, channel, node)
        what = f"{channel} of {topic}" if channel else topic
        question = {
            "empty": f"Empty {what}?",
            "delete": f"Delete {what}?",
            "tombstone": f"Tombstone {topic} on {node}?",
        }[verb]
        return self._site.page(
            "confirm.html",
            label,
            "topics",
            verb=verb,
            topic=topic,
            channel=channel,
            node=node,
            name=channel or topic,
            question=question,
            label=label,
            text=text,
            lost=lost,
            stake=at_stake.messages,
            stake_parts=at_stake.parts,
            warnings=at_stake.failed,
            error="",
            back=self._page_of(topic, channel),
        )

    async def _stake(self, verb: str, topic: str, channel: str, node: str) -> Stake:
        known = await nodes_of_topic(self._site.dashboard, topic)
        if known.error:
            return Stake(None, "", [known.error])
        producers = [each for each in known.producers if not node or each.node == node]
        if not producers:
            # A topic that is only registered has no messages.
            return Stake(0 if known.nobody else None, "", known.warnings)
        silent = self._site.dashboard.poller.silent_nodes
        answers = await self._cluster.each_stats(
            producers, topic=topic, channel=channel, silent=silent
        )
        at_stake = stake(answers, verb, topic, channel)
        at_stake.failed = [*known.warnings, *at_stake.failed]
        return at_stake

    async def create(self) -> Response:
        """POST /do/create: fields ``topic`` and maybe ``channel``."""
        fields = await form()
        topic, channel = fields.get("topic", "").strip(), fields.get("channel", "").strip()
        back = self._site.url("lookup", topic=topic[:100], channel=channel[:100])
        for kind, name in (("topic", topic), ("channel", channel)):
            if (name or kind == "topic") and not is_valid_name(name.encode(errors="replace")):
                self._site.dashboard.access.record_action(
                    "create_channel" if channel else "create_topic", topic=topic, channel=channel
                )
                return self._site.done(back, [f"Not a valid {kind} name."], "bad")
        warnings = await self._operations.create(topic, channel)
        what = f"channel {channel} of {topic}" if channel else f"topic {topic}"
        return self._report_result(self._site.url("lookup"), f"Created {what}.", warnings)

    async def pause(self) -> Response:
        """POST /do/pause: fields ``topic`` and maybe ``channel``."""
        return await self._apply("pause", "Paused {}.")

    async def unpause(self) -> Response:
        """POST /do/unpause, as `pause`."""
        return await self._apply("unpause", "Unpaused {}.")

    async def empty(self) -> Response:
        """POST /do/empty, as `pause`; ``typed`` is the name."""
        return await self._apply("empty", "Emptied {}.", typed=True)

    async def delete(self) -> Response:
        """POST /do/delete, as `empty`."""
        topic, channel, typed = await _names()
        path = self._page_of(topic, channel)
        if typed != (channel or topic):
            return self._mistyped(path)
        try:
            warnings = await self._operations.delete(
                topic, channel, self._known(topic), if_there=True
            )
        except AllFailed as failure:
            return self._site.done(path, [f"Nothing was deleted: {failure}"], "bad")
        back = self._site.url("topics", topic) if channel else self._site.url("topics")
        return self._report_result(back, f"Deleted {_named(topic, channel)}.", warnings)

    async def tombstone(self) -> Response:
        """POST /do/tombstone: fields ``topic``, ``node`` and ``typed``, the topic's name."""
        topic, _, typed = await _names()
        node = (await form()).get("node", "")
        path = self._page_of(topic, "")
        if typed != topic:
            return self._mistyped(path)
        try:
            known = {each.node for each in (await self._cluster.nodes()).value}
            if node not in known:
                return self._site.done(path, [f"There is no node {node[:100]}."], "bad")
            warnings = await self._operations.tombstone(node, topic)
        except AllFailed as failure:
            return self._site.done(path, [str(failure)], "bad")
        return self._report_result(path, f"Tombstoned {topic} on {node}.", warnings)

    async def _apply(self, verb: Verb, text: str, *, typed: bool = False) -> Response:
        topic, channel, name = await _names()
        path = self._page_of(topic, channel)
        if typed and name != (channel or topic):
            return self._mistyped(path)
        try:
            known = self._known(topic)
            reached = await self._operations.apply(verb, topic, channel, known, if_there=True)
        except AllFailed as failure:
            return self._site.done(path, [f"Nothing was done: {failure}"], "bad")
        if not reached.nodes:
            lines = ["Nothing was done: no node has the topic or channel.", *reached.warnings]
            return self._site.done(path, lines, "bad")
        return self._report_result(path, text.format(_named(topic, channel)), reached.warnings)

    def _known(self, topic: str) -> list[str]:
        """The nodes that had the topic at the last poll."""
        return [producer.node for producer in self._site.dashboard.poller.producers(topic)]

    def _report_result(self, path: str, text: str, warnings: list[str]) -> Response:
        if not warnings:
            return self._site.done(path, [text])
        return self._site.done(path, [text, "Some nodes failed:", *warnings], "warn")

    def _mistyped(self, path: str) -> Response:
        return self._site.done(path, ["Nothing was done: the typed name does not match."], "bad")

    def _page_of(self, topic: str, channel: str) -> str:
        return self._site.url(*(part for part in ("topics", topic, channel) if part))


def _named(topic: str, channel: str) -> str:
    return f"channel {channel} of {topic}" if channel else f"topic {topic}"


async def _names() -> tuple[str, str, str]:
    """Topic, channel and the typed name. Raises HttpError: no topic."""
    fields = await form()
    topic = fields.get("topic", "")
    if not topic:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    return topic, fields.get("channel", ""), fields.get("typed", "").strip()
