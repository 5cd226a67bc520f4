"""Values instead of bytes: the codecs, and what a consumer does with a body that is none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
import trio

from tests.broker.support import publish
from tests.client.network import ADDRESS, Network
from tests.client.test_consumer import left
from trionsq.broker.broker import Broker
from trionsq.client import (
    Codec,
    Config,
    Consumer,
    JsonCodec,
    Message,
    MsgspecCodec,
    Producer,
    PydanticCodec,
    StrCodec,
)
from trionsq.testing.memory import nsqd_in_memory


@dataclass
class Order:
    """A value with a type."""

    number: int
    paid: bool = False


class Model(pydantic.BaseModel):
    """The same for pydantic."""

    number: int


CODECS: list[tuple[Codec[Any], Any, bytes]] = [
    (StrCodec(), "grüße", "grüße".encode()),
    (JsonCodec(), {"é": [1, None, 2.5]}, '{"é":[1,null,2.5]}'.encode()),
    (MsgspecCodec(Order), Order(1), b'{"number":1,"paid":false}'),
    (MsgspecCodec(Order, is_msgpack=True), Order(2), msgspec.msgpack.encode(Order(2))),
    (PydanticCodec(Model), Model(number=3), b'{"number":3}'),
]


@pytest.mark.parametrize(("codec", "value", "body"), CODECS)
def test_a_value_goes_there_and_back(codec: Codec[Any], value: object, body: bytes) -> None:
    """The bytes are what other programs expect."""
    assert codec.encode(value) == body
    assert codec.decode(body) == value


@pytest.mark.parametrize("codec", [codec for codec, _, _ in CODECS])
def test_a_body_that_is_none_of_these_values(codec: Codec[Any]) -> None:
    """Decoding raises an ordinary exception, also for what is nested without end."""
    with pytest.raises((ValueError, msgspec.DecodeError)):
        codec.decode(b"\xff{")


def test_json_without_end() -> None:
    """The bodies of strangers can't do more than raise."""
    with pytest.raises(RecursionError):
        JsonCodec().decode(b"[" * 1_000_000)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes"])
def test_what_json_does_not_have_is_refused(value: object) -> None:
    """No message goes out that other languages can't read."""
    with pytest.raises((ValueError, TypeError)):
        JsonCodec().encode(value)


def typed_consumer(broker: Broker, **rest: Any) -> Consumer[Order]:
    """A consumer of t:c."""
    network = Network.of(broker)
    return Consumer(
        "t",
        "c",
        nsqd_tcp_addresses=[ADDRESS],
        config=Config(max_in_flight=5),
        codec=MsgspecCodec(Order),
        dial=network.dial,
        **rest,
    )


async def test_publishing_and_consuming_values() -> None:
    """Each way of publishing encodes; `async for` and `run` decode; batches stay bytes."""
    async with nsqd_in_memory() as broker:
        network, codec = Network.of(broker), MsgspecCodec(Order)
        async with Producer(ADDRESS, codec=codec, dial=network.dial) as producer:
            await producer.publish("t", Order(1))
            await producer.publish_many("t", [Order(2), Order(3)])
            await producer.publish_deferred("t", Order(4), 0)
            await (await producer.begin_publish("t", Order(5))).wait()
            with pytest.raises(TypeError):
                await producer.publish("t", object())  # type: ignore[arg-type]
        found = []
        async with typed_consumer(broker) as consumer:
            async for message in consumer:
                found.append(message.body.number)
                message.finish()
                if len(found) == 4:
                    break

            async def handle(message: Message[Order]) -> None:
                found.append(message.body.number)
                consumer.stop()

            await consumer.run(handle)
        assert sorted(found) == [1, 2, 3, 4, 5]
        assert left(broker) == 0
        publish(broker, "t", b'{"number":6}')
        async with typed_consumer(broker) as consumer:
            batch = await consumer.next_batch()
            assert batch.bodies == [b'{"number":6}']


async def test_an_idempotent_producer_encodes() -> None:
    """The repeated publishes have the same bytes."""
    async with nsqd_in_memory() as broker:
        network = Network.of(broker)
        async with Producer(
            ADDRESS, codec=JsonCodec(), idempotent=True, dial=network.dial
        ) as producer:
            await producer.publish("t", 1)
            await producer.publish_many("t", [2, 3])
            await producer.publish_deferred("t", 4, 0)
            await (await producer.begin_publish("t", 5)).wait()
        async with typed_consumer(broker) as consumer:
            bodies: list[bytes] = []
            while len(bodies) < 5:
                bodies += (await consumer.next_batch()).bodies
        assert sorted(map(json.loads, bodies)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_an_undecodable_body_goes_to_the_give_up_hook(concurrency: int) -> None:
    """The hook has the bytes; the messages before and behind it are handled; it is finished."""
    given_up, handled = [], []
    async with nsqd_in_memory() as broker:
        bodies = [b'{"number":1}', b"{", b"nonsense", b'{"number":2}', b'{"number":"x"}']

        async def give_up(message: Message) -> None:
            given_up.append(message.body)
            stop_at_last()

        async def handle(message: Message[Order]) -> None:
            handled.append(message.body.number)
            stop_at_last()

        def stop_at_last() -> None:
            if len(given_up) + len(handled) == len(bodies):
                consumer.stop()

        publish(broker, "t", *bodies)
        async with typed_consumer(broker, on_give_up=give_up) as consumer:
            await consumer.run(handle, concurrency=concurrency)
            stats = consumer.stats()
        assert sorted(given_up) == sorted([b"{", b"nonsense", b'{"number":"x"}'])
        assert sorted(handled) == [1, 2]
        assert (stats.finished, stats.given_up, left(broker)) == (5, 3, 0)


async def test_without_a_hook_it_is_finished_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The consumer lives, and the log names the message and the error."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"nonsense", b'{"number":1}')
        async with typed_consumer(broker) as consumer:
            message = await anext(aiter(consumer))
            assert message.body == Order(1)
            message.finish()
        assert left(broker) == 0
    (text,) = [text for text in caplog.messages if "giving up" in text]
    assert "DecodeError" in text


async def test_a_hook_that_raises_requeues(caplog: pytest.LogCaptureFixture) -> None:
    """As after a handler that raises, nothing is lost."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"nonsense", b'{"number":1}')

        async def give_up(message: Message) -> None:
            raise RuntimeError("no room")

        async with typed_consumer(broker, on_give_up=give_up) as consumer:
            (await anext(aiter(consumer))).finish()
            assert consumer.stats().requeued == 1
        assert left(broker) == 1
    assert any("on_give_up failed" in text for text in caplog.messages)


async def test_cancelling_the_hook_returns_the_message() -> None:
    """It is neither finished nor lost."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"nonsense")
        with trio.CancelScope() as scope:

            async def give_up(message: Message) -> None:
                scope.cancel()
                await trio.sleep_forever()

            async with typed_consumer(broker, on_give_up=give_up) as consumer:
                await anext(aiter(consumer))
        assert scope.cancelled_caught
        assert left(broker) == 1
