"""/pub and /mpub through the framework. Spec: nsqd-http, sections 3 and 4."""

from __future__ import annotations

from quart import Response, request

from trionsq.broker.broker import Broker
from trionsq.broker.topic import PublishRefused, Topic
from trionsq.http.messages import LineSplitter
from trionsq.http.rules import PublishRules, in_turns
from trionsq.web.answers import text
from trionsq.web.body import next_piece, read_body
from trionsq.web.errors import HttpError
from trionsq.web.query import Query, query
from trionsq.wire.bodies import Bodies, ListBodies

__all__ = ["Publishing"]


class Publishing:
    """The endpoints that take messages."""

    def __init__(self, broker: Broker) -> None:
        self._rules = PublishRules(broker)

    async def pub(self) -> Response:
        """POST /pub: the body is one message. The order of the checks is part of the API."""
        too_big = HttpError(413, "MSG_TOO_BIG")
        if (request.content_length or 0) > self._rules.msg_size_max:
            raise too_big
        body = await read_body(self._rules.msg_size_max)
        if body is None:
            raise too_big
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        values = query()
        topic = self._rules.topic(values)
        defer_ms = self._rules.defer_ms(values)
        await self._publish(topic, "PUB", ListBodies([body]), defer_ms)
        return text("OK")

    async def mpub(self) -> Response:
        """POST /mpub: a message on each line, or counted ones. All are queued, or none."""
        if (request.content_length or 0) > self._rules.body_size_max:
            raise HttpError(413, "BODY_TOO_BIG")
        values = query()
        topic = self._rules.topic(values)
        bodies = await (self._counted(values) if self._rules.is_binary(values) else self._lines())
        if bodies is not None:
            await self._publish(topic, "MPUB", bodies)
        return text("OK")

    async def _lines(self) -> Bodies | None:
        splitter = LineSplitter(self._rules.msg_size_max, self._rules.body_size_max)
        try:
            while piece := await next_piece():
                splitter.feed(piece)
        except OverflowError:
            raise HttpError(413, "BODY_TOO_BIG") from None
        return splitter.finish()

    async def _counted(self, values: Query) -> Bodies | None:
        body = bytearray()
        limit = self._rules.body_size_max
        # What is over the limit could only be bytes after the last message, or one cut short.
        while len(body) < limit and (piece := await next_piece()):
            body += piece
        return await in_turns(self._rules.messages(values, bytes(body[:limit])))

    async def _publish(self, topic: Topic, command: str, bodies: Bodies, defer_ms: int = 0) -> None:
        if (prepared := topic.claim_wait()) is not None:
            await prepared.wait()
        await topic.wait_for_room(bodies.count)
        try:
            topic.publish(bodies, defer_ms)
        except PublishRefused as refused:
            raise self._rules.refusal(topic, command, refused) from refused
