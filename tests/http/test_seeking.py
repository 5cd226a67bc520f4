"""/channel/create with ``from``, and /channel/seek (trionsq.http.seeking, trionsq.broker.seeks)."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
import trio
from quart_trio import QuartTrio
from trio.testing import MockClock

from tests.broker.support import check_balances, consume, finish, publish
from trionsq.broker.broker import Broker
from trionsq.broker.runtime import Clock
from trionsq.http.app import create_app
from trionsq.storage.log.seeking import rfc3339
from trionsq.testing.memory import nsqd_in_memory

LOG: dict[str, Any] = {"storage": "log", "durability": "always"}
START_NS = 1_700_000_000_000_000_000


async def ask(app: QuartTrio, target: str) -> tuple[int, Any]:
    """Status and document of a POST, or the code of a refusal."""
    response = await app.test_client().post(target)
    data = await response.get_data()
    document: Any = json.loads(data) if data else None
    return response.status_code, document if response.status_code == 200 else document["message"]


async def seek(app: QuartTrio, to: str, channel: str = "c") -> tuple[int, Any]:
    return await ask(app, f"/channel/seek?topic=t&channel={channel}&to={quote(to)}")


async def create(app: QuartTrio, begin: str, channel: str = "n") -> tuple[int, Any]:
    return await ask(app, f"/channel/create?topic=t&channel={channel}&from={quote(begin)}")


async def publish_seconds(broker: Broker, count: int, **options: int) -> None:
    """Publish messages that are one second apart; segments have two."""
    node = broker.logs.ensure_node()
    node._segment_bytes = 500
    for number in range(count):
        publish(broker, "t", b"%0200d" % number, **options)
        await trio.sleep(1)


def numbers(messages: list[Any]) -> list[int]:
    return [int(message.body) for message in messages]


def at(seconds: float) -> str:
    return rfc3339(START_NS + int(seconds * 1e9))


POSITIONS = [
    ("beginning", 0),
    ("0", 0),
    ("7", 7),
    ("9", 9),
    (at(-1000), 0),
    (at(0), 0),
    (at(3), 3),
    (at(3.000000001), 4),
    (at(9), 9),
    ("2023-11-14T22:13:23.0Z", 3),
    ("2023-11-14T23:43:23.5+01:30", 4),
    ("2023-11-14T21:13:23-01:00", 3),
    ("10", 10),
    ("999999999999999999", 10),
    (at(1000), 10),
    ("end", 10),
]


@pytest.mark.parametrize(("position", "expected"), POSITIONS)
async def test_a_channel_begins_where_it_was_asked_to(
    position: str, expected: int, autojump_clock: MockClock
) -> None:
    """By name, sequence or time; a new one as well as one that goes back; the answer says where."""
    async with nsqd_in_memory(clock=Clock.from_trio(START_NS), **LOG) as broker:
        app = create_app(broker)
        broker.topic("t").channel("c")
        await publish_seconds(broker, 10)
        time = at(expected) if expected < 10 else None
        answer = 200, {"sequence": expected, "time": time}
        assert await create(app, position) == answer
        assert await seek(app, position) == answer
        publish(broker, "t", b"10")
        for channel in ("c", "n"):
            consumer, messages = await consume(broker, "t", channel, 11 - expected)
            assert numbers(messages) == list(range(expected, 11))
            await finish(consumer, *messages)
            core = broker.topics["t"].channels[channel].core
            assert core.replayed_count == 10 - expected
            assert core.depth == core.in_flight_count == 0
        check_balances(broker)
