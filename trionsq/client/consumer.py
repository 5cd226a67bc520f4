"""Consuming: messages of one channel, from every nsqd that has its topic.

Tasks: one for each nsqd (a keeper: connect, subscribe, wait for the end, connect again), below it
those of the connection; one that asks nsqlookupd; three that keep the time of RDY and backoff.

Spec: client, sections 3 to 7.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from types import TracebackType
from typing import Final, Self, TypeAlias

import trio

from trionsq import httpget
from trionsq.client.backoff import Outcome
from trionsq.client.batches import Batches, Messages
from trionsq.client.config import Config
from trionsq.client.dial import Dial, dial_tcp
from trionsq.client.discovery import Discovery, Get
from trionsq.client.errors import (
    AlreadyConnectedError,
    ClientError,
    DiscoveryError,
    StoppedError,
)
from trionsq.client.flow import Flow
from trionsq.client.handling import Handler, handle_all
from trionsq.client.household import Household
from trionsq.client.keeper import Keeper
from trionsq.client.message import Batch, Message
from trionsq.client.stats import ConsumerStats
from trionsq.client.subscription import MSG_TIMEOUT_S, Subscription
from trionsq.hostport import parse_address
from trionsq.wire.names import is_valid_name

__all__ = ["Consumer", "GiveUp", "Handler"]

log = logging.getLogger("trionsq.client")

GiveUp: TypeAlias = Callable[[Message], Awaitable[object]]

_STOP_S: Final = 30.0
# Of one turn of the event loop: tasks that are started, messages that are given up.
_STARTED_MAX: Final = 128
_GIVEN_UP_MAX: Final = 128


class Consumer:
    """Takes the messages of a channel.

    ::

        where = ["127.0.0.1:4161"]
        async with Consumer("topic", "channel", lookupd_http_addresses=where) as consumer:
            async for message in consumer:
                print(message.body)
                message.finish()

    or ``async for batch in consumer.batches()``, which is many times faster, or
    ``await consumer.run(handler, concurrency=10)``, which answers for the handler.

    When the body ends, however it ends, all messages without an answer are given back to nsqd
    (REQ 0), in at most ``drain_timeout_s``. `stop` ends it in order: what was received is still
    handed out.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd_tcp_addresses: Iterable[str] = (),
        lookupd_http_addresses: Iterable[str] = (),
        config: Config | None = None,
        on_give_up: GiveUp | None = None,
        address_filter: Callable[[str], bool] | None = None,
        drain_timeout_s: float = 5.0,
        dial: Dial = dial_tcp,
        get: Get = httpget.get,
        random: Random | None = None,
    ) -> None:
        """Args:
            topic, channel: valid names.
            nsqd_tcp_addresses: ``host:port``.
            lookupd_http_addresses: ``host:port`` or a URL; asked for the nsqds of the topic.
            config: options.
            on_give_up: awaited with each message that had more than max_attempts, before it is
                finished. If it raises, the message is requeued instead.
            address_filter: which of the discovered nsqds to connect to.
            drain_timeout_s: how long the end may take.
            dial, get, random: for tests.

        Raises:
            ValueError: an invalid name or address.
        """
        for name in (topic, channel):
            if not is_valid_name(name.encode("utf-8", "surrogatepass")):
                raise ValueError(f"not a valid name: {name!r}")
        self.topic, self.channel = topic, channel
        self.config = config or Config()
        self.dial = dial
        self.random = random or Random()
        self.flow = Flow(self.config, self.random)
        self._discovery = Discovery(topic, self.config, get)
        self._first_addresses = [_checked(address) for address in nsqd_tcp_addresses]
        for address in lookupd_http_addresses:
            self._discovery.add(address)
        self._on_give_up = on_give_up
        self._filter = address_filter
        self._drain_timeout_s = drain_timeout_s
        self._household = Household()
        self._tasks: trio.Nursery | None = None
        self._keepers: dict[str, Keeper] = {}
        self._queue: deque[Batch] = deque()
        self._given_up: deque[Batch] = deque()
        self._arrivals = trio.lowlevel.ParkingLot()
        self._is_stopping = False
        self._messages = Messages(self)
        self._counts = {"received": 0, "finished": 0, "requeued": 0, "given_up": 0, "refused": 0}

    def __repr__(self) -> str:
        state = " stopping" if self._is_stopping else ""
        return f"<Consumer {self.topic}:{self.channel}{state} {list(self._keepers.values())}>"

    # Beginning and end

    async def __aenter__(self) -> Self:
        """Connect to the given nsqds; those that are discovered follow by themselves.

        Raises:
            ConnectError: none of the given nsqds can be reached. If only some can't, they are
                tried again, as all are after a connection was lost.
            ProtocolError: nsqd refuses SUB.
        """
        self.config.check_files()
        if not self._first_addresses and not self._discovery.urls:
            raise ClientError("a consumer needs the address of an nsqd or of an nsqlookupd")
        self._tasks = await self._household.open()
        try:
            self.flow.start(self._tasks)
            keepers = [self._keep(address, given=True) for address in self._first_addresses]
            if self._discovery.urls:
                self._tasks.start_soon(self._discover)
            await _await_one(keepers)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        """Give everything back, close, end the tasks."""
        self._is_stopping = True
        self.flow.stop()
        self._queue.clear()
        self._given_up.clear()
        self._arrivals.unpark_all()
        with trio.move_on_after(self._drain_timeout_s, shield=True):
            async with trio.open_nursery() as nursery:
                await self._tell_keepers(nursery, Keeper.leave, self._drain_timeout_s)
        await self._household.close()

    def stop(self) -> None:
        """Begin to end: take no more messages, hand out those received, then end the loops.

        The connections are closed once everything is answered, or after 30 s. May be called from
        any task, again without harm.
        """
        if self._is_stopping or self._tasks is None:
            return
        self._is_stopping = True
        self.flow.stop()
        self._tasks.start_soon(self._tell_keepers, self._tasks, Keeper.stop, _STOP_S)
        self._arrivals.unpark_all()

    async def _tell_keepers(
        self,
        nursery: trio.Nursery,
        what: Callable[[Keeper, float], Awaitable[None]],
        patience_s: float,
    ) -> None:
        for started, keeper in enumerate(list(self._keepers.values()), 1):
            nursery.start_soon(what, keeper, patience_s)
            if started % _STARTED_MAX == 0:
                await trio.lowlevel.checkpoint()

    # Messages

    def __aiter__(self) -> Messages:
        return self._messages

    def batches(self, *, finish: bool = False) -> Batches:
        """Iterate over `Batch` objects, each what one read brought.

        Args:
            finish: finish what is left unanswered of a batch when the next one is asked for; so
                not when the loop is left by an exception or ``break``.
        """
        return Batches(self, finish=finish)

    async def run(self, handler: Handler, concurrency: int = 1) -> None:
        """Call the handler with each message, up to so many at once, until `stop`.

        A message whose handler returns is finished; one whose handler raises is requeued, which
        backs off, and the exception is logged. Unless ``message.auto_response`` is False, or the
        handler answered itself. Cancelling gives back what is being handled.
        """
        name = f"{self.topic}:{self.channel}"
        await handle_all(self._messages, handler, concurrency, name)

    async def next_batch(self) -> Batch:
        """The next batch. A checkpoint; cancelling loses nothing.

        Raises:
            StoppedError: the consumer was stopped, and there is no more.
        """
        await trio.lowlevel.checkpoint()
        while True:
            while self._given_up:
                await self._give_up(self._given_up.popleft())
            while self._queue:
                batch = self._queue.popleft()
                # That of a broken connection will be delivered again.
                if batch.is_answerable:
                    return batch
            if self._is_stopping and not self._keepers:
                raise StoppedError("the consumer was stopped")
            await self._arrivals.park()

    async def _give_up(self, batch: Batch) -> None:
        for number, message in enumerate(batch, 1):
            try:
                # Each is a line of the log, and nothing else here need be a checkpoint.
                if number % _GIVEN_UP_MAX == 0 or number == len(batch):
                    await trio.lowlevel.checkpoint()
                if self._on_give_up is not None:
                    await self._on_give_up(message)
            except Exception:
                log.exception("%s:%s: on_give_up failed", self.topic, self.channel)
                message.requeue()
            except BaseException:
                batch.requeue(0, backoff=False)
                raise
            else:
                log.warning("%s:%s: giving up %r", self.topic, self.channel, message)
                self._counts["given_up"] += message.finish()

    # What subscriptions tell (`trionsq.client.subscription.Owner`)

    @property
    def max_attempts(self) -> int:
        return self.config.max_attempts

    def requeue_delay_s(self, attempts: int) -> float:
        return self.config.requeue_delay_s(attempts)

    def take(self, batch: Batch) -> None:
        self._counts["received"] += len(batch)
        self._queue.append(batch)
        self._arrivals.unpark()

    def take_given_up(self, batch: Batch) -> None:
        self._counts["received"] += len(batch)
        self._given_up.append(batch)
        self._arrivals.unpark()

    def answered(self, count: int, outcome: Outcome | None, has_made_room: bool) -> None:
        self._counts["finished" if outcome is Outcome.SUCCESS else "requeued"] += count
        self.flow.answered(outcome, has_made_room)

    # Settings and figures

    @property
    def max_in_flight(self) -> int:
        """Messages received and not answered, at most; 0 pauses. May be set at any time."""
        return self.flow.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, max_in_flight: int) -> None:
        if max_in_flight < 0:
            raise ValueError("max_in_flight must be at least 0")
        self.flow.change_max_in_flight(max_in_flight)

    @property
    def is_starved(self) -> bool:
        """Whether a connection has 85 % of what it may in flight: answer soon, or ask for more."""
        return self.flow.is_starved

    @property
    def msg_timeout_s(self) -> float:
        """After so many seconds without answer or touch nsqd delivers a message again.

        The least that a connected nsqd says; while none is, what the options ask for.
        """
        keepers = self._keepers.values()
        said = [keeper.subscription.msg_timeout_s for keeper in keepers if keeper.subscription]
        return min(said, default=self.config.msg_timeout_s or MSG_TIMEOUT_S)

    def stats(self) -> ConsumerStats:
        """Counts of messages, answers and connections."""
        subscriptions = [keeper.subscription for keeper in self._keepers.values()]
        living = [subscription for subscription in subscriptions if subscription is not None]
        refused = sum(subscription.refused for subscription in living)
        return ConsumerStats(
            **(self._counts | {"refused": self._counts["refused"] + refused}),
            in_flight=sum(subscription.share.in_flight for subscription in living),
            connections=len(living),
        )

    # nsqds and nsqlookupds

    def add_nsqd(self, address: str) -> None:
        """Connect to ``host:port`` too, and again whenever the connection is lost.

        Raises:
            AlreadyConnectedError, ValueError, StoppedError
        """
        self._keep(_checked(address), given=True)

    def remove_nsqd(self, address: str) -> None:
        """Close the connection once its messages are answered, and do not connect again.

        Raises:
            KeyError: there is none.
        """
        keeper = self._keepers[address]
        assert self._tasks is not None
        self._tasks.start_soon(keeper.stop, _STOP_S)

    def add_lookupd(self, address: str) -> None:
        """Ask this nsqlookupd too, and at once. Raises ValueError, StoppedError."""
        if self._tasks is None or self._is_stopping:
            raise StoppedError("the consumer does not run")
        is_first = not self._discovery.urls
        self._discovery.add(address)
        if is_first:
            self._tasks.start_soon(self._discover)
        self._discovery.ask()

    def remove_lookupd(self, address: str) -> None:
        """Do not ask this nsqlookupd any more. Raises KeyError, LastLookupdError."""
        self._discovery.remove(address)

    def _keep(self, address: str, *, given: bool) -> Keeper:
        if self._tasks is None or self._is_stopping:
            raise StoppedError("the consumer does not run")
        if address in self._keepers:
            raise AlreadyConnectedError(f"{address}: already connected")
        keeper = self._keepers[address] = Keeper(self, address, again=given)
        self._tasks.start_soon(self._attend, keeper)
        return keeper

    async def _attend(self, keeper: Keeper) -> None:
        try:
            await keeper.run()
        finally:
            del self._keepers[keeper.address]
            if self._is_stopping:
                self._arrivals.unpark_all()

    def lost(self, subscription: Subscription) -> None:
        """A connection has ended."""
        self.flow.remove(subscription)
        self._counts["refused"] += subscription.refused
        self._discovery.ask()

    async def _discover(self) -> None:
        def failed(error: DiscoveryError) -> None:
            log.warning("%s:%s: no nsqlookupd answers: %s", self.topic, self.channel, error)

        await self._discovery.run(self._connect_to, failed, self.random)

    async def _connect_to(self, addresses: list[str]) -> None:
        self.random.shuffle(addresses)
        for looked_at, address in enumerate(addresses, 1):
            if self._is_stopping:
                return
            wanted = self._filter is None or self._filter(address)
            if wanted and address not in self._keepers:
                self._keep(address, given=False)
            if looked_at % _STARTED_MAX == 0:
                await trio.lowlevel.checkpoint()


def _checked(address: str) -> str:
    parse_address(address)
    return address


async def _await_one(keepers: list[Keeper]) -> None:
    """Wait until one is connected. Raises the error of one of them if none is."""
    errors: list[Exception] = []
    async with trio.open_nursery() as nursery:

        async def wait(keeper: Keeper) -> None:
            error = await keeper.first.wait()
            if error is None:
                nursery.cancel_scope.cancel()
            else:
                errors.append(error)

        for keeper in keepers:
            nursery.start_soon(wait, keeper)
    if keepers and len(errors) == len(keepers):
        raise errors[0]
