"""/channel/create with ``from``, and /channel/seek: where a channel of a log begins.

The original has no such parameters, and no /channel/seek.
"""

from __future__ import annotations

import logging
from typing import Final

from quart import Response

from trionsq.broker.channel import Channel
from trionsq.broker.seeks import SeekFailed, begin_channel, cursor_of, seek_channel
from trionsq.broker.topic import Topic
from trionsq.http.admin import Administration
from trionsq.storage.log.seeking import LogPosition, WantedPosition, parse_position, rfc3339
from trionsq.web.protocol import HttpError
from trionsq.web.request import query
from trionsq.web.responses import json_document
from trionsq.wire.names import is_ephemeral

__all__ = ["TOPIC_HAS_NO_LOG", "Seeking", "position_argument"]

log = logging.getLogger("trionsq")

_POSITIONS: Final = "beginning, end, a time such as 2026-01-31T12:00:00Z, or a sequence"
TOPIC_HAS_NO_LOG: Final = "TOPIC_HAS_NO_LOG: the default engine keeps no message that was finished"
_EPHEMERAL: Final = "EPHEMERAL_CHANNEL_HAS_NO_POSITION: its messages are only in memory"


class Seeking:
    """The endpoints."""

    def __init__(self, admin: Administration) -> None:
        self._admin = admin

    async def create_channel(self) -> Response:
        """POST /channel/create: the topic must exist; ``from`` says where the channel begins."""
        topic, name = self._admin.topic_and_channel_name()
        wanted = position_argument(b"from")
        if wanted is None:
            return await self._admin.create_channel()
        if topic.has_log and is_ephemeral(name):
            raise HttpError(400, _EPHEMERAL)

        def find() -> Topic:
            topic, name = self._admin.topic_and_channel_name()
            if not topic.has_log:
                raise HttpError(400, TOPIC_HAS_NO_LOG)
            if name in topic.channels:
                raise HttpError(409, "CHANNEL_EXISTS: /channel/seek moves it")
            return topic

        try:
            position = await begin_channel(find, name, wanted)
        except SeekFailed as error:
            raise HttpError(500, f"NOT_READ: {error}") from error
        return await self._answer(topic.name, name, position)

    async def seek_channel(self) -> Response:
        """POST /channel/seek: forget what the channel has, and go on at the position ``to``."""
        wanted = position_argument(b"to")
        channel = self._admin.existing_channel()
        if wanted is None:
            raise HttpError(400, "MISSING_ARG_TO")

        def find() -> Channel:
            topic, _ = self._admin.topic_and_channel_name()
            channel = self._admin.existing_channel()
            if not topic.has_log:
                raise HttpError(400, TOPIC_HAS_NO_LOG)
            if cursor_of(channel) is None:
                raise HttpError(400, _EPHEMERAL)
            return channel

        try:
            position = await seek_channel(find, wanted)
        except SeekFailed as error:
            raise HttpError(500, f"NOT_READ: {error}") from error
        return await self._answer(channel.topic.name, channel.name, position)

    async def _answer(self, topic: str, name: str, position: LogPosition) -> Response:
        """Respond when the position is durable."""
        sequence, time_ns = position.sequence, position.time_ns
        time = None if time_ns is None else rfc3339(time_ns)
        log.info("TOPIC(%s): channel(%s) begins at %d, of %s", topic, name, sequence, time or "now")
        await self._admin.durable()
        return json_document({"sequence": sequence, "time": time})


def position_argument(name: bytes) -> WantedPosition | None:
    """Return a parameter that is a position; None if it lacks.

    Raises:
        HttpError: INVALID_ARG_ and its name.
    """
    value = query().get(name)
    if value is None:
        return None
    try:
        return parse_position(value.decode())
    except ValueError:  # also of the encoding
        text = f"INVALID_ARG_{name.decode().upper()}: not {_POSITIONS}"
        raise HttpError(400, text) from None
