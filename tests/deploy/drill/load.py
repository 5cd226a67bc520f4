"""The load of a drill: publishers and consumers of the client library.

They follow the advice of docs/client.md and do nothing else, so the results apply to users.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio

from tests.deploy.cluster import Cluster
from tests.deploy.drill.account import TOPIC, History
from trionsq.client import (
    Config,
    ConnectError,
    Consumer,
    NotConnectedError,
    Producer,
    ProtocolError,
)

__all__ = ["CHANNELS", "CONSUMERS", "TOPIC", "Load", "wait_until"]

CHANNELS: Final = ("work", "audit")
CONSUMERS: Final = ("work", "work", "audit")
"""The channel of each."""

_PUBLISHERS: Final = 3
_TICK_S: Final = 0.02
# A publish goes to the next node after each failure: once to each, and one to spare.
_TRIES: Final = 4
# As docs/client.md has it for who wants to notice soon.
_HEARTBEAT_S: Final = 1.0
_SILENCE_S: Final = 3.0
_MSG_TIMEOUT_S: Final = 5.0
_IN_FLIGHT: Final = 300

# What an nsqd says when it can't store; anything else is the publisher's own mistake.
_TRY_ELSEWHERE: Final = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED"})


class Load:
    """Publishers and consumers of one run; they tell its history.

    Attributes:
        consumers: those that run.
    """

    def __init__(
        self, cluster: Cluster, history: History, *, rate: int, chance: random.Random
    ) -> None:
        """``rate``: messages in a second, of all publishers together."""
        self._cluster = cluster
        self._history = history
        self._rate = rate
        self._random = chance
        self._stop_publishing = trio.CancelScope()
        self._names = {cluster.address(node, 4150): node for node in cluster.nsqds}
        self.config = Config(
            heartbeat_interval_s=_HEARTBEAT_S,
            read_timeout_s=_SILENCE_S,
            msg_timeout_s=_MSG_TIMEOUT_S,
            max_in_flight=_IN_FLIGHT,
            max_attempts=0,
        )
        self.consumers: list[Consumer] = []
        self._published = trio.Event()

    # Publishing

    async def publish(self) -> None:
        """Until `stop_publishing`; each publisher begins at another node."""
        nodes = self._cluster.nsqds
        with self._stop_publishing:
            async with trio.open_nursery() as nursery:
                for place in range(_PUBLISHERS):
                    first = place % len(nodes)
                    nursery.start_soon(self._publish_on, [*nodes[first:], *nodes[:first]])
        self._published.set()

    async def publish_to(self, node: str) -> None:
        """One more publisher, which begins at this node; until cancelled."""
        others = [name for name in self._cluster.nsqds if name != node]
        await self._publish_on([node, *others])

    async def stop_publishing(self) -> None:
        """Publishes under way are broken off: nobody knows of them."""
        self._history.calm()
        self._stop_publishing.cancel()
        await self._published.wait()

    async def _publish_on(self, nodes: Sequence[str]) -> None:
        each = max(1, round(self._rate * _TICK_S / _PUBLISHERS))
        single = max(1, each // 4)
        async with self._cluster.producer(*nodes, config=self.config) as producer:
            next_s = trio.current_time() + self._random.random() * _TICK_S
            while True:
                for _ in range(single):
                    await self._publish_one(producer, 1)
                if each > single:
                    await self._publish_one(producer, each - single)
                # What was missed by waiting is not made up for.
                next_s = max(next_s + _TICK_S, trio.current_time())
                await trio.sleep_until(next_s)

    async def _publish_one(self, producer: Producer, count: int) -> None:
        """A message, or a batch. When a node fails, publish again: it goes to the next one."""
        numbers, began_s = self._history.begin(count), self._history.clock()
        bodies = [self._history.body(number) for number in numbers]
        for _ in range(_TRIES):
            try:
                if count == 1:
                    await producer.publish(TOPIC, bodies[0])
                else:
                    await producer.publish_many(TOPIC, bodies)
            except (ConnectError, NotConnectedError) as error:
                self._history.failed(error)
            except ProtocolError as error:
                if error.code not in _TRY_ELSEWHERE:
                    raise
                self._history.failed(error)
            else:
                node = self._names[producer.nsqd_address]
                self._history.acknowledged(numbers, node, began_s)
                return
        self._history.gave_up(numbers)

    # Consuming

    async def consume(self, channel: str) -> None:
        """Take everything, found by nsqlookupd, until cancelled."""
        async with self.consumer(channel) as consumer:
            self.consumers.append(consumer)
            try:
                async for batch in consumer.batches():
                    node = self._names[batch.nsqd_address]
                    deliveries = self._history.delivered(
                        channel, node, batch.ids, batch.bodies, batch.attempts
                    )
                    if batch.finish():
                        self._history.finished(deliveries)
            finally:
                self.consumers.remove(consumer)

    def consumer(self, channel: str) -> Consumer:
        """One that asks the nsqlookupds, not yet begun."""
        return self._cluster.consumer(TOPIC, channel, self.config)

    async def pause(self) -> None:
        """Consumers take nothing from now on; returns when nothing of theirs is in flight."""
        self._history.calm()
        for consumer in self.consumers:
            consumer.max_in_flight = 0
        await wait_until(lambda: not any(one.stats().in_flight for one in self.consumers))

    def resume(self) -> None:
        """Consumers take messages again."""
        self._history.resumed()
        for consumer in self.consumers:
            consumer.max_in_flight = _IN_FLIGHT

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """The two of them as a context."""
        await self.pause()
        try:
            yield
        finally:
            self.resume()

    async def make_channels(self) -> None:
        """Topic and channels on every nsqd, before the first message. Raises ConnectError."""
        nodes = [self._cluster.address(node, 4150) for node in self._cluster.nsqds]
        for channel in CHANNELS:
            consumer = Consumer(
                TOPIC, channel, nsqd_tcp_addresses=nodes, dial=self._cluster.network.dial
            )
            async with consumer:
                await wait_until(partial(_is_connected, consumer, len(nodes)))


async def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something that this process can see, without a limit."""
    while True:
        if is_so():
            return
        await trio.sleep(_TICK_S)


def _is_connected(consumer: Consumer, count: int) -> bool:
    return consumer.stats().connections == count
