"""POST /channel/deferred/...: a deferred message is cancelled, or due now. Not in the original."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.cancels import CancelError, cancel_deferred, requeue_deferred
from trionsq.broker.channel import Channel
from trionsq.broker.runtime import Clock
from trionsq.http.admin import Administration
from trionsq.web.protocol import HttpError
from trionsq.web.request import query
from trionsq.web.responses import empty

__all__ = ["Cancelling"]

log = logging.getLogger("trionsq")

_ID_BYTES: Final = 16
_MAX_DIGITS: Final = 19


class Cancelling:
    """The endpoints."""

    def __init__(self, broker: Broker, admin: Administration) -> None:
        self._clock = broker.clock
        self._admin = admin

    async def cancel(self) -> Response:
        """POST /channel/deferred/cancel: with the id and the due time that peeking shows."""
        return await self._end_wait(cancel_deferred, "is cancelled")

    async def requeue(self) -> Response:
        """POST /channel/deferred/requeue: the same, to have it delivered now."""
        return await self._end_wait(requeue_deferred, "is due now")

    async def _end_wait(
        self, end: Callable[[Channel, Clock, bytes, int], Awaitable[bool]], what: str
    ) -> Response:
        values = query()
        channel = self._admin.existing_channel()
        id_, due = values.get(b"id", b""), values.get(b"due", b"")
        if len(id_) != _ID_BYTES:
            raise HttpError(400, "INVALID_ARG_ID")
        if not due.isdigit() or len(due) > _MAX_DIGITS:
            raise HttpError(400, "INVALID_ARG_DUE")
        try:
            is_found = await end(channel, self._clock, id_, int(due))
        except CancelError as error:
            raise HttpError(500, f"NOT_READ: {error}") from error
        if not is_found:
            raise HttpError(404, "MESSAGE_NOT_DEFERRED")
        log.info(
            "CHANNEL(%s:%s): the deferred message %s %s",
            channel.topic.name, channel.name, id_.decode(errors="replace"), what,
        )  # fmt: skip
        return empty()
