"""/channel/finish and /channel/requeue: an operator ends the flight of one message.

The original has no such endpoints. For the client it is as if the message had timed out: its own
FIN, REQ or TOUCH fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.core.subscription import Subscription
from trionsq.http.admin import Administration
from trionsq.web.protocol import HttpError
from trionsq.web.request import query
from trionsq.web.responses import empty

__all__ = ["InFlightEndpoints"]

log = logging.getLogger("trionsq")

_ID_BYTES: Final = 16


class InFlightEndpoints:
    """The endpoints."""

    def __init__(self, broker: Broker, admin: Administration) -> None:
        self._clock = broker.clock
        self._admin = admin

    async def finish(self) -> Response:
        """POST /channel/finish: the message ``id`` is done with, as by FIN."""
        channel, id_ = self._arguments()
        now_s, core = self._clock.now_s(), channel.core

        def finish(holder: Subscription) -> bool:
            if not core.in_flight.withhold(holder, id_):
                return False
            core.finish(holder, [id_], now_s)
            return True

        self._end(channel, id_, finish)
        log.info("CHANNEL(%s): finished %s by HTTP", channel.name, id_.decode())
        return empty()

    async def requeue(self) -> Response:
        """POST /channel/requeue: the message ``id`` returns to the queue at once."""
        channel, id_ = self._arguments()
        now_s, now_ns = self._clock.now_s(), self._clock.now_ns()
        self._end(channel, id_, lambda holder: channel.core.requeue(holder, id_, 0, now_s, now_ns))
        return empty()

    def _arguments(self) -> tuple[Channel, bytes]:
        channel, id_ = self._admin.existing_channel(), query().get(b"id", b"")
        if len(id_) != _ID_BYTES or not id_.isalnum():
            raise HttpError(400, "INVALID_ARG_ID")
        return channel, id_

    def _end(self, channel: Channel, id_: bytes, end: Callable[[Subscription], bool]) -> None:
        for client in channel.clients.walk():
            if id_ in client.consumer.in_flight and end(client.consumer):
                return
        raise HttpError(404, "MESSAGE_NOT_IN_FLIGHT")
