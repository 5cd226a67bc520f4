"""/pub and /mpub. Spec: nsqd-http, sections 3 and 4."""

from __future__ import annotations

import re

from quart import Response, request

from trionsq.broker.broker import Broker
from trionsq.broker.topic import PublishRefused, Topic
from trionsq.durations import MILLISECOND_NS
from trionsq.http.answers import text
from trionsq.http.body import LineSplitter, next_piece, read_body
from trionsq.http.errors import HttpError
from trionsq.http.query import Query, query, valid_topic_name
from trionsq.wire.bodies import Bodies, ListBodies
from trionsq.wire.errors import ProtocolError
from trionsq.wire.mpub import parse_counted

__all__ = ["Publishing"]

# More digits than any delay in range has.
_MILLISECONDS = re.compile(rb"[+-]?[0-9]{1,30}")


class Publishing:
    """The endpoints that take messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._msg_size_max = broker.options.max_msg_size
        self._body_size_max = broker.options.max_body_size

    async def pub(self) -> Response:
        """POST /pub: the body is one message. The order of the checks is part of the API."""
        too_big = HttpError(413, "MSG_TOO_BIG")
        if (request.content_length or 0) > self._msg_size_max:
            raise too_big
        body = await read_body(self._msg_size_max)
        if body is None:
            raise too_big
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        values = query()
        topic = self._topic(values)
        defer_ms = self._defer_ms(values.get(b"defer"))
        await self._publish(topic, ListBodies([body]), defer_ms)
        return text("OK")

    async def mpub(self) -> Response:
        """POST /mpub: a message on each line, or counted ones. All are queued, or none."""
        if (request.content_length or 0) > self._body_size_max:
            raise HttpError(413, "BODY_TOO_BIG")
        values = query()
        topic = self._topic(values)
        # Whatever it is set to, but for these two, asks for binary.
        if values.get(b"binary", b"0") in (b"0", b"false"):
            bodies = await self._lines()
        else:
            bodies = await self._counted()
        if bodies is not None:
            await self._publish(topic, bodies)
        return text("OK")

    def _topic(self, values: Query) -> Topic:
        name = valid_topic_name(values)
        if self._broker.exiting:
            raise HttpError(503, "EXITING")
        return self._broker.topic(name)

    def _defer_ms(self, given: bytes | None) -> int:
        if given is None:
            return 0
        limit_ms = self._broker.options.max_req_timeout_ns // MILLISECOND_NS
        if not _MILLISECONDS.fullmatch(given) or not 0 <= int(given) <= limit_ms:
            raise HttpError(400, "INVALID_DEFER")
        return int(given)

    async def _lines(self) -> Bodies | None:
        splitter = LineSplitter(self._msg_size_max, self._body_size_max)
        try:
            while piece := await next_piece():
                splitter.feed(piece)
        except OverflowError:
            raise HttpError(413, "BODY_TOO_BIG") from None
        lines = splitter.finish()
        return ListBodies(lines) if lines else None

    async def _counted(self) -> Bodies:
        body = bytearray()
        # What is over the limit could only be bytes after the last message, or one cut short.
        while len(body) < self._body_size_max and (piece := await next_piece()):
            body += piece
        try:
            return parse_counted(
                bytes(body[: self._body_size_max]), self._msg_size_max, self._body_size_max
            )
        except ProtocolError as error:
            raise HttpError(413, error.code.removeprefix("E_")) from error

    async def _publish(self, topic: Topic, bodies: Bodies, defer_ms: int = 0) -> None:
        await topic.wait_for_room(bodies.count)
        try:
            topic.publish(bodies, defer_ms)
        except PublishRefused as refused:
            raise HttpError(503, "EXITING") from refused
