"""Streams of server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from admin.watch.events import KEEP_ALIVE_S, LIFE_S, Events, TickStream, tick
from admin.watch.poller import IDLE_EVERY_S
from admin.watch.snapshot import Snapshot
from tests.admin.watch.fakes import FakeNode, Watched, always, channel, make, refuses, stats, topic
from trionsq.web.app import create_app


def watched(interval_s: float = 5.0) -> Watched:
    """Of a node that is up and one that is not."""
    said = stats(topic("t", 10, channel("c", 3, 10)))
    nodes = [FakeNode("up:1", always(said)), FakeNode("down:1", refuses("down:1"))]
    return make(nodes, interval_s)


@asynccontextmanager
async def running(given: Watched, streams_max: int = 256) -> AsyncIterator[Events]:
    """The poller's task and its streams."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(given.poller.run)
        yield Events(given.poller, streams_max=streams_max)
        nursery.cancel_scope.cancel()


def fields(event: bytes) -> dict[str, str]:
    """The fields of an event."""
    return dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))


async def test_a_tick_for_each_poll(autojump_clock: trio.testing.MockClock) -> None:
    """With the sequence as id and totals as one line of JSON."""
    async with running(watched()) as events, TickStream(events, 0) as stream:
        assert await anext(stream) == b":\n\n"
        first, second = fields(await anext(stream)), fields(await anext(stream))
        assert trio.current_time() == pytest.approx(5.0)
    assert (first["event"], first["id"], second["id"]) == ("tick", "1", "2")
    told: dict[str, Any] = json.loads(second["data"])
    assert (told["sequence"], told["depth"], told["clients"]) == (2, 3, 1)
    assert (told["nodes"], told["nodes_up"], told["topics"], told["channels"]) == (2, 1, 1, 1)
    assert told["problems"] == {"critical": 1, "warning": 0, "notice": 0}
    assert told["rate_in"] == 0.0
    assert len(second["data"]) < 400


async def test_a_page_is_not_told_what_it_shows(autojump_clock: trio.testing.MockClock) -> None:
    """``after`` is left out; a number of a former nsqadmin counts as none."""
    async with running(watched()) as events:
        await events.poller.current()
        for after, expected in ((0, "1"), (1, "2"), (1_000_000, "2")):
            async with TickStream(events, after) as stream:
                await anext(stream)
                assert fields(await anext(stream))["id"] == expected


async def test_comments_keep_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    """Polls are rarer than proxies wait: a comment comes each 15 s."""
    async with running(watched(interval_s=40.0)) as events, TickStream(events, 0) as stream:
        assert [(await anext(stream))[:5] for _ in range(5)] == [
            b":\n\n",
            b"event",
            b":\n\n",
            b":\n\n",
            b"event",
        ]
        assert trio.current_time() == pytest.approx(40.0)
        assert KEEP_ALIVE_S == 15.0


async def test_a_slow_reader_skips_ticks(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing is kept for it: it gets the newest."""
    async with running(watched()) as events, TickStream(events, 0) as stream:
        await anext(stream)
        assert fields(await anext(stream))["id"] == "1"
        await trio.sleep(52.0)
        assert fields(await anext(stream))["id"] == "11"


async def test_streams_are_viewers_and_no_longer(autojump_clock: trio.testing.MockClock) -> None:
    """Polls are frequent while a stream is open; once it is closed, also by cancelling, seldom."""
    given = watched()
    async with running(given) as events:
        with trio.move_on_after(100.0):
            async with TickStream(events, 0) as stream:
                assert (events.streams, given.poller.viewers) == (1, 1)
                async for _ in stream:
                    pass
        assert (events.streams, given.poller.viewers) == (0, 0)
        asked = given.cluster.fake.nodes["up:1"].asked
        assert asked >= 20
        await trio.sleep(100 * IDLE_EVERY_S)
        assert given.cluster.fake.nodes["up:1"].asked <= asked + 102


async def test_streams_end_at_shutdown(autojump_clock: trio.testing.MockClock) -> None:
    """At once, though no poll comes."""
    given = watched(interval_s=1000.0)
    async with running(given) as events, TickStream(events, 0) as stream:
        await anext(stream)
        await anext(stream)
        given.stopping.set()
        began_s = trio.current_time()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert trio.current_time() == began_s


async def test_streams_end_after_a_while(autojump_clock: trio.testing.MockClock) -> None:
    """Browsers connect again, and are asked again who they are."""
    async with running(watched()) as events, TickStream(events, 0) as stream:
        async for _ in stream:
            pass
        assert trio.current_time() == pytest.approx(LIFE_S, abs=KEEP_ALIVE_S)


async def test_the_number_of_streams_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """Beyond it 503 with Retry-After; one that came through at the same time ends at once."""
    async with running(watched(), streams_max=1) as events:
        app = create_app([("GET", "/events", events.stream)])
        async with TickStream(events, 0) as stream:
            await anext(stream)
            answer = await app.test_client().get("/events")
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
            async with TickStream(events, 0) as other:
                assert [event async for event in other] == []
            assert events.streams == 1
        assert events.streams == 0


def test_an_event_is_made_once_for_all() -> None:
    """The same bytes for each stream."""
    events = Events(watched().poller)
    snapshot = Snapshot(7, 1.0)
    assert events.tick(snapshot) is events.tick(snapshot)
    assert events.tick(snapshot) == tick(snapshot)
    assert b"id: 8\n" in events.tick(Snapshot(8, 2.0))
