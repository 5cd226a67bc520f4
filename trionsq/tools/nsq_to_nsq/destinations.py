"""One nsqd to publish at: many messages under way over one connection.

Two tasks: one sends, the other awaits the confirmations, which come in the order of sending. So
a destination that can't be reached, or is slow, holds up no other one. What waits here is bounded
by the consumers' max-in-flight.

Spec: tools, nsq_to_nsq.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import trio

from trionsq.client import Batch, ClientError, Config, Producer, ProtocolError
from trionsq.client.waiting import Reply

__all__ = ["Destination", "Outcome", "Parcel"]

log = logging.getLogger("trionsq.tools")


@dataclass(slots=True)
class Parcel:
    """Messages of one batch for one destination.

    Attributes:
        topic: to publish to.
        bodies: what to publish.
        batch: where they came from.
        places: of each one in the batch; None: the parcel is the whole batch.
    """

    topic: str
    bodies: list[bytes]
    batch: Batch
    places: list[int] | None

    def answer(self, confirmed: list[bool]) -> None:
        """FIN those that were confirmed, REQ the others with the default delay and backoff."""
        if self.places is None and all(confirmed):
            self.batch.finish()
            return
        places = range(len(self.bodies)) if self.places is None else self.places
        for place, is_confirmed in zip(places, confirmed, strict=True):
            message = self.batch[place]
            if is_confirmed:
                message.finish()
            else:
                message.requeue()


Outcome: TypeAlias = Callable[[str, int, bool, float], None]
"""Called with the address, how many were sent, whether all were confirmed, and seconds it took."""

_Sent: TypeAlias = tuple[Parcel, list[Reply[bytes]], float]


class Destination:
    """An nsqd to publish at. A parcel's messages are answered once all of it is decided."""

    def __init__(self, address: str, config: Config, outcome: Outcome) -> None:
        self.address = address
        self._config = config
        self._outcome = outcome
        self._to_send, self._parcels = trio.open_memory_channel[Parcel](math.inf)
        self._to_confirm, self._sent = trio.open_memory_channel[_Sent](math.inf)

    def __repr__(self) -> str:
        waiting = self._parcels.statistics().current_buffer_used
        return f"<Destination {self.address} {waiting} parcels wait>"

    def put(self, parcel: Parcel) -> None:
        """Publish these, soon."""
        self._to_send.send_nowait(parcel)

    async def run(self) -> None:
        """Publish until cancelled."""
        async with (
            Producer(self.address, config=self._config) as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._confirm)
            async for parcel in self._parcels:
                await self._send(producer, parcel)

    async def _send(self, producer: Producer, parcel: Parcel) -> None:
        begun_s = trio.current_time()
        replies: list[Reply[bytes]] = []
        try:
            for body in parcel.bodies:
                # Those before an error count too.
                replies.append(await producer.begin_publish(parcel.topic, body))  # noqa: PERF401
        except (ClientError, ValueError) as error:
            log.error("%s: failed to publish - %s", self.address, error)
        self._to_confirm.send_nowait((parcel, replies, begun_s))

    async def _confirm(self) -> None:
        async for parcel, replies, begun_s in self._sent:
            count = len(parcel.bodies)
            confirmed = [False] * count
            failure: Exception | None = None
            for index, reply in enumerate(replies):
                try:
                    await reply.wait()
                    confirmed[index] = True
                except (ClientError, ProtocolError) as error:
                    # The first tells why the connection is lost, and with it the others.
                    failure = failure or error
            if failure is not None:
                log.error("%s: failed to publish - %s", self.address, failure)
            parcel.answer(confirmed)
            self._outcome(self.address, count, all(confirmed), trio.current_time() - begun_s)
