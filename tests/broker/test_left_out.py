"""drop_newest on a log: what a full channel does not get stays in the log, and is passed by."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from tests.broker.support import check_balances, consume, finish, numbered, publish
from tests.broker.test_dead_letters import ask, until
from trionsq.core.bounds import LeftOut
from trionsq.http.app import create_app
from trionsq.testing.memory import nsqd_in_memory

POLICY = {"topics": "t", "channels": "full", "max_messages": 10, "when_full": "drop_newest"}


async def test_a_full_channel_passes_by_what_comes(autojump_clock: MockClock) -> None:
    """It keeps the first ones and gets those that come when there is room again, and none between;
    another channel gets all."""
    async with nsqd_in_memory(storage="log") as broker:
        app = create_app(broker)
        assert (await ask(app, "PUT", "/policy/p", POLICY))[0] == 200
        for name in ("full", "other"):
            broker.topic("t").channel(name)
        full, other = (broker.topics["t"].channels[name].core for name in ("full", "other"))
        for first in range(0, 40, 4):
            publish(broker, "t", *[b"%08d" % number for number in range(first, first + 4)])
            await until(lambda first=first: other.depth == first + 4)  # type: ignore[misc]
        assert (full.depth, full.dropped["max_messages"]) == (10, 30)
        check_balances(broker)
        consumer, messages = await consume(broker, "t", "full", 10)
        assert [int(message.body) for message in messages] == list(range(10))
        await finish(consumer, *messages)
        await trio.sleep(5)
        assert full.in_flight_count == 0
        publish(broker, "t", *numbered(3))
        again = [await consumer.message() for _ in range(3)]
        assert sorted(int(message.body) for message in again) == [0, 1, 2]
        await finish(consumer, *again)
        await trio.sleep(5)
        assert (full.depth, full.in_flight_count) == (0, 0)
        consumer.close()
        reader, rest = await consume(broker, "t", "other", 43)
        await finish(reader, *rest)
        reader.close()
        check_balances(broker)


async def test_an_emptied_channel_forgets_what_it_left_out(autojump_clock: MockClock) -> None:
    """Its depth is that of what comes then."""
    async with nsqd_in_memory(storage="log") as broker:
        app = create_app(broker)
        assert (await ask(app, "PUT", "/policy/p", POLICY))[0] == 200
        full = broker.topic("t").channel("full").core
        publish(broker, "t", *numbered(15))
        await until(lambda: full.depth == 10)
        assert (await ask(app, "POST", "/channel/empty?topic=t&channel=full"))[0] == 200
        assert full.depth == 0
        publish(broker, "t", *numbered(7))
        await until(lambda: full.depth == 7)
        consumer, messages = await consume(broker, "t", "full", 7)
        await finish(consumer, *messages)
        consumer.close()
        check_balances(broker)


def test_ranges_are_joined_and_forgotten() -> None:
    """What follows each other is one range; what was passed costs nothing any more."""
    left = LeftOut()
    left.add(5, 8)
    left.add(8, 10)
    left.add(20, 21)
    assert (left.count, len(left._firsts)) == (6, 2)
    assert [number for number in range(25) if left.has(number)] == [5, 6, 7, 8, 9, 20]
    left.passed(9, 4)
    assert (left.count, left.has(9), left.has(20)) == (2, True, True)
    left.passed(10, 1)
    assert (left.count, len(left._firsts)) == (1, 1)
    left.passed(21, 1)
    assert (left.count, left._firsts, left._ends) == (0, [], [])
