"""Deferred messages are cancelled or due now by id, on both engines; --max-memory bounds them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from quart_trio import QuartTrio
from trio.testing import MockClock

from tests.broker.support import check_balances, consume, finish, numbered, publish
from tests.broker.test_dead_letters import ask, until
from tests.core.helpers import segment
from trionsq.broker import memory_guard
from trionsq.broker.broker import Broker
from trionsq.broker.chores import in_turns
from trionsq.core.deferred import Deferred
from trionsq.http.app import create_app
from trionsq.storage.log import held
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

ENGINES = pytest.mark.parametrize("storage", ["default", "log"])
SIZE = 1000


async def deferred(app: QuartTrio, state: str = "deferred") -> dict[str, dict[str, Any]]:
    """What is deferred, by body."""
    status, page = await ask(app, "GET", f"/channel/peek?topic=t&channel=c&state={state}&limit=999")
    assert (status, page["trouble"]) == (200, None)
    return {one["body"]: one for one in page["messages"] if "due" in one}


async def cancel(app: QuartTrio, message: dict[str, Any], verb: str = "cancel") -> int:
    path = f"/channel/deferred/{verb}?topic=t&channel=c&id={message['id']}&due={message['due']}"
    response = await app.test_client().post(path)
    return response.status_code


async def take_all(broker: Broker, count: int) -> list[str]:
    """Receive so many messages, and finish them; no other comes within an hour."""
    consumer, messages = await consume(broker, "t", "c", count)
    await finish(consumer, *messages)
    await consumer.say(commands.ready(10))
    await trio.sleep(700)
    channel = broker.topics["t"].channels["c"].core
    assert (channel.in_flight_count, channel.depth, channel.deferred_count) == (0, 0, 0)
    consumer.close()
    return sorted(message.body.decode() for message in messages)


@ENGINES
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_cancelled_message_does_not_come(
    storage: str, restarts: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all others do at their time, also after a restart; each can be cancelled once."""
    monkeypatch.setattr(held, "_CHUNK_RANGES", 4)
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, storage=storage) as broker:
        app = create_app(broker)
        broker.topic("t").channel("c")
        for number, delay_s in enumerate((100, 200, 300, 400, 500, 600)):
            publish(broker, "t", b"a%d" % number, b"b%d" % number, defer_ms=delay_s * 1000)
        channel = broker.topics["t"].channels["c"].core
        await until(lambda: channel.deferred_count == 12)
        found = await deferred(app)
        for name in ("a0", "b3", "a5", "b5"):
            assert await cancel(app, found[name]) == 200
            assert await cancel(app, found[name]) == 404
        assert await cancel(app, {**found["a1"], "due": found["a1"]["due"] + 1}) == 404
        assert await cancel(app, {**found["a1"], "id": "0" * 16}) == 404
        assert (channel.deferred_count, channel.dropped["cancelled"]) == (8, 4)
        assert sorted(await deferred(app)) == ["a1", "a2", "a3", "a4", "b0", "b1", "b2", "b4"]
        check_balances(broker)
        left = ["a1", "a2", "a3", "a4", "b0", "b1", "b2", "b4"]
        if not restarts:
            await trio.sleep(1000)
            assert await take_all(broker, 8) == left
            check_balances(broker)
            return
    async with nsqd_in_memory(disk=disk, storage=storage) as broker:
        app = create_app(broker)
        if storage == "default":
            # They are on the disk, where they can be cancelled as well.
            found = await deferred(app, "queued")
            assert await cancel(app, found["a4"]) == 200
            assert await cancel(app, found["a4"]) == 404
            left.remove("a4")
        await trio.sleep(1000)
        assert await take_all(broker, len(left)) == left


@ENGINES
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_message_is_due_now(
    storage: str, restarts: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes at once and once, with its attempts; the others at their time, after a restart,
    too."""
    monkeypatch.setattr(held, "_CHUNK_RANGES", 4)
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, storage=storage) as broker:
        app = create_app(broker)
        broker.topic("t").channel("c")
        for number in range(6):
            publish(broker, "t", b"a%d" % number, b"b%d" % number, defer_ms=600_000 + number)
        channel = broker.topics["t"].channels["c"].core
        await until(lambda: channel.deferred_count == 12)
        found = await deferred(app)
        for name in ("a0", "b3"):
            assert await cancel(app, found[name], "requeue") == 200
            assert await cancel(app, found[name], "requeue") == 404
        assert await cancel(app, found["b3"]) == 404
        assert await cancel(app, {**found["a1"], "id": "0" * 16}, "requeue") == 404
        await until(lambda: (channel.depth, channel.deferred_count) == (2, 10))
        check_balances(broker)
        if not restarts:
            start_s = trio.current_time()
            consumer, messages = await consume(broker, "t", "c", 2)
            assert trio.current_time() - start_s < 10
            assert sorted(message.body for message in messages) == [b"a0", b"b3"]
            assert {message.attempts for message in messages} == {1}
            await finish(consumer, *messages)
            consumer.close()
            await trio.sleep(1000)
            assert len(await take_all(broker, 10)) == 10
            check_balances(broker)
            return
    async with nsqd_in_memory(disk=disk, storage=storage) as broker:
        app = create_app(broker)
        count = 2
        if storage == "default":
            # Those on the disk come in their turn, without their delay.
            on_disk = await deferred(app, "queued")
            assert await cancel(app, on_disk["a4"], "requeue") == 200
            count = 3
        start_s = trio.current_time()
        consumer, messages = await consume(broker, "t", "c", count)
        assert trio.current_time() - start_s < 10
        expected = {b"a0", b"b3"} if count == 2 else {b"a0", b"a4", b"b3"}
        assert {message.body for message in messages} == expected
        await finish(consumer, *messages)
        consumer.close()
        await trio.sleep(1000)
        assert len(await take_all(broker, 12 - count)) == 12 - count


async def test_what_is_wrong_with_a_request_is_named(autojump_clock: MockClock) -> None:
    """Nothing is cancelled by a request that says too little."""
    async with nsqd_in_memory() as broker:
        app = create_app(broker)
        broker.topic("t").channel("c")
        path = "/channel/deferred/cancel?topic=t&channel=c"
        for rest, message in (
            ("&due=1", "INVALID_ARG_ID"),
            ("&id=0123456789abcdef", "INVALID_ARG_DUE"),
            ("&id=0123456789abcdef&due=-1", "INVALID_ARG_DUE"),
        ):
            response = await app.test_client().post(path + rest)
            assert (response.status_code, json.loads(await response.get_data())) == (
                400,
                {"message": message},
            )


async def test_a_message_that_becomes_due_meanwhile_is_delivered() -> None:
    """A search in turns never cancels what has left."""
    found = Deferred()
    for number in range(50_000):
        found.add_segment(segment(number, 1, (1,)), 1000 + number % 2)
    last = b"%016x" % 49_999
    search = found.cancel(last, 1001)
    next(search)
    popped = [one.ids()[0] for one in found.pop_due(2000)]
    assert len(popped) == 50_000
    assert await in_turns(search) is None
    assert (len(found), found.nbytes) == (0, 0)


@pytest.mark.parametrize("max_memory", [100 * SIZE, 0])
async def test_memory_of_deferred_messages_is_bounded(
    max_memory: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over --max-memory, or without it over a bound of their own, they go to the disk, from which
    they come at their time, and no earlier."""
    monkeypatch.setattr(memory_guard, "MAX_DEFERRED_BYTES", 100 * SIZE)
    if not max_memory:
        monkeypatch.setattr(memory_guard, "_DEFERRED_COST", 0)
    async with nsqd_in_memory(max_memory=max_memory, storage="default") as broker:
        channel = broker.topic("t").channel("c").core
        for number in range(0, 400, 10):
            bodies = [b"%0*d" % (SIZE, one) for one in range(number, number + 10)]
            publish(broker, "t", *bodies, defer_ms=60_000)
            await trio.sleep(0.2)
        assert isinstance(channel.deferred, Deferred)
        # One looks ten times a second, or every two seconds.
        most = (120 if max_memory else 220) * SIZE
        assert channel.deferred.nbytes <= most
        assert channel.deferred_count + channel.depth == 400
        start_s = trio.current_time()
        consumer, _ = await consume(broker, "t", "c", 0)
        await consumer.say(commands.ready(1000))
        await trio.sleep(20)
        assert channel.in_flight_count == 0
        assert channel.deferred.nbytes <= most
        check_balances(broker)
        found: set[int] = set()
        while len(found) < 400:
            message = await consumer.message()
            assert trio.current_time() - start_s > 45
            found.add(int(message.body))
            await consumer.say(commands.finish(message.message_id))
        assert trio.current_time() - start_s < 70
        assert found == set(range(400))
        assert not broker.memory_guard.is_over
        assert not channel.sheds
        check_balances(broker)
        consumer.close()


async def test_a_retry_beyond_the_bound_keeps_its_delay(autojump_clock: MockClock) -> None:
    """REQ with a delay takes no memory above the limit either; fresh messages still come."""
    async with nsqd_in_memory(max_memory=20 * SIZE, storage="default") as broker:
        channel = broker.topic("t").channel("c").core
        publish(broker, "t", *[b"%0*d" % (SIZE, one) for one in range(100)])
        consumer, messages = await consume(broker, "t", "c", 100)
        for message in messages:
            await consumer.say(commands.requeue(message.message_id, 60_000))
            await trio.sleep(0.05)
        assert isinstance(channel.deferred, Deferred)
        assert channel.deferred.nbytes <= 30 * SIZE
        publish(broker, "t", *numbered(3))
        fresh = [await consumer.message() for _ in range(3)]
        assert {message.attempts for message in fresh} == {1}
        await finish(consumer, *fresh)
        start_s = trio.current_time()
        for _ in range(100):
            message = await consumer.message()
            assert message.attempts == 2
            await finish(consumer, message)
        assert 50 < trio.current_time() - start_s < 70
        check_balances(broker)
        consumer.close()
