"""One nsqd of a consumer: connect, subscribe, and again when the connection is lost.

Spec: client, sections 3 (reconnect) and 7 (stop).
"""

from __future__ import annotations

import logging
from random import Random
from typing import Final, Protocol

import trio

from trionsq.client.config import Config
from trionsq.client.connection import Connection
from trionsq.client.dial import Dial
from trionsq.client.errors import ClientError, ConnectError, ProtocolError, StoppedError
from trionsq.client.flow import Flow
from trionsq.client.subscription import Owner, Subscription
from trionsq.client.waiting import Reply
from trionsq.wire import commands

__all__ = ["Host", "Keeper"]

log = logging.getLogger("trionsq.client")

# The first pause before connecting again; it doubles up to lookupd_poll_interval.
_RETRY_S: Final = 1.0


class Host(Owner, Protocol):
    """The consumer, as its keepers know it."""

    topic: str
    channel: str
    config: Config
    dial: Dial
    random: Random
    flow: Flow

    def lost(self, subscription: Subscription) -> None:
        """Its connection has ended."""


class Keeper:
    """Keeps a connection to one address.

    Attributes:
        address: ``host:port``.
        subscription: of now, if there is a connection.
        first: told None once the first attempt has succeeded, else its error.
    """

    def __init__(self, host: Host, address: str, *, again: bool) -> None:
        """`again`: connect again, until told to stop. Else one connection is all."""
        self.address = address
        self.subscription: Subscription | None = None
        self.first = Reply[Exception | None]()
        self._host = host
        self._again = again
        self._is_stopping = False
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return repr(self.subscription) if self.subscription else f"<Keeper {self.address}>"

    async def run(self) -> None:
        """Connect, and again; ends when stopped, or without `again` with the connection."""
        failures = 0
        with self._scope:
            while True:
                was_connected, failure = await self._connect_and_stay()
                if failure is not None:
                    log.warning("%s:%s: %s", self._host.topic, self._host.channel, failure)
                    self._tell_first(failure)
                failures = 0 if was_connected else failures + 1
                if self._is_stopping or not self._again:
                    break
                await trio.sleep(self._pause_s(failures))
        self._tell_first(StoppedError("the consumer was stopped"))

    def _tell_first(self, failure: Exception | None) -> None:
        if not self.first.is_there:
            self.first.tell(failure)

    def _pause_s(self, failures: int) -> float:
        longest_s = self._host.config.lookupd_poll_interval_s
        pause_s = min(_RETRY_S * float(2 ** min(failures, 16)), longest_s)
        return pause_s * self._host.random.uniform(0.5, 1)

    async def _connect_and_stay(self) -> tuple[bool, Exception | None]:
        """Whether it was connected, and why it is no more."""
        try:
            connection = await Connection.open(self.address, self._host.config, self._host.dial)
        except ConnectError as error:
            return False, error
        subscription = Subscription(self._host, connection)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(connection.run)
                subscribe = commands.subscribe(self._host.topic, self._host.channel)
                try:
                    await connection.request(subscribe).wait()
                except (ClientError, ProtocolError) as error:
                    connection.abort()
                    return False, error
                self.subscription = subscription
                self._host.flow.add(subscription)
                self._tell_first(None)
                await connection.ended.wait()
        finally:
            self.subscription = None
            self._host.lost(subscription)
        return True, connection.failure

    async def stop(self, patience_s: float) -> None:
        """Close the connection once all is answered, or after ``patience_s``; the end of `run`."""
        self._is_stopping = True
        subscription = self.subscription
        if subscription is None:
            self._scope.cancel()
            return
        self._host.flow.retire(subscription)
        await subscription.close(patience_s)

    async def leave(self, patience_s: float) -> None:
        """Give back what is not answered, and stop."""
        if (subscription := self.subscription) is not None:
            self._host.flow.retire(subscription)
            await subscription.leave()
        await self.stop(patience_s)
