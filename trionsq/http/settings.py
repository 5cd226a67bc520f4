"""/topic/settings: where a topic keeps its messages, and how safe an OK is; /topic/note_damage.

The original has no such endpoints, and its /stats has no place for what they say.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Final, TypedDict

import trio
from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.logs import durability_of, log_of
from trionsq.broker.topic import Topic
from trionsq.http.admin import Administration
from trionsq.web.protocol import HttpError, json_bytes, valid_topic_name
from trionsq.web.request import query
from trionsq.web.responses import Pieces, empty, json_document, json_pieces

__all__ = ["Settings"]

log = logging.getLogger("trionsq")

_DURABILITIES: Final = ("interval", "always")
_MAX_DAMAGED: Final = 100
# Topics that are read before other tasks run.
_TURN_TOPICS: Final = 500


class TopicSettings(TypedDict):
    """What is set of a topic."""

    topic: str
    storage: str
    durability: str


class Settings:
    """The endpoints."""

    def __init__(self, broker: Broker, admin: Administration) -> None:
        self._broker = broker
        self._admin = admin

    async def get(self) -> Response:
        """GET /topic/settings: of one topic; without a name of all, with the logs' trouble."""
        values = query()
        if b"topic" in values:
            return json_document(_row(self._admin.topic_named(valid_topic_name(values))))
        pieces = Pieces()
        begin, key, end = json_bytes(self._node_document()).partition(b'"topics":[')
        pieces.add(begin + key)
        for place, topic in enumerate(list(self._broker.topics.values())):
            part = json_bytes(_row(topic))
            pieces.add(b"," + part if place else part)
            if place % _TURN_TOPICS == _TURN_TOPICS - 1:
                await trio.lowlevel.checkpoint()
        pieces.add(end)
        return json_pieces(pieces.finish())

    def _node_document(self) -> dict[str, object]:
        options, node = self._broker.options, self._broker.logs.node
        damaged = [] if node is None else list(islice(node.damaged, _MAX_DAMAGED))
        return {
            # Of new topics.
            "storage": options.storage,
            "durability": options.durability,
            "disk_full": node is not None and node.is_full,
            "damaged_count": 0 if node is None else len(node.damaged),
            "damaged": [
                {"topic": one.topic, "file": one.file, "offset": one.offset, "text": one.text}
                for one in damaged
            ],
            "topics": [],
        }

    async def post(self) -> Response:
        """POST /topic/settings: change the durability of a topic with a log."""
        values = query()
        topic = self._admin.topic_named(valid_topic_name(values))
        durability = values.get(b"durability", b"").decode(errors="replace")
        if durability not in _DURABILITIES:
            raise HttpError(400, "INVALID_DURABILITY")
        topic_log = log_of(topic)
        if topic_log is None:
            raise HttpError(409, "TOPIC_HAS_NO_LOG")
        if topic_log.durability != durability:
            log.info("TOPIC(%s): durability is now %s", topic.name, durability)
            topic_log.durability = durability
            # What was answered before is made safe as well.
            topic_log.sync()
        error = await self._broker.logs.commit(topic.core)
        if error is not None:
            raise HttpError(500, f"NOT_DURABLE: {error}")
        return json_document(_row(topic))

    async def note_damage(self) -> Response:
        """POST /topic/note_damage: the damage of a topic's log is no fault any more."""
        topic = self._admin.topic_named(valid_topic_name(query()))
        node = self._broker.logs.node
        count = 0 if node is None else node.damaged.note(topic.name)
        if count:
            log.info("TOPIC(%s): %d damaged places are noted", topic.name, count)
        return empty()


def _row(topic: Topic) -> TopicSettings:
    return {"topic": topic.name, "storage": topic.storage, "durability": durability_of(topic)}
