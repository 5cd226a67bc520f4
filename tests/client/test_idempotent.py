"""Producer(idempotent=True): each message once, or an error that says so."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.client.network import ADDRESS, Network
from trionsq.broker.broker import Broker
from trionsq.broker.runtime import Clock
from trionsq.client import (
    ConnectError,
    NotConnectedError,
    NotIdempotentError,
    Producer,
    ProtocolError,
    StoppedError,
    UnknownOutcomeError,
)
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import MemoryTransport
from trionsq.wire import commands, frames


def identified(epoch: str = "e1") -> bytes:
    """The answer of an nsqd that offers it."""
    return json.dumps({"idempotent_publish": True, "idempotency_epoch": epoch}).encode()


class CutAnswers(Network):
    """A network of a broker, whose next answers to publishes get lost, with their connections.

    Attributes:
        lost: how many.
    """

    lost = 0

    def serve(self, broker: Broker) -> None:
        """Let connections reach this broker."""

        def connect(transport: MemoryTransport) -> None:
            broker.connect(CutTransport(self, transport))

        self.hosts[ADDRESS] = connect


class CutTransport(MemoryTransport):
    """nsqd's end of a connection."""

    def __init__(self, network: CutAnswers, transport: MemoryTransport) -> None:
        super().__init__(transport.incoming, transport.outgoing)
        self.network = network

    def send_nowait(self, data: bytes | memoryview) -> int:
        if self.network.lost and bytes(data).endswith(frames.OK):
            self.network.lost -= 1
            raise ConnectionResetError("the answer is lost")
        return super().send_nowait(data)


@pytest.mark.parametrize(
    "options", [{}, {"storage": "log", "durability": "always"}], ids=["default", "log"]
)
async def test_a_lost_answer_is_asked_for_again(
    options: dict[str, Any], autojump_clock: MockClock
) -> None:
    """Each way of publishing, whose answer is lost several times, stores its messages once."""
    async with nsqd_in_memory(**options) as broker:
        network = CutAnswers()
        network.serve(broker)
        async with Producer(ADDRESS, idempotent=True, dial=network.dial) as producer:
            for lost in (0, 1, 3):
                network.lost = lost
                await producer.publish("t", b"one")
                network.lost = lost
                await producer.publish_many("t", [b"two", b"three"])
                network.lost = lost
                await producer.publish_deferred("t", b"four", 0.5)
                network.lost = lost
                await (await producer.begin_publish("t", b"five")).wait()
                assert not network.lost
        assert broker.topics["t"].core.message_count == 3 * 5
        assert len(network.dialled) == 1 + 4 * (1 + 3)


async def test_what_was_sent_goes_to_the_same_nsqd_again(autojump_clock: MockClock) -> None:
    """With the same key, as long as it is unanswered; then the next nsqd is taken, as always."""
    network = Network().held("a:1").held("b:1")
    async with (
        trio.open_nursery() as nursery,
        Producer("a:1", "b:1", idempotent=True, dial=network.dial) as producer,
    ):
        nursery.start_soon(producer.publish, "t", b"x")
        lines = []
        for _ in range(3):
            peer = await network.peer("a:1")
            assert json.loads(await peer.identify(identified()))["idempotent_publish"] is True
            lines.append(await peer.line())
            assert await peer.body() == b"x"
            peer.stream.close()
        assert len(set(lines)) == 1
        assert lines[0].startswith(b"PUB t ")
        peer = await network.peer("a:1")
        await peer.identify(identified())
        assert await peer.line() == lines[0]
        await peer.say(frames.OK)
        await wait_all_tasks_blocked()
        peer.stream.close()
        await wait_all_tasks_blocked()
        nursery.start_soon(producer.publish, "t", b"y")
        peer = await network.peer("b:1")
        await peer.identify(identified())
        assert await peer.line() not in lines
        await peer.say(frames.OK)


async def test_a_repeat_to_an_nsqd_that_was_started_again_names_the_epoch(
    autojump_clock: MockClock,
) -> None:
    """So that it can say that it does not know."""
    network = Network().held()
    async with Producer(ADDRESS, idempotent=True, dial=network.dial) as producer:

        async def serve() -> None:
            peer = await network.peer()
            await peer.identify(identified("e1"))
            line = await peer.line()
            peer.stream.close()
            peer = await network.peer()
            await peer.identify(identified("e2"))
            assert await peer.line() == line + b" e1"
            await peer.refuse("E_KEY_UNKNOWN", "PUB the keys of that time are forgotten")
            peer.stream.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            with pytest.raises(UnknownOutcomeError, match="started again"):
                await producer.publish("t", b"x")


@pytest.mark.parametrize("storage", ["default", "log"])
async def test_a_restart_of_nsqd(storage: str, autojump_clock: MockClock) -> None:
    """A log knows what it has stored; the default engine does not, and nobody claims it."""
    options: dict[str, Any] = {"disk": SimulatedDisk(), "storage": storage, "durability": "always"}
    outcome: list[object] = []
    network = Network().held()

    async def publish(producer: Producer) -> None:
        try:
            await producer.publish("t", b"x")
        except UnknownOutcomeError as error:
            outcome.append(error)
        else:
            outcome.append("stored")

    async with (
        trio.open_nursery() as nursery,
        Producer(ADDRESS, idempotent=True, dial=network.dial) as producer,
    ):
        async with nsqd_in_memory(**options) as broker:
            nursery.start_soon(publish, producer)
            peer = await network.peer()
            await peer.identify(identified(broker.registry.keys.epoch))
            await forward(broker, await peer.line(), await peer.body())
            network.hosts.clear()
            peer.stream.close()
        later = Clock.from_trio()
        await trio.sleep(2)
        async with nsqd_in_memory(**options, clock=later) as broker:
            network.hosts[ADDRESS] = broker.connect
            while not outcome:  # noqa: ASYNC110 - the mock clock leaps
                await trio.sleep(1)
            core = broker.topics["t"].core
            assert (core.message_count, core.depth) == (0, 1)
    assert (outcome == ["stored"]) == (storage == "log")


async def forward(broker: Broker, line: bytes, body: bytes) -> None:
    """Have a broker take the publish of a producer, to whom nothing is answered."""
    talk = Conversation.begin(broker)
    await talk.say(commands.identify({"feature_negotiation": True, "idempotent_publish": True}))
    await talk.say(line + b"\n", len(body).to_bytes(4), body)
    await talk.frame()
    await talk.response()


async def test_an_nsqd_that_does_not_come_back(autojump_clock: MockClock) -> None:
    """The outcome is unknown after retry_s; it is a NotConnectedError, as without keys."""
    network = Network().held()
    async with Producer(ADDRESS, idempotent=True, retry_s=5, dial=network.dial) as producer:

        async def serve() -> None:
            peer = await network.peer()
            await peer.identify(identified())
            await peer.line()
            network.hosts.clear()
            peer.stream.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            began_s = trio.current_time()
            with pytest.raises(NotConnectedError, match="may be stored") as raised:
                await producer.publish("t", b"x")
            assert isinstance(raised.value, UnknownOutcomeError)
            assert 3 < trio.current_time() - began_s <= 5.1
        with pytest.raises(ConnectError):
            await producer.publish("t", b"never sent")


async def test_a_refusal_is_no_unknown_outcome() -> None:
    """nsqd says that it stored nothing: the publish is not repeated."""
    async with nsqd_in_memory(max_msg_size=3) as broker:
        network = Network.of(broker)
        async with Producer(ADDRESS, idempotent=True, dial=network.dial) as producer:
            with pytest.raises(ProtocolError, match="E_BAD_MESSAGE"):
                await producer.publish("t", b"four")
            with pytest.raises(ProtocolError, match="E_BAD_MESSAGE"):
                await (await producer.begin_publish("t", b"four")).wait()
            with pytest.raises(ValueError, match="name"):
                await producer.publish("no good", b"x")
            with pytest.raises(ValueError, match="name"):
                await producer.begin_publish("no good", b"x")
            await producer.publish("t", b"3")
        assert broker.topics["t"].core.message_count == 1


async def test_an_nsqd_that_does_not_offer_it() -> None:
    """Is a clear error, and nothing is sent: the original, and one where it is turned off."""
    network = Network().held("a:1")
    async with nsqd_in_memory(idempotency_window_ns=0) as broker:
        network.hosts["b:1"] = broker.connect

        async def original() -> None:
            await (await network.peer("a:1")).identify()

        async with (
            trio.open_nursery() as nursery,
            Producer("a:1", "b:1", idempotent=True, dial=network.dial) as producer,
        ):
            nursery.start_soon(original)
            with pytest.raises(ConnectError, match=r"a:1: nsqd does not.*b:1: nsqd does not"):
                await producer.publish("t", b"x")
        async with Producer("b:1", idempotent=True, dial=network.dial) as producer:
            with pytest.raises(NotIdempotentError):
                await producer.publish("t", b"x")
        assert not broker.topics


async def test_a_stop_ends_what_is_repeated(autojump_clock: MockClock) -> None:
    """With StoppedError, as all publishes that wait."""
    network = Network().held()
    failures: list[BaseException] = []
    async with trio.open_nursery() as nursery:

        async def publish() -> None:
            try:
                await producer.publish("t", b"x")
            except StoppedError as error:
                failures.append(error)

        async with Producer(ADDRESS, idempotent=True, dial=network.dial) as producer:
            nursery.start_soon(publish)
            reply = None
            peer = await network.peer()
            await peer.identify(identified())
            await peer.line()
            reply = await producer.begin_publish("t", b"y")
            await wait_all_tasks_blocked()
        with pytest.raises(StoppedError):
            await reply.wait()
    assert len(failures) == 1
