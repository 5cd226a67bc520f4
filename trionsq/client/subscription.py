"""One connection of a consumer: its share of max_in_flight and its unanswered batches.

Spec: client, sections 4, 5 and 7.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

import trio

from trionsq.client.backoff import Outcome
from trionsq.client.connection import Connection
from trionsq.client.errors import ClientError, ProtocolError
from trionsq.client.message import Batch
from trionsq.client.rdy import Share
from trionsq.wire import commands
from trionsq.wire.client import Columns, ErrorFrame

__all__ = ["MSG_TIMEOUT_S", "Owner", "Subscription"]

log = logging.getLogger("trionsq.client")

MSG_TIMEOUT_S: Final = 60.0
"""nsqd's default."""

_FAREWELL_S: Final = 1.0
# nsqd may have had a message in hand when it wrote CLOSE_WAIT.
_LATE_S: Final = 0.02


class Owner(Protocol):
    """The consumer, as its subscriptions know it."""

    @property
    def max_attempts(self) -> int: ...

    def requeue_delay_s(self, attempts: int) -> float: ...
    def take(self, batch: Batch) -> None:
        """Queue a batch for the program."""

    def take_given_up(self, batch: Batch) -> None:
        """Queue messages that had more than max_attempts."""

    def answered(self, count: int, outcome: Outcome | None, has_made_room: bool) -> None:
        """Messages were answered."""


class Subscription:
    """A connection after SUB. It is the `Source` of its batches.

    Attributes:
        share: of max_in_flight.
        lowered_s: when RDY was lowered last.
        batches: those with unanswered messages.
        refused: answers that nsqd did not take: too late, most often.
        is_leaving: messages that still come are given back at once.
    """

    def __init__(self, owner: Owner, connection: Connection) -> None:
        self.connection = connection
        self.address = connection.address
        self.share = Share(connection.max_rdy_count)
        self.lowered_s = 0.0
        self.batches: dict[Batch, None] = {}
        self.refused = 0
        self.is_leaving = False
        self._owner = owner
        self._emptied = trio.Event()
        self._is_closing = False
        connection.on_messages = self._receive
        connection.on_refused = self._refuse

    def __repr__(self) -> str:
        share = self.share
        return f"<Subscription {self.address} rdy={share.rdy} in_flight={share.in_flight}>"

    # From nsqd

    def _receive(self, columns: Columns) -> None:
        share = self.share
        share.in_flight += len(columns.ids)
        share.message_s = trio.current_time()
        max_attempts = self._owner.max_attempts
        if max_attempts and max(columns.attempts) > max_attempts:
            columns, too_often = _part(columns, max_attempts)
            given_up = Batch(self, too_often)
            self.batches[given_up] = None
            if self.is_leaving:
                given_up.requeue(0, backoff=False)
            else:
                self._owner.take_given_up(given_up)
            if not columns.ids:
                return
        batch = Batch(self, columns)
        self.batches[batch] = None
        if self.is_leaving:
            batch.requeue(0, backoff=False)
        else:
            self._owner.take(batch)

    def _refuse(self, frame: ErrorFrame) -> None:
        self.refused += 1
        log.warning("%s: %s", self.address, frame.as_error())

    @property
    def msg_timeout_s(self) -> float:
        """As nsqd has granted it to this connection, in seconds."""
        granted_ms = self.connection.features.get("msg_timeout")
        if isinstance(granted_ms, int) and granted_ms > 0:
            return granted_ms / 1000
        return MSG_TIMEOUT_S

    # To nsqd

    @property
    def is_open(self) -> bool:
        """Whether answers can still arrive."""
        return self.connection.is_open

    def tell(self, rdy: int) -> None:
        """Send this RDY if it is another one than before."""
        share = self.share
        if rdy == share.rdy:
            return
        now_s = trio.current_time()
        if rdy < share.rdy:
            self.lowered_s = now_s
        share.tell(rdy, now_s)
        self.connection.put(commands.ready(rdy))

    def answer(self, batch: Batch, commands: bytes, count: int, outcome: Outcome | None) -> bool:
        """See `trionsq.client.message.Source`."""
        if not batch.open_count:
            self.batches.pop(batch, None)
        if not self.connection.is_open:
            return False
        share = self.share
        has_made_room = share.in_flight > share.ceiling
        share.in_flight -= count
        self.connection.put(commands)
        if not share.in_flight:
            self._emptied.set()
        self._owner.answered(count, outcome, has_made_room)
        return True

    def touch(self, commands: bytes) -> bool:
        """See `trionsq.client.message.Source`."""
        if self.connection.is_open:
            self.connection.put(commands)
        return self.connection.is_open

    def requeue_delay_s(self, attempts: int) -> float:
        """See `trionsq.client.message.Source`."""
        return self._owner.requeue_delay_s(attempts)

    async def leave(self) -> None:
        """Give back all that has no answer, and what still comes. A turn for each batch."""
        self.is_leaving = True
        for batch in list(self.batches):
            batch.requeue(0, backoff=False)
            await trio.lowlevel.checkpoint()

    async def close(self, patience_s: float) -> None:
        """CLS, wait until all is answered, close. After ``patience_s`` seconds close anyway.

        nsqd's CLOSE_WAIT says that it has read every answer that was sent before; so does its end.
        """
        with trio.move_on_after(patience_s):
            if self._is_closing:
                await self.connection.ended.wait()
            else:
                self._is_closing = True
                await self._close()
        self.connection.abort()

    async def _close(self) -> None:
        try:
            await self.connection.request(commands.close()).wait()
        except (ClientError, ProtocolError) as error:
            log.warning("%s: while closing: %s", self.address, error)
            return
        while True:
            await self._all_answered()
            with trio.move_on_after(_LATE_S):
                await self.connection.ended.wait()
            if not self.share.in_flight or not self.connection.is_open:
                break
        self.connection.end()
        with trio.move_on_after(_FAREWELL_S):
            await self.connection.ended.wait()

    async def _all_answered(self) -> None:
        while self.share.in_flight and self.connection.is_open:
            self._emptied = trio.Event()
            async with trio.open_nursery() as nursery:
                for event in (self._emptied, self.connection.ended):
                    nursery.start_soon(_cancel_after, event, nursery.cancel_scope)


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _part(columns: Columns, max_attempts: int) -> tuple[Columns, Columns]:
    """Those with at most ``max_attempts``, and the others."""
    rows = list(zip(*columns, strict=True))
    return (
        _columns([row for row in rows if row[1] <= max_attempts]),
        _columns([row for row in rows if row[1] > max_attempts]),
    )


def _columns(rows: list[tuple[int, int, bytes, bytes]]) -> Columns:
    return Columns(
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [row[3] for row in rows],
    )
