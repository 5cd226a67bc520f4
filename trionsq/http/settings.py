"""/topic/settings: where a topic keeps its messages, how safely and how long; /topic/note_damage.

The original has no such endpoints, and its /stats has no place for what they say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Final, TypedDict

import trio
from quart import Response

from trionsq import durations
from trionsq.broker.broker import Broker
from trionsq.broker.logs import durability_of, log_of
from trionsq.broker.seeks import find_ends
from trionsq.broker.topic import Topic
from trionsq.http.admin import Administration
from trionsq.http.policies import settings_document
from trionsq.storage.log.seeking import LogPosition, rfc3339
from trionsq.web.protocol import HttpError, Query, json_bytes, valid_topic_name
from trionsq.web.request import query
from trionsq.web.responses import Pieces, empty, json_document, json_pieces

__all__ = ["Settings"]

log = logging.getLogger("trionsq")

_DURABILITIES: Final = ("interval", "always")
_MAX_DAMAGED: Final = 100
_MAX_DIGITS: Final = 18
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
            return await self._one(self._admin.topic_named(valid_topic_name(values)))
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
        """POST /topic/settings: change durability and retention of a topic with a log."""
        values = query()
        topic = self._admin.topic_named(valid_topic_name(values))
        has_retention = b"retain" in values or b"retain_bytes" in values
        durability = values.get(b"durability", b"").decode(errors="replace")
        if durability not in _DURABILITIES and (durability or not has_retention):
            raise HttpError(400, "INVALID_DURABILITY")
        retain_ns = _retained(values, b"retain", durations.parse)
        retain_bytes = _retained(values, b"retain_bytes", _bytes)
        topic_log = log_of(topic)
        if topic_log is None:
            raise HttpError(409, "TOPIC_HAS_NO_LOG")
        logs = self._broker.logs
        if has_retention:
            own_ns, own_bytes = logs.retentions.own(topic_log)
            own_ns = retain_ns if b"retain" in values else own_ns
            own_bytes = retain_bytes if b"retain_bytes" in values else own_bytes
            assert logs.node is not None
            numbers = logs.node.logs.keys()
            logs.node.commit([logs.retentions.change(topic_log, (own_ns, own_bytes), numbers)])
            kept = logs.retentions.of(topic_log)
            text = durations.render(kept.time_ns)
            log.info("TOPIC(%s): retention is now %s, %d bytes", topic.name, text, kept.nbytes)
        if durability and topic_log.durability != durability:
            log.info("TOPIC(%s): durability is now %s", topic.name, durability)
            topic_log.durability = durability
            # What was answered before is made safe as well.
            topic_log.sync()
        error = await self._broker.logs.commit(topic.core)
        if error is not None:
            raise HttpError(500, f"NOT_DURABLE: {error}")
        return await self._one(topic)

    async def _one(self, topic: Topic) -> Response:
        settings = settings_document(topic.core.settings)
        document: dict[str, object] = {**_row(topic), "settings": settings}
        topic_log = log_of(topic)
        if topic_log is not None:
            retentions = self._broker.logs.retentions
            kept, holder = retentions.of(topic_log), retentions.holder(topic_log)
            first, last = await find_ends(topic_log)
            document |= {
                "retain": durations.render(kept.time_ns),
                "retain_bytes": kept.nbytes,
                "first": _position(first),
                "last": _position(last),
                "segments": len(topic_log.segments),
                "bytes": topic_log.figures.disk_nbytes(topic_log.segments),
                "oldest_segment": {"held_by": holder.kind, "channel": holder.channel},
            }
        return json_document(document)

    async def note_damage(self) -> Response:
        """POST /topic/note_damage: the damage of a topic's log is no fault any more."""
        topic = self._admin.topic_named(valid_topic_name(query()))
        node = self._broker.logs.node
        count = 0 if node is None else node.damaged.note(topic.name)
        if count:
            log.info("TOPIC(%s): %d damaged places are noted", topic.name, count)
        return empty()


def _retained(values: Query, name: bytes, parse: Callable[[str], int]) -> int | None:
    """Return a parameter of retention; None: the default of the node is to hold."""
    text = values.get(name, b"default").decode(errors="replace")
    if text == "default":
        return None
    try:
        value = parse(text)
    except ValueError:
        value = -1
    if value < 0:
        raise HttpError(400, f"INVALID_{name.decode().upper()}")
    return value


def _bytes(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else -1


def _position(position: LogPosition | None) -> dict[str, object] | None:
    if position is None or position.time_ns is None:
        return None
    return {"sequence": position.sequence, "time": rfc3339(position.time_ns)}


def _row(topic: Topic) -> TopicSettings:
    return {"topic": topic.name, "storage": topic.storage, "durability": durability_of(topic)}
