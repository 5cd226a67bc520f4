"""Consuming: the messages of one channel, from every nsqd that has its topic.

Tasks: a reconnect loop for each nsqd, and below it the tasks of its connection; one that polls
nsqlookupd; four of flow control.

Spec: client, sections 3 to 8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from types import TracebackType
from typing import Any, Final, Generic, Self

import anyio
from anyio.abc import TaskGroup

from trionsq.client import lookupget
from trionsq.client.arrivals import Arrivals
from trionsq.client.backoff import Outcome
from trionsq.client.codecs import Codec, T
from trionsq.client.config import Config
from trionsq.client.discovery import Discovery, Get
from trionsq.client.errors import AlreadyConnectedError, ClientError, DiscoveryError, StoppedError
from trionsq.client.flow import FlowControl
from trionsq.client.giving_up import GiveUp, Undeliverable
from trionsq.client.handling import Handler, handle_messages
from trionsq.client.handshake import Dial, dial_tcp
from trionsq.client.message import (
    Batch,
    BatchIterator,
    ConsumerStats,
    MessageIterator,
)
from trionsq.client.nursery import ShieldedNursery
from trionsq.client.subscribed_connection import (
    DEFAULT_MSG_TIMEOUT_S,
    ReconnectLoop,
    SubscribedConnection,
    wait_until_connected,
)
from trionsq.hostport import parse_address
from trionsq.transports.runtime import Token, checkpoint
from trionsq.wire.names import is_valid_name

__all__ = ["Consumer", "GiveUp", "Handler"]

log = logging.getLogger("trionsq.client")

_STOP_S: Final = 30.0
# In one turn of the event loop: tasks to start, messages to give up.
_MAX_A_TURN: Final = 128


class Consumer(Generic[T]):
    """Receives the messages of a channel.

    ::

        lookupds = ["127.0.0.1:4161"]
        async with Consumer("topic", "channel", lookupd_http_addresses=lookupds) as consumer:
            async for message in consumer:
                print(message.body)
                message.finish()

    or ``async for batch in consumer.batches()``, which is many times faster, or
    ``await consumer.run(handler, concurrency=10)``, which answers for the handler.

    When the body of ``async with`` ends, for whatever reason, all unanswered messages are returned
    to nsqd (REQ 0) within ``drain_timeout_s``. `stop` is the orderly end: messages already
    received are still handed out.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd_tcp_addresses: Iterable[str] = (),
        lookupd_http_addresses: Iterable[str] = (),
        config: Config | None = None,
        codec: Codec[T] | None = None,
        on_give_up: GiveUp | None = None,
        address_filter: Callable[[str], bool] | None = None,
        drain_timeout_s: float = 5.0,
        dial: Dial = dial_tcp,
        get: Get = lookupget.get,
        random: Random | None = None,
    ) -> None:
        """Args:
            topic, channel: valid names.
            nsqd_tcp_addresses: ``host:port``.
            lookupd_http_addresses: ``host:port`` or a URL; asked for the nsqds of the topic.
            config: options.
            codec: makes the ``body`` of each `Message` of its bytes; None: bytes. Those of
                `batches` stay bytes.
            on_give_up: awaited with each message that had more than max_attempts or whose body the
                codec refuses, before it is finished; its body is bytes. If it raises, the message
                is requeued instead.
            address_filter: returns whether to connect to a discovered nsqd.
            drain_timeout_s: time limit for returning messages and closing at the end.
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
        self.flow = FlowControl(self.config, self.random)
        self._discovery = Discovery(topic, self.config, get)
        self._first_addresses = [_checked(address) for address in nsqd_tcp_addresses]
        for address in lookupd_http_addresses:
            self._discovery.add(address)
        self._undeliverable = Undeliverable(f"{topic}:{channel}", on_give_up)
        self._filter = address_filter
        self._drain_timeout_s = drain_timeout_s
        self._nursery = ShieldedNursery(self._begin_stop)
        self._tasks: TaskGroup | None = None
        self._loops: dict[str, ReconnectLoop] = {}
        # Batches for the program. Closed once all loops have ended.
        self._arrivals = Arrivals()
        self._is_stopping = False
        self._stop_requested = Token()
        self._messages = MessageIterator[T](self, codec, self._undeliverable.give_up_undecodable)
        self._counts = dict.fromkeys(("received", "finished", "requeued", "refused"), 0)

    def __repr__(self) -> str:
        state = " stopping" if self._is_stopping else ""
        return f"<Consumer {self.topic}:{self.channel}{state} {list(self._loops.values())}>"

    async def __aenter__(self) -> Self:
        """Connect to the given nsqds. Connections to discovered ones are made in the background.

        Raises:
            ConnectError, NotConnectedError: none of the given nsqds can be reached, and answers
                SUB. If only some cannot, they are tried again, as after a lost connection.
            ProtocolError: nsqd refuses SUB.
        """
        self.config.check_files()
        if not self._first_addresses and not self._discovery.urls:
            raise ClientError("a consumer needs the address of an nsqd or of an nsqlookupd")
        self._tasks = await self._nursery.open()
        try:
            self.flow.start(self._tasks)
            self._tasks.start_soon(self._stop_on_request, self._tasks)
            first = self._first_addresses
            loops = [self._start_loop(address, is_endless=True) for address in first]
            if self._discovery.urls:
                self._tasks.start_soon(self._discover)
            await wait_until_connected(loops)
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
        """Return unanswered messages to nsqd, close the connections, end the tasks."""
        self._begin_stop()
        self._arrivals.drop_all()
        try:
            with anyio.move_on_after(self._drain_timeout_s, shield=True):
                async with anyio.create_task_group() as tasks:
                    await self._start_for_each_loop(
                        tasks, ReconnectLoop.return_and_stop, self._drain_timeout_s
                    )
        finally:
            await self._nursery.close()

    def stop(self) -> None:
        """Begin the orderly end: receive no more messages, hand out those received, end the loops.

        The connections are closed once everything is answered, or after 30 s. May be called from
        any task, from a callback of asyncio's loop such as a signal handler, and more than once.
        """
        if self._is_stopping or self._tasks is None:
            return
        self._begin_stop()
        self._stop_requested.set()

    async def _stop_on_request(self, tasks: TaskGroup) -> None:
        await self._stop_requested.wait()
        await self._start_for_each_loop(tasks, ReconnectLoop.stop, _STOP_S)

    def _begin_stop(self) -> None:
        self._is_stopping = True
        # nsqd must not send again the messages that are returned.
        self.flow.set_max_in_flight(0)
        self._close_arrivals_if_stopped()

    def _close_arrivals_if_stopped(self) -> None:
        if self._is_stopping and not self._loops:
            self._arrivals.close()

    async def _start_for_each_loop(
        self,
        tasks: TaskGroup,
        method: Callable[[ReconnectLoop, float], Coroutine[Any, Any, None]],
        timeout_s: float,
    ) -> None:
        for started, loop in enumerate(list(self._loops.values()), 1):
            tasks.start_soon(method, loop, timeout_s)
            if started % _MAX_A_TURN == 0:
                await checkpoint()

    # Messages

    def __aiter__(self) -> MessageIterator[T]:
        return self._messages

    def batches(self, *, finish: bool = False) -> BatchIterator:
        """Iterate over `Batch` objects, each with the messages of one read.

        Args:
            finish: finish the unanswered messages of a batch when the next one is requested. They
                are not finished when the loop is left by an exception or ``break``.
        """
        return BatchIterator(self, finish=finish)

    async def run(self, handler: Handler[T], concurrency: int = 1) -> None:
        """Call the handler with each message, up to ``concurrency`` at once, until `stop`.

        A message is finished when its handler returns. If the handler raises, the message is
        requeued, the consumer backs off, and the exception is logged. Neither happens if the
        handler has answered itself or ``message.auto_response`` is False. Cancelling returns the
        messages in progress to nsqd.
        """
        await handle_messages(self._messages, handler, concurrency, f"{self.topic}:{self.channel}")

    async def next_batch(self) -> Batch:
        """The next batch. A checkpoint; cancelling loses nothing.

        Raises:
            StoppedError: the consumer was stopped, and no messages are left.
        """
        while True:
            batch, is_given_up = await self._arrivals.take()
            if is_given_up:
                await self._undeliverable.give_up(batch)
            # nsqd redelivers the messages of a broken connection.
            elif batch.is_answerable:
                return batch

    # For its connections: see `ConnectionOwner`
    def queue_batch(self, batch: Batch) -> None:
        self._counts["received"] += len(batch)
        self._arrivals.put(batch, is_given_up=False)

    def queue_given_up(self, batch: Batch) -> None:
        self._counts["received"] += len(batch)
        self._arrivals.put(batch, is_given_up=True)

    def note_answer(self, count: int, outcome: Outcome | None, has_made_room: bool) -> None:
        self._counts["finished" if outcome is Outcome.SUCCESS else "requeued"] += count
        self.flow.note_answer(outcome, has_made_room)

    def connection_lost(self, connection: SubscribedConnection) -> None:
        self.flow.remove_connection(connection)
        self._arrivals.drop_lost()
        self._counts["refused"] += connection.refused
        self._discovery.request_poll()

    # Settings and counts

    @property
    def max_in_flight(self) -> int:
        """Messages received and not answered, at most; 0 pauses. May be set at any time."""
        return self.flow.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, max_in_flight: int) -> None:
        if max_in_flight < 0:
            raise ValueError("max_in_flight must be at least 0")
        self.flow.set_max_in_flight(max_in_flight)

    @property
    def is_starved(self) -> bool:
        """Whether a connection has 85 % of its RDY in flight: answer soon, or nsqd pauses."""
        return self.flow.is_starved

    @property
    def msg_timeout_s(self) -> float:
        """nsqd redelivers a message after this many seconds without an answer or touch.

        The smallest of the connected nsqds' values; without a connection, the option's.
        """
        timeouts_s = [subscribed.msg_timeout_s for subscribed in self._subscribed()]
        return min(timeouts_s, default=self.config.msg_timeout_s or DEFAULT_MSG_TIMEOUT_S)

    def stats(self) -> ConsumerStats:
        """Counts of messages, answers and connections."""
        subscribed = self._subscribed()
        refused = self._counts["refused"] + sum(connection.refused for connection in subscribed)
        return ConsumerStats(
            **(self._counts | {"refused": refused}),
            given_up=self._undeliverable.finished,
            in_flight=sum(connection.share.in_flight for connection in subscribed),
            connections=len(subscribed),
        )

    def _subscribed(self) -> list[SubscribedConnection]:  # also called by other threads
        return [loop.subscribed for loop in list(self._loops.values()) if loop.subscribed]

    def add_nsqd(self, address: str) -> None:
        """Connect to ``host:port`` as well, and again whenever the connection is lost.

        Raises AlreadyConnectedError, ValueError, StoppedError.
        """
        self._start_loop(_checked(address), is_endless=True)

    def remove_nsqd(self, address: str) -> None:
        """Close the connection once its messages are answered, and do not connect again.

        Raises:
            KeyError: this consumer does not connect to that address.
        """
        loop = self._loops[address]
        assert self._tasks is not None
        self._tasks.start_soon(loop.stop, _STOP_S)

    def add_lookupd(self, address: str) -> None:
        """Poll this nsqlookupd as well, the first time at once. Raises ValueError, StoppedError."""
        if self._tasks is None or self._is_stopping:
            raise StoppedError("the consumer does not run")
        is_first = not self._discovery.urls
        self._discovery.add(address)
        if is_first:
            self._tasks.start_soon(self._discover)
        self._discovery.request_poll()

    def remove_lookupd(self, address: str) -> None:
        """Stop polling this nsqlookupd. Raises KeyError, LastLookupdError."""
        self._discovery.remove(address)

    def _start_loop(self, address: str, *, is_endless: bool) -> ReconnectLoop:
        if self._tasks is None or self._is_stopping:
            raise StoppedError("the consumer does not run")
        if address in self._loops:
            raise AlreadyConnectedError(f"{address}: already connected")
        loop = self._loops[address] = ReconnectLoop(self, address, is_endless=is_endless)
        self._tasks.start_soon(self._run_loop, loop)
        return loop

    async def _run_loop(self, loop: ReconnectLoop) -> None:
        try:
            await loop.run()
        finally:
            del self._loops[loop.address]
            self._close_arrivals_if_stopped()

    async def _discover(self) -> None:
        await self._discovery.run(self._connect_to, self._log_failure, self.random)

    def _log_failure(self, error: DiscoveryError) -> None:
        log.warning("%s:%s: no nsqlookupd answers: %s", self.topic, self.channel, error)

    async def _connect_to(self, addresses: list[str]) -> None:
        self.random.shuffle(addresses)
        for number, address in enumerate(addresses, 1):
            if self._is_stopping:
                return
            is_allowed = self._filter is None or self._filter(address)
            if is_allowed and address not in self._loops:
                self._start_loop(address, is_endless=False)
            if number % _MAX_A_TURN == 0:
                await checkpoint()


def _checked(address: str) -> str:
    parse_address(address)
    return address
