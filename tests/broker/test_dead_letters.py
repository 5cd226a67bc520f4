"""Dead letters in a broker, on both engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from quart_trio import QuartTrio
from trio.testing import MockClock

from tests.broker.copies import drained
from tests.broker.support import check_balances, consume, finish, numbered, publish
from trionsq.broker.broker import Broker
from trionsq.core.policies import AppliedSettings
from trionsq.http.app import create_app
from trionsq.storage.letters import (
    DeadLetterStore,
    LetterError,
    LetterFilter,
    SqliteLetters,
)
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

ENGINES = pytest.mark.parametrize("storage", ["default", "log"])
POISON = {"topics": "*", "max_attempts": 2}


async def ask(app: QuartTrio, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    client = app.test_client()
    send = {"GET": client.get, "POST": client.post, "PUT": client.put}[method]
    response = await send(path, data=data)
    text = await response.get_data()
    return response.status_code, json.loads(text) if text else None


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(100):
        while not condition():  # noqa: ASYNC110 - the broker has no event for tests
            await trio.sleep(0.01)


def count(broker: Broker) -> int:
    return sum(one.letters for one in broker.dead_letters.tallies)


async def with_letters(broker: Broker, app: QuartTrio, number: int) -> None:
    """Let so many messages of t:c die; the channel `other` has finished them."""
    assert (await ask(app, "PUT", "/policy/poison", POISON))[0] == 200
    for name in ("c", "other"):
        broker.topic("t").channel(name)
    publish(broker, "t", *numbered(number))
    consumer, messages = await consume(broker, "t", "c", number)
    for _ in range(2):
        for message in messages:
            await consumer.say(commands.requeue(message.message_id, 0))
        if _ == 0:
            messages = [await consumer.message() for _ in messages]
    await until(lambda: count(broker) == number)
    other, copies = await consume(broker, "t", "other", number)
    await finish(other, *copies)
    consumer.close()
    other.close()


@ENGINES
async def test_a_message_goes_and_comes_back(storage: str, autojump_clock: MockClock) -> None:
    """It is out of its channel, with all that is known of it; a replay brings it to that channel
    alone, as a message that nobody had."""
    async with nsqd_in_memory(storage=storage) as broker:
        app = create_app(broker)
        await with_letters(broker, app, 3)
        status, document = await ask(app, "GET", "/deadletter?topic=t&channel=c&limit=2")
        assert (status, document["count"], len(document["deadletters"])) == (200, 3, 2)
        letter = document["deadletters"][0]
        assert (letter["body"], letter["reason"], letter["attempts"]) == ("00000000", "requeued", 2)
        assert (letter["dead_letter_topic"], letter["state"]) == ("t.dead", "waiting")
        assert broker.topics["t.dead"].letters == 3
        assert broker.topics["t"].channels["c"].core.dropped == {"dead_lettered": 3}
        check_balances(broker)
        assert await ask(app, "POST", f"/deadletter/replay?id={letter['id']}") == (
            200,
            {"count": 1},
        )
        await until(lambda: count(broker) == 2)
        assert await drained(broker, "c") == {b"00000000": 1}
        assert await ask(app, "POST", "/deadletter/replay?topic=t&channel=c") == (200, {"count": 2})
        await until(lambda: count(broker) == 0)
        assert await drained(broker, "c") == {b"00000001": 1, b"00000002": 1}
        assert not await drained(broker, "other")
        assert broker.dead_letters.counts["replayed"] == 3
        check_balances(broker)


@ENGINES
async def test_a_replayed_message_can_die_again(storage: str, autojump_clock: MockClock) -> None:
    """After as many attempts as at first; nothing is left of the first letter."""
    async with nsqd_in_memory(storage=storage) as broker:
        app = create_app(broker)
        await with_letters(broker, app, 1)
        for round_ in (1, 2, 3):
            await ask(app, "POST", "/deadletter/replay?topic=t&channel=c")
            consumer, [message] = await consume(broker, "t", "c", 1)
            assert message.attempts == 1
            await consumer.say(commands.requeue(message.message_id, 0))
            again = await consumer.message()
            assert again.attempts == 2
            await consumer.say(commands.requeue(again.message_id, 0))
            await until(lambda wanted=round_: broker.dead_letters.counts["kept"] == wanted + 1)  # type: ignore[misc]
            await until(lambda: count(broker) == 1)
            consumer.close()
        check_balances(broker)


@ENGINES
async def test_a_consumer_of_the_topic_gets_bodies_unchanged(
    storage: str, autojump_clock: MockClock
) -> None:
    """Once it has a channel; what the consumer finishes is no letter any more, and what it gives
    back is not given up again."""
    async with nsqd_in_memory(storage=storage) as broker:
        app = create_app(broker)
        await with_letters(broker, app, 3)
        consumer, messages = await consume(broker, "t.dead", "fix", 3)
        assert sorted(message.body for message in messages) == numbered(3)
        _, document = await ask(app, "GET", "/deadletter")
        ids = {letter["id"] for letter in document["deadletters"]}
        assert {message.message_id.decode() for message in messages} == ids
        await finish(consumer, *messages[:2])
        await until(lambda: count(broker) == 1)
        message = messages[2]
        for attempt in range(2, 6):
            await consumer.say(commands.requeue(message.message_id, 0))
            message = await consumer.message()
            assert message.attempts == attempt
        assert count(broker) == 1
        assert broker.topics["t.dead"].letters == 0
        check_balances(broker)


@ENGINES
async def test_letters_are_discarded(storage: str, autojump_clock: MockClock) -> None:
    """One, some, those of a filter; with the dead-letter topic when it is emptied or deleted."""
    async with nsqd_in_memory(storage=storage) as broker:
        app = create_app(broker)
        await with_letters(broker, app, 6)
        _, document = await ask(app, "GET", "/deadletter")
        id_ = document["deadletters"][3]["id"]
        assert await ask(app, "POST", f"/deadletter/discard?id={id_}") == (200, {"count": 1})
        assert (await ask(app, "POST", f"/deadletter/discard?id={id_}"))[0] == 404
        assert (await ask(app, "POST", f"/deadletter/replay?id={id_}"))[0] == 404
        for query, expected in (
            ("topic=t&reason=timed_out", 0),
            ("topic=t&older_than=1h", 0),
            ("topic=other", 0),
            ("topic=t&channel=c&count=2", 2),
        ):
            answer = await ask(app, "POST", f"/deadletter/discard?{query}")
            assert answer == (200, {"count": expected})
        assert (await ask(app, "POST", "/topic/empty?topic=t.dead"))[0] == 200
        assert (count(broker), broker.topics["t.dead"].letters) == (0, 0)
        broker.topics["t"].channel("c")
        await with_letters(broker, app, 2)
        assert (await ask(app, "POST", "/topic/delete?topic=t.dead"))[0] == 200
        await until(lambda: count(broker) == 0)


@ENGINES
async def test_a_client_may_ask_for_it(storage: str, autojump_clock: MockClock) -> None:
    """With a reason of its own, at the first attempt and without a policy."""
    async with nsqd_in_memory(storage=storage) as broker:
        app = create_app(broker)
        broker.topic("t").channel("c")
        publish(broker, "t", b"x")
        consumer, [message] = await consume(broker, "t", "c", 1)
        path = (
            f"/deadletter/add?topic=t&channel=c&id={message.message_id.decode()}&reason=no+customer"
        )
        assert await ask(app, "POST", path) == (200, {"count": 1})
        assert (await ask(app, "POST", path))[0] == 404
        await until(lambda: count(broker) == 1)
        _, document = await ask(app, "GET", "/deadletter?reason=no+customer")
        assert document["deadletters"][0]["attempts"] == 1
        await consumer.say(commands.finish(message.message_id))
        assert "E_FIN_FAILED" in await consumer.error()
        check_balances(broker)


async def test_refusals_name_what_is_wrong(autojump_clock: MockClock) -> None:
    """Nothing is replayed or discarded by a request that says too little."""
    async with nsqd_in_memory() as broker:
        app = create_app(broker)
        await with_letters(broker, app, 1)
        for path, status, text in (
            ("/deadletter/replay", 400, "MISSING_ARG_TOPIC"),
            ("/deadletter/replay?topic=t", 400, "MISSING_ARG_CHANNEL"),
            ("/deadletter/replay?topic=no&channel=c", 404, "TOPIC_NOT_FOUND"),
            ("/deadletter/replay?topic=t&channel=no", 404, "CHANNEL_NOT_FOUND"),
            ("/deadletter/replay?topic=t&channel=c&rate=0", 400, "INVALID_ARG_RATE"),
            ("/deadletter/replay?topic=t&channel=c&count=0", 400, "INVALID_ARG_COUNT"),
            ("/deadletter/replay?topic=t&channel=c&older_than=x", 400, "INVALID_ARG_OLDER_THAN"),
            ("/deadletter/discard", 400, "MISSING_ARG_TOPIC"),
            ("/deadletter/discard?topic=%20", 400, "INVALID_ARG_TOPIC"),
            ("/deadletter/add?topic=t&channel=c&id=1", 400, "INVALID_ARG_ID"),
        ):
            assert await ask(app, "POST", path) == (status, {"message": text})
        for query in ("limit=0", "limit=1001", "limit=1000&max_body=5000", "after=x"):
            assert (await ask(app, "GET", f"/deadletter?{query}"))[0] == 400
        assert count(broker) == 1


class _FullStore(SqliteLetters):
    """Takes nothing as long as it is full."""

    is_full = True

    def add(self, letters: Any) -> None:
        if self.is_full:
            raise LetterError("the disk is full")
        super().add(letters)


@ENGINES
async def test_without_a_place_messages_go_back(storage: str, autojump_clock: MockClock) -> None:
    """A disk that takes no letters loses no message: they are delivered on, and given up later."""
    store = _FullStore(SimulatedDisk(), ":memory:")
    async with nsqd_in_memory(storage=storage, letters=store) as broker:
        app = create_app(broker)
        assert (await ask(app, "PUT", "/policy/poison", POISON))[0] == 200
        broker.topic("t").channel("c")
        publish(broker, "t", b"x")
        consumer, [message] = await consume(broker, "t", "c", 1)
        for _ in range(3):
            await consumer.say(commands.requeue(message.message_id, 0))
            message = await consumer.message()
        assert message.attempts == 4
        assert broker.dead_letters.counts["refused"] == 2
        store.is_full = False
        await consumer.say(commands.requeue(message.message_id, 0))
        await until(lambda: count(broker) == 1)
        check_balances(broker)


async def test_an_ephemeral_topic_has_a_place_that_lasts(autojump_clock: MockClock) -> None:
    """Its dead-letter topic is no ephemeral one; a name that cannot be leaves the letter alone."""
    async with nsqd_in_memory() as broker:
        letters = broker.dead_letters
        for topic, template, expected in (
            ("t#ephemeral", "{topic}.dead", "t.dead"),
            ("t", "all.dead#ephemeral", "all.dead"),
            ("t", "t", ""),
            ("t" * 62, "{topic}.dead", ""),
        ):
            channel = broker.topic(topic).channel("c")
            channel.core.settings = AppliedSettings(dead_letter_topic=template)
            assert letters.dead_topic_of(channel) == expected


async def test_a_channel_that_is_gone_keeps_its_letters(autojump_clock: MockClock) -> None:
    """A replay that was asked for does not make it again, and does not lose them."""
    async with nsqd_in_memory() as broker:
        app = create_app(broker)
        await with_letters(broker, app, 2)
        broker.dead_letters.replays.rate = 1
        await broker.topics["t"].delete_channel("c").wait()
        assert await broker.dead_letters.replay(LetterFilter(topic="t"), 10, 100) == 2
        await trio.sleep(5)
        assert (count(broker), "c" in broker.topics["t"].channels) == (2, False)
        _, document = await ask(app, "GET", "/deadletter")
        assert {one["state"] for one in document["deadletters"]} == {"waiting"}


async def test_replays_keep_their_rate(autojump_clock: MockClock) -> None:
    """Ten a second: the thirtieth comes after three seconds at the earliest."""
    async with nsqd_in_memory() as broker:
        app = create_app(broker)
        await with_letters(broker, app, 30)
        began_s = trio.current_time()
        await ask(app, "POST", "/deadletter/replay?topic=t&channel=c&rate=10")
        await until(lambda: count(broker) == 0)
        assert 2.8 <= trio.current_time() - began_s <= 4.0


async def test_a_stop_brings_what_nobody_kept_back_to_the_queue(autojump_clock: MockClock) -> None:
    """What was given up when nsqd stopped is on the disk, in its channel."""

    class Slow(SqliteLetters):
        def add(self, letters: Any) -> None:
            raise LetterError("not now")

    disk = SimulatedDisk()
    store: DeadLetterStore = Slow(SimulatedDisk(), ":memory:")
    async with nsqd_in_memory(disk=disk, letters=store) as broker:
        app = create_app(broker)
        await ask(app, "PUT", "/policy/poison", {"topics": "*", "max_attempts": 1})
        broker.topic("t").channel("c")
        publish(broker, "t", b"x")
        consumer, [message] = await consume(broker, "t", "c", 1)
        await consumer.say(commands.requeue(message.message_id, 0))
        await consumer.message()
    async with nsqd_in_memory(disk=disk) as broker:
        assert await drained(broker, "c") == {b"x": 1}


@ENGINES
async def test_a_channel_keeps_its_pace_over_a_restart(
    storage: str, autojump_clock: MockClock
) -> None:
    """A replayed message that nobody has read stays in its channel alone over a restart."""
    disk = SimulatedDisk()
    store = SqliteLetters(SimulatedDisk(), ":memory:")
    async with nsqd_in_memory(disk=disk, storage=storage, letters=store) as broker:
        app = create_app(broker)
        await with_letters(broker, app, 2)
        if storage == "log":
            await ask(app, "POST", "/topic/pause?topic=t")
        await ask(app, "POST", "/deadletter/replay?topic=t&channel=c")
        await until(lambda: count(broker) == 0)
    async with nsqd_in_memory(disk=disk, storage=storage) as broker:
        broker.topics["t"].unpause()
        await trio.sleep(1)
        assert await drained(broker, "c") == dict.fromkeys(numbered(2), 1)
        assert not await drained(broker, "other")


@ENGINES
@pytest.mark.parametrize("reads", [False, True])
async def test_what_expires_becomes_a_letter(
    storage: str, reads: bool, autojump_clock: MockClock
) -> None:
    """Whether anybody reads or not; and a consumer of the dead-letter topic gets it, however old it
    is, although the policy is of that topic, too."""
    policy = {"topics": "t*", "message_ttl": "10s", "when_expired": "dead_letter"}
    async with nsqd_in_memory(storage=storage) as broker:
        app = create_app(broker)
        assert (await ask(app, "PUT", "/policy/late", policy))[0] == 200
        broker.topic("t").channel("c").pause()
        publish(broker, "t", *numbered(300))
        await until(lambda: broker.topics["t"].channels["c"].core.depth == 300)
        if reads:
            consumer, _ = await consume(broker, "t", "c", 0)
            await consumer.say(commands.ready(100))
        await trio.sleep(12)
        broker.topics["t"].channels["c"].unpause()
        await until(lambda: count(broker) == 300)
        status, document = await ask(app, "GET", "/deadletter?topic=t&reason=expired")
        assert (status, document["count"]) == (200, 300)
        letter = document["deadletters"][0]
        assert (letter["attempts"], letter["client"]) == (0, "")
        assert broker.topics["t"].channels["c"].core.dropped == {"dead_lettered": 300}
        broker.topics["t.dead"].channel("audit")
        await until(lambda: broker.topics["t.dead"].channels["audit"].core.depth == 300)
        await trio.sleep(20)
        assert broker.topics["t.dead"].channels["audit"].core.depth == 300
        check_balances(broker)


@ENGINES
async def test_what_expires_before_there_is_a_channel(
    storage: str, autojump_clock: MockClock
) -> None:
    """It waits, and becomes a letter in the channel that comes; nobody gets it."""
    policy = {"topics": "t", "message_ttl": "10s", "when_expired": "dead_letter"}
    async with nsqd_in_memory(storage=storage) as broker:
        app = create_app(broker)
        assert (await ask(app, "PUT", "/policy/late", policy))[0] == 200
        publish(broker, "t", *numbered(300))
        await trio.sleep(20)
        assert broker.topics["t"].core.depth == 300
        broker.topics["t"].channel("c")
        await until(lambda: count(broker) == 300)
        assert broker.topics["t"].channels["c"].core.dropped == {"dead_lettered": 300}
        assert not broker.topics["t"].core.dropped
        check_balances(broker)


@ENGINES
async def test_retried_messages_get_their_share(storage: str, autojump_clock: MockClock) -> None:
    """While fresh ones wait, on either engine; without the policy they would wait behind them."""
    async with nsqd_in_memory(storage=storage) as broker:
        app = create_app(broker)
        policy = {"topics": "t", "retry_share": 50}
        assert (await ask(app, "PUT", "/policy/retries", policy))[0] == 200
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(20))
        consumer, failed = await consume(broker, "t", "c", 20)
        await consumer.say(commands.ready(0))
        publish(broker, "t", *numbered(200))
        await until(lambda: broker.topics["t"].channels["c"].core.depth == 200)
        for message in failed:
            await consumer.say(commands.requeue(message.message_id, 0))
        await until(lambda: broker.topics["t"].channels["c"].core.depth == 220)
        attempts = []
        await consumer.say(commands.ready(1))
        for _ in range(30):
            message = await consumer.message()
            attempts.append(message.attempts)
            await finish(consumer, message)
        assert attempts.count(2) == 15
        check_balances(broker)
