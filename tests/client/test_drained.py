"""A Producer whose nsqd is drained goes to the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from tests.client.network import Network
from trionsq.broker.broker import Broker
from trionsq.client import Producer, ProtocolError
from trionsq.testing.memory import nsqd_in_memory
from trionsq.transports.transport import Transport

ONE, TWO = "one:4150", "two:4150"
BOTH_WAYS = pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])


class TwoNodes:
    """Two nsqds; the second one is used after the first."""

    def __init__(self, one: Broker, two: Broker) -> None:
        self.one, self.two = one, two
        self._networks = {"one": Network.of(one, ONE), "two": Network.of(two, TWO)}

    async def dial(self, host: str, port: int, local_address: str) -> Transport:
        """Connect to one of them."""
        return await self._networks[host].dial(host, port, local_address)

    def producer(self, *, idempotent: bool = False) -> Producer:
        """A producer of both."""
        return Producer(ONE, TWO, dial=self.dial, idempotent=idempotent)

    @property
    def stored(self) -> int:
        """Messages that both have got."""
        return sum(
            topic.core.message_count
            for broker in (self.one, self.two)
            for topic in broker.topics.values()
        )


@asynccontextmanager
async def two_nodes() -> AsyncIterator[TwoNodes]:
    """Both in memory."""
    async with nsqd_in_memory() as one, nsqd_in_memory(seed=1) as two:
        yield TwoNodes(one, two)


@BOTH_WAYS
async def test_no_publish_of_many_tasks_fails_or_is_doubled(
    autojump_clock: MockClock, idempotent: bool
) -> None:
    """All that were under way at the drain are stored once, there or at the next node."""
    async with two_nodes() as nodes, nodes.producer(idempotent=idempotent) as producer:
        count = 0

        async def publish() -> None:
            nonlocal count
            for _ in range(30):
                await producer.publish("t", b"x")
                count += 1
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(publish)
            await trio.sleep(0.1)
            nodes.one.drain.begin()
        assert count == nodes.stored == 600
        assert nodes.two.topics["t"].core.message_count > 300
        assert producer.nsqd_address == TWO


@pytest.mark.parametrize("kind", ["publish_many", "publish_deferred"])
async def test_every_kind_of_publish_goes_to_the_next_node(kind: str) -> None:
    """MPUB and DPUB as well as PUB."""
    async with two_nodes() as nodes, nodes.producer() as producer:
        nodes.one.drain.begin()
        if kind == "publish_many":
            await producer.publish_many("t", [b"x", b"y"])
        else:
            await producer.publish_deferred("t", b"x", 1)
        assert not nodes.one.topics
        assert nodes.stored


async def test_if_all_nodes_are_drained_the_refusal_is_raised() -> None:
    """After one trial at each of them."""
    async with two_nodes() as nodes, nodes.producer() as producer:
        nodes.one.drain.begin()
        nodes.two.drain.begin()
        with pytest.raises(ProtocolError, match="E_PUB_FAILED PUB failed draining"):
            await producer.publish("t", b"x")


async def test_a_message_without_waiting_raises_and_the_next_goes_on() -> None:
    """`begin_publish` can't send it again; each message has an answer of its own."""
    async with two_nodes() as nodes, nodes.producer() as producer:
        await producer.publish("t", b"x")
        nodes.one.drain.begin()
        replies = [await producer.begin_publish("t", b"x") for _ in range(3)]
        for reply in replies:
            with pytest.raises(ProtocolError) as raised:
                await reply.wait()
            assert raised.value.is_draining
        await (await producer.begin_publish("t", b"x")).wait()
        assert nodes.two.topics["t"].core.message_count == 1
