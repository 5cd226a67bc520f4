"""Each await of a producer and of a secured handshake is cancelled once."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
import trio

from tests.cancellation import BOTH_IN_SOAK, CancelAt, Scenario, When, run_counted, sweep_awaits
from tests.client.accounts import bodies_left, check_closed
from tests.client.network import ADDRESS, IDENTIFIED, Network
from tests.client.upgraded import SECRET, Secured, SecuredNetwork, server_context, trusting
from tests.soak import more_in_soak
from trionsq.client import (
    ClientError,
    Config,
    NotConnectedError,
    Producer,
    ProtocolError,
    StoppedError,
)
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import frames
from trionsq.wire.errors import ProtocolError as WireError

OTHER = "other.test:4150"
CLOSED = "closed.test:4150"
# Together they exceed what the connection holds, and what a producer may have unsent.
LARGE_BYTES = 70_000
LARGE = 4
ROOM_BYTES = 100_000


@dataclass
class Publisher:
    """A program that publishes in all ways, and to another nsqd when the first one is lost.

    Attributes:
        sent: bodies that nsqd may have.
        acknowledged: bodies that it has confirmed.
        stopped: publishes that the end of the producer has ended.
    """

    network: Network
    sent: list[bytes] = field(default_factory=list)
    acknowledged: set[bytes] = field(default_factory=set)
    stopped: int = 0
    is_complete: bool = False

    async def publish(self, producer: Producer, *bodies: bytes, delay_s: float = 0) -> None:
        self.sent += bodies
        if delay_s:
            await producer.publish_deferred("t", bodies[0], delay_s)
        elif len(bodies) > 1:
            await producer.publish_many("t", bodies)
        else:
            await producer.publish("t", bodies[0])
        self.acknowledged.update(bodies)

    async def begin(self, producer: Producer, *bodies: bytes) -> None:
        """Several unconfirmed messages of one task."""
        replies = []
        for body in bodies:
            self.sent.append(body)
            replies.append((body, await producer.begin_publish("t", body)))
        for body, reply in replies:
            await reply.wait()
            self.acknowledged.add(body)

    async def publish_late(self, producer: Producer, body: bytes) -> None:
        try:
            await self.publish(producer, body)
        except StoppedError:
            self.stopped += 1

    async def run(self) -> None:
        addresses = CLOSED, ADDRESS, OTHER
        async with (
            trio.open_nursery() as others,
            Producer(*addresses, dial=self.network.dial) as producer,
        ):
            await self.begin(producer, b"0")
            await producer.ping()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.publish, producer, b"1")
                nursery.start_soon(self.publish, producer, b"2", b"3")
                nursery.start_soon(self.begin, producer, b"4", b"5")
                for number in range(LARGE):
                    body = b"%d" % number * LARGE_BYTES
                    nursery.start_soon(self.publish, producer, body)
            link = self.network.links[0]
            for pipe in (link.incoming, link.outgoing):
                pipe.break_with(ConnectionResetError(errno.ECONNRESET, "reset"))
            with pytest.raises(NotConnectedError):
                await self.publish(producer, b"6")
            await self.publish(producer, b"7", delay_s=0.05)
            assert producer.nsqd_address == OTHER
            others.start_soon(self.publish_late, producer, b"8")
            # This one is sent, and nothing comes back any more.
            await trio.sleep(0.1)
            self.network.links[-1].incoming.stall()
            others.start_soon(self.publish_late, producer, b"9")
            await trio.sleep(0.1)
        assert b"8" in self.acknowledged
        assert self.stopped == 1
        self.is_complete = True


async def publish(cancel_at: CancelAt) -> None:
    async with nsqd_in_memory() as first, nsqd_in_memory() as second:
        for broker in (first, second):
            broker.topic("t").channel("c")
        network = Network.of(first)
        network.hosts[OTHER] = second.connect
        publisher = Publisher(network)
        await run_counted(cancel_at, publisher.run)
        assert publisher.is_complete or cancel_at.has_fired
        await check_closed(network, first, second)
        left = await bodies_left([first, second])
        assert publisher.acknowledged <= set(left) <= set(publisher.sent)
        assert len(left) == len(set(left))


@pytest.mark.parametrize("when", BOTH_IN_SOAK)
def test_a_producer_cancelled_at_any_await(when: When, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reported as published is at nsqd, nothing is there twice, and all is closed."""
    monkeypatch.setattr("trionsq.client.connection._ROOM_BYTES", ROOM_BYTES)
    sweep_awaits(publish, when, least=50, one_in=10)


async def refuse(network: Network) -> None:
    """An nsqd that identifies itself and refuses the client, in one piece."""
    goodbye = frames.error(WireError("E_INVALID", "go away"))
    while True:
        peer = await network.peer()
        with suppress(EOFError, trio.BrokenResourceError):
            assert await peer.take(4) == b"  V2"
            assert await peer.line() == b"IDENTIFY"
            await peer.body()
            await peer.say(frames.response(IDENTIFIED), goodbye)
            await peer.gone()


async def publish_in_vain(cancel_at: CancelAt) -> None:
    network = Network().held()
    refused = 0
    async with trio.open_nursery() as nsqd:
        nsqd.start_soon(refuse, network)

        async def run() -> None:
            nonlocal refused
            async with Producer(ADDRESS, dial=network.dial) as producer:
                for _ in range(2):
                    with pytest.raises((ClientError, ProtocolError)):
                        await producer.publish("t", b"x")
                    refused += 1

        await run_counted(cancel_at, run)
        assert refused == 2 or cancel_at.has_fired
        assert all(link.is_closed for link in network.links)
        nsqd.cancel_scope.cancel()


@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_connection_that_ends_as_it_begins_cancelled_at_any_await(when: When) -> None:
    """The end of a connection and a cancellation at the same moment: it is closed."""
    sweep_awaits(publish_in_vain, when, least=10)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Options with TLS and the trusted authority."""
    return trusting(tmp_path_factory.mktemp("ca"))


def in_layers(name: str, secure: Config) -> Scenario:
    """A scenario: a message through TLS and a compression, of which each piece is small."""
    context = server_context()
    config = replace(secure, auth_secret=SECRET, deflate=name == "deflate", snappy=name == "snappy")

    async def scenario(cancel_at: CancelAt) -> None:
        async with trio.open_nursery() as nursery:
            nsqd = Secured(context, wants_secret=True)
            network = SecuredNetwork(nursery, nsqd, sizes=[300])
            acknowledged = []

            async def run() -> None:
                async with Producer(ADDRESS, config=config, dial=network.dial_cut) as producer:
                    await producer.publish("t", b"x" * 1000)
                    acknowledged.append(b"x" * 1000)

            await run_counted(cancel_at, run)
            assert acknowledged or cancel_at.has_fired
            assert all(link.is_closed for link in network.links)
        assert nsqd.published[: len(acknowledged)] == acknowledged

    return scenario


@more_in_soak
@pytest.mark.parametrize("name", ["deflate", "snappy"])
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_secured_connection_cancelled_at_any_await(name: str, when: When, secure: Config) -> None:
    """In TLS, compression and AUTH as well: the socket is closed, and nsqd hears of it."""
    sweep_awaits(in_layers(name, secure), when, least=30)
