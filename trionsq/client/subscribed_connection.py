"""A consumer's connection to one nsqd: subscribed, and made again when it is lost.

`ReconnectLoop` is the task: connect, subscribe, wait for the end, pause, connect again.
`SubscribedConnection` is one connection between SUB and its end, with its share of max_in_flight
and its unanswered batches.

Spec: client, sections 3 (reconnect), 4, 5 and 7 (stop).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random
from typing import Final, Protocol

import anyio

from trionsq.client.backoff import Outcome
from trionsq.client.config import Config
from trionsq.client.connection import Connection
from trionsq.client.errors import ClientError, ConnectError, ProtocolError, StoppedError
from trionsq.client.flow import SETTLE_S, FlowControl, Share
from trionsq.client.handshake import Dial
from trionsq.client.message import Batch
from trionsq.client.reply import Reply
from trionsq.transports.runtime import Event, checkpoint, current_time, new_event
from trionsq.wire import commands
from trionsq.wire.client import Columns, ErrorFrame, FrameError

__all__ = ["DEFAULT_MSG_TIMEOUT_S", "ConnectionOwner", "ReconnectLoop", "SubscribedConnection"]
__all__ += ["wait_until_connected"]

log = logging.getLogger("trionsq.client")

DEFAULT_MSG_TIMEOUT_S: Final = 60.0
"""nsqd's default --msg-timeout."""

# The first pause before connecting again; it doubles up to lookupd_poll_interval.
_FIRST_PAUSE_S: Final = 1.0
# How long nsqd may take to close its end once all is answered.
_CLOSE_S: Final = 1.0
# nsqd may have had a message in hand when it wrote CLOSE_WAIT.
_LATE_MESSAGE_S: Final = 0.02
# A peer that sends more messages than this is no nsqd, or the program is so slow that nsqd has sent
# each message several times: the connection is given up.
_MAX_TIMES_RDY: Final = 4
_SPARE_MESSAGES: Final = 256


class ConnectionOwner(Protocol):
    """The consumer, as its connections know it."""

    topic: str
    channel: str
    config: Config
    dial: Dial
    random: Random
    flow: FlowControl

    def queue_batch(self, batch: Batch) -> None:
        """Queue a batch for the program."""

    def queue_given_up(self, batch: Batch) -> None:
        """Queue messages that had more than max_attempts."""

    def note_answer(self, count: int, outcome: Outcome | None, has_made_room: bool) -> None:
        """Count answered messages, and let flow control know."""

    def connection_lost(self, connection: SubscribedConnection) -> None:
        """A connection has ended."""


class SubscribedConnection:
    """A connection after SUB; the `BatchOrigin` of its batches.

    Attributes:
        share: its part of max_in_flight.
        lowered_s: when its RDY was last lowered.
        batches: those with unanswered messages, and when each arrived or was touched last.
        refused: answers that nsqd refused, most often because they were late.
        is_returning: messages that still arrive are returned to nsqd at once.
    """

    def __init__(self, owner: ConnectionOwner, connection: Connection) -> None:
        self.connection = connection
        self.address = connection.address
        self.share = Share(connection.max_rdy_count)
        self.lowered_s = 0.0
        self.batches: dict[Batch, float] = {}
        self.refused = 0
        self.is_returning = False
        self._owner = owner
        self._highest_rdy = 0
        self._emptied = new_event()
        self._is_closing = False
        connection.on_messages = self._receive
        connection.on_refused = self._count_refused

    def __repr__(self) -> str:
        share = self.share
        return f"<SubscribedConnection {self.address} rdy={share.rdy} in_flight={share.in_flight}>"

    # From nsqd

    def _receive(self, columns: Columns) -> None:
        share = self.share
        if share.in_flight > _MAX_TIMES_RDY * self._highest_rdy + _SPARE_MESSAGES:
            raise FrameError(
                f"{self.address}: {share.in_flight} messages without an answer, and RDY was"
                f" {self._highest_rdy} at most"
            )
        share.in_flight += len(columns.ids)
        share.message_s = current_time()
        max_attempts = self._owner.config.max_attempts
        if max_attempts and max(columns.attempts) > max_attempts:
            columns, exhausted = _split_by_attempts(columns, max_attempts)
            given_up = Batch(self, exhausted)
            self.batches[given_up] = share.message_s
            if self.is_returning:
                given_up.requeue(0, backoff=False)
            else:
                self._owner.queue_given_up(given_up)
            if not columns.ids:
                return
        batch = Batch(self, columns)
        self.batches[batch] = share.message_s
        if self.is_returning:
            batch.requeue(0, backoff=False)
        else:
            self._owner.queue_batch(batch)

    def _count_refused(self, frame: ErrorFrame) -> None:
        self.refused += 1
        log.warning("%s: %s", self.address, frame.as_error())

    @property
    def msg_timeout_s(self) -> float:
        """The message timeout that nsqd granted to this connection, in seconds."""
        granted_ms = self.connection.features.get("msg_timeout")
        if isinstance(granted_ms, int) and granted_ms > 0:
            return granted_ms / 1000
        return DEFAULT_MSG_TIMEOUT_S

    # To nsqd

    @property
    def is_open(self) -> bool:
        """Whether answers can still reach nsqd."""
        return self.connection.is_open

    def send_rdy(self, rdy: int) -> None:
        """Send this RDY unless it is the one sent last."""
        share = self.share
        if rdy == share.rdy:
            return
        now_s = current_time()
        if rdy < share.rdy:
            self.lowered_s = now_s
        self._highest_rdy = max(self._highest_rdy, rdy)
        share.set_rdy(rdy, now_s)
        self.connection.put(commands.ready(rdy))

    def send_answers(
        self, batch: Batch, commands: bytes, count: int, outcome: Outcome | None
    ) -> bool:
        """See `trionsq.client.message.BatchOrigin`."""
        if not batch.open_count:
            self.batches.pop(batch, None)
        if not self.connection.is_open:
            return False
        share = self.share
        has_made_room = share.in_flight > share.ceiling
        share.in_flight -= count
        share.overdue = min(share.overdue, share.in_flight)
        self.connection.put(commands)
        if not share.in_flight:
            self._emptied.set()
        self._owner.note_answer(count, outcome, has_made_room)
        return True

    def count_overdue(self, now_s: float) -> None:
        """See `trionsq.client.flow.RdyReceiver`."""
        # nsqd read a TOUCH, or sent the messages, a little later or earlier.
        before_s = now_s - self.msg_timeout_s - SETTLE_S
        self.share.overdue = sum(
            batch.open_count for batch, at_s in self.batches.items() if at_s < before_s
        )

    def send_touch(self, batch: Batch, commands: bytes) -> bool:
        """See `trionsq.client.message.BatchOrigin`."""
        if batch in self.batches:
            self.batches[batch] = current_time()
        if self.connection.is_open:
            self.connection.put(commands)
        return self.connection.is_open

    def requeue_delay_s(self, attempts: int) -> float:
        """See `trionsq.client.message.BatchOrigin`."""
        return self._owner.config.requeue_delay_s(attempts)

    async def return_messages(self) -> None:
        """Return all unanswered messages to nsqd, and those that still arrive.

        One batch in each turn of the event loop.
        """
        self.is_returning = True
        for batch in list(self.batches):
            batch.requeue(0, backoff=False)
            await checkpoint()

    async def close(self, timeout_s: float) -> None:
        """Send CLS, wait until all messages are answered, and close; after the timeout in any case.

        nsqd's CLOSE_WAIT says that it has read every answer that was sent before; so does its end.
        """
        with anyio.move_on_after(timeout_s):
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
        last_s = None
        while self.connection.is_open and last_s != self.share.message_s:
            last_s = self.share.message_s
            await self._wait_until_answered()
            with anyio.move_on_after(_LATE_MESSAGE_S):
                await self.connection.ended.wait()
            await checkpoint()  # on a busy machine the time has passed before what came is read
        self.connection.end()
        with anyio.move_on_after(_CLOSE_S):
            await self.connection.ended.wait()

    async def _wait_until_answered(self) -> None:
        while self.share.in_flight and self.connection.is_open:
            self._emptied = new_event()
            async with anyio.create_task_group() as tasks:
                for event in (self._emptied, self.connection.ended):
                    tasks.start_soon(_cancel_after, event, tasks.cancel_scope)


class ReconnectLoop:
    """Keeps a connection to one nsqd.

    Attributes:
        address: ``host:port``.
        subscribed: the present connection, if there is one.
        first_attempt: None once the first attempt has succeeded, else its error.
    """

    def __init__(self, owner: ConnectionOwner, address: str, *, is_endless: bool) -> None:
        """``is_endless``: connect again until stopped. Otherwise one connection is all."""
        self.address = address
        self.subscribed: SubscribedConnection | None = None
        self.first_attempt = Reply[Exception | None]()
        self._owner = owner
        self._is_endless = is_endless
        self._is_stopping = False
        self._scope = anyio.CancelScope()

    def __repr__(self) -> str:
        return repr(self.subscribed) if self.subscribed else f"<ReconnectLoop {self.address}>"

    async def run(self) -> None:
        """Connect, again and again if endless. Ends when stopped."""
        failures = 0
        with self._scope:
            while True:
                was_connected, failure = await self._connect_and_serve()
                if failure is not None:
                    log.warning("%s:%s: %s", self._owner.topic, self._owner.channel, failure)
                    self._report_first_attempt(failure)
                failures = 0 if was_connected else failures + 1
                if self._is_stopping or not self._is_endless:
                    break
                await anyio.sleep(self._pause_s(failures))
        self._report_first_attempt(StoppedError("the consumer was stopped"))

    def _report_first_attempt(self, failure: Exception | None) -> None:
        if not self.first_attempt.is_done:
            self.first_attempt.set_value(failure)

    def _pause_s(self, failures: int) -> float:
        max_pause_s = self._owner.config.lookupd_poll_interval_s
        pause_s = min(_FIRST_PAUSE_S * float(2 ** min(failures, 16)), max_pause_s)
        return pause_s * self._owner.random.uniform(0.5, 1)

    async def _connect_and_serve(self) -> tuple[bool, Exception | None]:
        """Return whether a connection was made, and the error that prevented or ended it."""
        owner = self._owner
        try:
            connection = await Connection.open(self.address, owner.config, owner.dial)
        except ConnectError as error:
            return False, error
        subscribed = SubscribedConnection(owner, connection)
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(connection.run)
                subscribe = commands.subscribe(owner.topic, owner.channel)
                try:
                    await connection.request(subscribe).wait()
                except (ClientError, ProtocolError) as error:
                    connection.abort()
                    return False, error
                self.subscribed = subscribed
                owner.flow.add_connection(subscribed)
                self._report_first_attempt(None)
                await connection.ended.wait()
        finally:
            self.subscribed = None
            owner.connection_lost(subscribed)
        return True, connection.failure

    async def stop(self, timeout_s: float) -> None:
        """Close the connection once all is answered, or after the timeout, and end `run`."""
        self._is_stopping = True
        subscribed = self.subscribed
        if subscribed is None:
            self._scope.cancel()
            return
        self._owner.flow.retire_connection(subscribed)
        await subscribed.close(timeout_s)

    async def return_and_stop(self, timeout_s: float) -> None:
        """Return unanswered messages to nsqd, then stop."""
        if (subscribed := self.subscribed) is not None:
            self._owner.flow.retire_connection(subscribed)
            await subscribed.return_messages()
        await self.stop(timeout_s)


async def wait_until_connected(loops: Sequence[ReconnectLoop]) -> None:
    """Wait until one of the loops is connected.

    Raises:
        Exception: none of them could connect; the error of the first that failed.
    """
    errors: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def wait(loop: ReconnectLoop) -> None:
            error = await loop.first_attempt.wait()
            if error is None:
                tasks.cancel_scope.cancel()
            else:
                errors.append(error)

        for loop in loops:
            tasks.start_soon(wait, loop)
    if loops and len(errors) == len(loops):
        raise errors[0]


async def _cancel_after(event: Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _split_by_attempts(columns: Columns, max_attempts: int) -> tuple[Columns, Columns]:
    """Split messages into those with at most ``max_attempts``, and the others."""
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
