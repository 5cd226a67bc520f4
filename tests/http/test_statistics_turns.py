"""Answers are made in turns: /stats, peeks, debug pages (trionsq.http, trionsq.broker.statistics).

Work is counted, not timed: rows and channels that are looked at between two turns of other tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, cast

import httpx2
import pytest
import trio
from trio.testing import MockClock

from tests.broker.statistics import document_of
from tests.http.conftest import StartBroker
from tests.http.meter import Meter, metered
from trionsq.broker import statistics as statistics_module
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.broker.statistics import ChannelRow, Row, StatsFilter, statistics
from trionsq.core.channel import ChannelState
from trionsq.core.latency import Latencies, MergedLatencies
from trionsq.core.peek import Page
from trionsq.http import peek
from trionsq.http.app import create_app
from trionsq.http.debug import broker_metrics
from trionsq.testing.conversation import Conversation
from trionsq.web import responses
from trionsq.web.responses import SharedDocuments
from trionsq.wire import commands

ROWS_MAX = 64
"""More than any turn may have."""


@pytest.fixture
def meter() -> Meter:
    return Meter()


@contextmanager
def with_channels(broker: Broker, count: int) -> Iterator[None]:
    """A topic with so many channels, which are copies of one: to make them all would take long."""
    topic = broker.topic("t")
    one = topic.channel("c0")
    one.core.latencies = Latencies(60.0, broker.clock.now_ns, broker.clock.now_s())
    for number in range(1, count):
        copied = copy(one)
        copied.name = f"c{number}"
        topic.channels[copied.name] = copied
    try:
        yield
    finally:
        topic.channels = {one.name: one}


@contextmanager
def client_of(broker: Broker) -> Iterator[httpx2.AsyncClient]:
    """A client of the API. quart's own holds a few pieces of an answer only."""
    transport = httpx2.ASGITransport(cast(Any, create_app(broker)))
    yield httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1")


def count_calls(patch: pytest.MonkeyPatch, meter: Meter, *names: str) -> None:
    """Have these functions of `trionsq.broker.statistics` tell of each call."""
    for name in names:
        original = getattr(statistics_module, name)

        def counted(*args: Any, original: Any = original) -> Any:
            meter.did()
            return original(*args)

        patch.setattr(statistics_module, name, counted)


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("count", [10, 10_000])
async def test_channels_are_shown_some_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, meter: Meter, count: int, form: str
) -> None:
    """Other tasks get their turn after a few channels, however many there are."""
    count_calls(monkeypatch, meter, "_channel_stats", "_client_stats")
    with with_channels(broker, count), client_of(broker) as client:
        async with metered(meter):
            response = await client.get(f"/stats?format={form}")
    body = response.content
    assert meter.total == count
    assert meter.most <= min(count, ROWS_MAX)
    assert int(response.headers["Content-Length"]) == len(body)
    if form == "json":
        (topic,) = json.loads(body)["topics"]
        names = [channel["channel_name"] for channel in topic["channels"]]
        assert names == sorted(f"c{number}" for number in range(count))
    else:
        assert body.count(b" re-q: ") == count


@pytest.mark.parametrize("count", [10, 3_000])
async def test_names_are_sorted_some_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """In parts, of which each is a turn's work."""
    parts: list[int] = []

    def counted(names: list[str]) -> list[str]:
        parts.append(len(names))
        return sorted(names)

    monkeypatch.setattr(statistics_module, "sorted", counted, raising=False)
    with with_channels(broker, count):
        document = await document_of(broker)
    names = [channel["channel_name"] for channel in document["topics"][0]["channels"]]
    assert names == sorted(names)
    assert sum(parts) == 1 + count
    assert max(parts) <= 1_000


@pytest.mark.parametrize("count", [10, 300])
async def test_clients_are_shown_some_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, meter: Meter, count: int
) -> None:
    """The clients of one channel, and producers, share the turns of rows."""
    for _ in range(count):
        talk = Conversation.begin(broker)
        await talk.subscribe("t", "c")
        await talk.say(commands.publish("t", b"x"))
        await talk.response()
    count_calls(monkeypatch, meter, "_channel_stats", "_client_stats")
    async with metered(meter):
        document = await document_of(broker)
    assert meter.total == 1 + 2 * count
    assert meter.most <= ROWS_MAX
    assert len(document["topics"][0]["channels"][0]["clients"]) == count
    assert len(document["producers"]) == count


@pytest.mark.parametrize("count", [10, 1_000])
async def test_latencies_are_merged_some_at_a_time(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, meter: Meter, count: int
) -> None:
    """Those of all channels of a topic are added a few at a time."""
    broker = await start_broker(NsqdOptions(e2e_processing_latency_percentile=(0.5,)))
    original = MergedLatencies.add_channel

    def counted(self: MergedLatencies, channel: Latencies, now_s: float) -> None:
        meter.did()
        original(self, channel, now_s)

    monkeypatch.setattr(MergedLatencies, "add_channel", counted)
    with with_channels(broker, count):
        async with metered(meter):
            await document_of(broker)
    assert meter.total == 2 * count
    assert meter.most <= 8


async def test_what_is_deleted_meanwhile_is_left_out(broker: Broker) -> None:
    """The document goes on with the channels that are left, and is whole."""
    seen: list[Row] = []
    with with_channels(broker, 200):
        async for row in statistics(broker, StatsFilter()):
            seen.append(row)
            if len(seen) == 100:
                for number in range(100, 200):
                    del broker.topics["t"].channels[f"c{number}"]
    names = {row.stats["channel_name"] for row in seen if isinstance(row, ChannelRow)}
    assert {f"c{number}" for number in range(100)} <= names
    assert len(names) < 200


async def test_pieces_are_those_of_the_whole(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the pieces are, the bytes are the same."""
    bodies = []
    with with_channels(broker, 50), client_of(broker) as client:
        for nbytes in (responses.PIECE_BYTES, 1):
            monkeypatch.setattr(responses, "PIECE_BYTES", nbytes)
            answer = await client.get("/stats?format=json&include_mem=false")
            bodies.append(answer.content)
    assert bodies[0] == bodies[1]


async def test_who_asks_for_the_same_at_once_gets_the_same(autojump_clock: MockClock) -> None:
    """Of many who ask while others are served, one makes the document for all."""
    documents: SharedDocuments[int] = SharedDocuments(1)
    made: list[int] = []

    async def make() -> int:
        await trio.sleep(1)
        made.append(len(made))
        return made[-1]

    got: list[int] = []

    async def ask(at_s: float) -> None:
        await trio.sleep(at_s)
        got.append(await documents.get("key", make))

    async with trio.open_nursery() as nursery:
        for at_s in (0, 0.1, 0.2, 0.3, 0.9, 1.1):
            nursery.start_soon(ask, at_s)
    # The first was begun at once; four waited for the second; the last came after it was begun.
    assert got == [0, 1, 1, 1, 1, 2]


async def test_who_gives_up_leaves_the_document_to_the_next(autojump_clock: MockClock) -> None:
    """If whoever makes a document is cancelled, one of those who wait for it makes it."""
    documents: SharedDocuments[str] = SharedDocuments(1)
    got: list[str] = []

    async def make() -> str:
        await trio.sleep(1)
        return "made"

    async def ask(limit_s: float) -> None:
        with trio.move_on_after(limit_s):
            got.append(await documents.get("key", make))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(documents.get, "other", make)
        await trio.sleep(0.5)
        for limit_s in (0.1, 1.0, 9.0, 9.0):
            nursery.start_soon(ask, limit_s)
            await trio.sleep(0.01)
    assert got == ["made", "made"]


async def test_a_failure_is_not_shared() -> None:
    """Each who asks learns of its own failure; nobody waits for ever."""
    documents: SharedDocuments[str] = SharedDocuments(1)
    failures: list[str] = []

    async def fail() -> str:
        await trio.lowlevel.checkpoint()
        raise ValueError("no")

    async def ask() -> None:
        try:
            await documents.get("key", fail)
        except ValueError as error:
            failures.append(str(error))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert failures == ["no"] * 3


@pytest.mark.parametrize("count", [10, 10_000])
async def test_consumers_are_peeked_at_some_at_a_time(meter: Meter, count: int) -> None:
    """A look for messages in flight gives other tasks their turn after some consumers."""

    class Holder:
        @property
        def in_flight(self) -> dict[bytes, object]:
            meter.did()
            return {}

    class InFlight:
        def walk_holders(self) -> Iterator[Holder]:
            return (Holder() for _ in range(count))

    class Core:
        in_flight = InFlight()

    async with metered(meter):
        await peek._offer_in_flight(cast(Any, Core()), 0, Page(10, 100))
    assert meter.total == count
    assert meter.most <= 1_000


@pytest.mark.parametrize("count", [10, 10_000])
async def test_sums_of_debug_pages_are_made_some_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, meter: Meter, count: int
) -> None:
    """/debug/loop adds up what channels hold, and gives other tasks their turn meanwhile."""

    def held(core: ChannelState) -> int:
        meter.did()
        return 1

    monkeypatch.setattr(ChannelState, "held", property(held))
    with with_channels(broker, count):
        async with metered(meter):
            figures = await broker_metrics(broker, 10, 0.0)
        assert figures["messages_held_in_memory_at_channels"] == count
    assert meter.most <= 200
