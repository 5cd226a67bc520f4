"""Peeking at topics with a log and their channels (trionsq.storage.log.peek)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from quart_trio import QuartTrio
from trio.testing import wait_all_tasks_blocked

from tests.broker.support import numbered, publish
from tests.http.test_peek import ask, shown, text
from trionsq.broker.broker import Broker
from trionsq.http.app import create_app
from trionsq.storage.log import held
from trionsq.storage.log import peek as log_peek
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands


@asynccontextmanager
async def nsqd(disk: SimulatedDisk) -> AsyncIterator[tuple[Broker, QuartTrio]]:
    """An nsqd whose topics get logs, with small segments, and its HTTP API."""
    async with nsqd_in_memory(disk=disk, storage="log", durability="always") as broker:
        if broker.logs.node is None:
            broker.topic("first")
        assert broker.logs.node is not None
        broker.logs.node.segment_bytes = 300
        yield broker, create_app(broker)


async def look(app: QuartTrio, **parameters: object) -> dict[str, Any]:
    """The document of /channel/peek for the channel c of the topic t."""
    status, document = await ask(app, "/channel/peek", channel="c", **parameters)
    assert status == 200, document
    return document


async def fill(broker: Broker, count: int, *, first: int = 0) -> None:
    """Publish numbered messages, three in a record."""
    broker.topic("t")
    bodies = numbered(first + count)[first:]
    for at in range(0, count, 3):
        publish(broker, "t", *bodies[at : at + 3])
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("kind", ["topic", "channel"])
async def test_pages_of_what_is_on_disk_and_what_is_cached(kind: str) -> None:
    """Any offset shows its run of messages, over segments, and where each is; nothing is taken."""
    disk = SimulatedDisk()
    async with nsqd(disk) as (broker, _):
        if kind == "channel":
            broker.topic("t").channel("c")
        await fill(broker, 60)
    async with nsqd(disk) as (broker, app):
        await fill(broker, 30, first=60)
        target = {"target": "/topic/peek"} if kind == "topic" else {"target": "/channel/peek"}
        more = {} if kind == "topic" else {"channel": "c"}
        expected = text(numbered(90))
        for offset, limit in ((0, 10), (1, 70), (59, 2), (60, 1), (89, 5), (90, 1)):
            _, page = await ask(app, **target, offset=offset, limit=limit, **more)
            assert shown(page) == expected[offset : offset + limit]
            assert page["more"] is (offset + limit < 90)
            places = ["disk"] * 60 + ["memory"] * 30
            assert shown(page, "where") == places[offset : offset + limit]
            assert page["trouble"] is None
            assert page["counts"]["queued"] == 90
            assert page["counts"]["disk"] == 60
            assert "in turn" in page["order"]
        core = broker.topics["t"].core if kind == "topic" else broker.topics["t"].channels["c"].core
        assert core.depth == 90


async def test_returned_messages_come_first_with_their_attempts() -> None:
    """Those of before the start are ranges, which are skipped without being read."""
    disk = SimulatedDisk()
    async with nsqd(disk) as (broker, _):
        broker.topic("t").channel("c")
        await fill(broker, 30)
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=12)
        await consumer.messages(12)
    async with nsqd(disk) as (_, app):
        page = await look(app, limit=30)
        assert shown(page) == text(numbered(30))
        assert shown(page, "attempts") == [1] * 12 + [0] * 18
        page = await look(app, offset=7, limit=8)
        assert shown(page) == text(numbered(30)[7:15])


async def test_deferred_messages_are_shown_by_due_time_alone() -> None:
    """In the order in which they are due, from chunks and from what is newer; none is queued."""
    disk = SimulatedDisk()
    minutes = [5, 1, 4, 2, 3, 9, 7, 8, 6]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held, "_CHUNK_RANGES", 3)
        async with nsqd(disk) as (broker, _):
            broker.topic("t").channel("c")
            for one in minutes[:5]:
                publish(broker, "t", b"%d" % one, defer_ms=one * 60_000)
            await wait_all_tasks_blocked()
        async with nsqd(disk) as (broker, app):
            for one in minutes[5:]:
                publish(broker, "t", b"%d" % one, defer_ms=one * 60_000)
                publish(broker, "t", b"now")
            await wait_all_tasks_blocked()
            page = await look(app, state="deferred")
            assert shown(page) == list("123456789")
            assert page["more"] is False
            page = await look(app, state="deferred", offset=3, limit=4)
            assert (shown(page), page["more"]) == (list("4567"), True)
            assert [round(due_s / 60) for due_s in shown(page, "due_in_seconds")] == [4, 5, 6, 7]
            for offset in range(5):
                page = await look(app, offset=offset)
                assert shown(page) == ["now"] * (4 - offset)


async def test_a_run_with_one_delay_is_one_range() -> None:
    """An offset may lie within it."""
    async with nsqd(SimulatedDisk()) as (broker, app):
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(9), defer_ms=60_000)
        await wait_all_tasks_blocked()
        page = await look(app, state="deferred", offset=4, limit=3)
        assert (shown(page), page["more"]) == (text(numbered(9)[4:7]), True)


async def test_deferred_messages_of_a_topic_are_queued_there() -> None:
    """Without a channel they wait with the others, and have their due times."""
    async with nsqd(SimulatedDisk()) as (broker, app):
        publish(broker, "t", b"late", defer_ms=90_000)
        publish(broker, "t", b"now")
        _, page = await ask(app, "/topic/peek")
        assert shown(page) == ["late", "now"]
        late, now = page["messages"]
        assert (round(late["due_in_seconds"] / 10), "due" in now) == (9, False)


async def test_what_was_emptied_is_not_shown() -> None:
    """Nor does it count for offsets."""
    disk = SimulatedDisk()
    async with nsqd(disk) as (broker, app):
        await fill(broker, 9)
        await broker.topics["t"].empty().wait()
        await fill(broker, 12, first=9)
        _, page = await ask(app, "/topic/peek", offset=2, limit=20)
        assert shown(page) == text(numbered(21)[11:])


async def test_damage_costs_a_record_and_is_told() -> None:
    """The rest is shown; peeking makes no fault of it, reading does."""
    disk = SimulatedDisk()
    async with nsqd(disk) as (broker, _):
        await fill(broker, 30)
    names = sorted(name for name in disk.files() if name.startswith("t.log."))
    data = disk.files()[names[2]]
    disk.write_file(names[2], data[:-5] + b"?" + data[-4:])
    async with nsqd(disk) as (broker, app):
        _, page = await ask(app, "/topic/peek", limit=100)
        assert len(page["messages"]) == 27
        assert page["trouble"].startswith(f"{names[2]}: bytes ")
        assert broker.health == "OK"


async def test_a_missing_segment_is_told() -> None:
    """After looking again, in case that it was only finished meanwhile."""
    disk = SimulatedDisk()
    async with nsqd(disk) as (broker, app):
        await fill(broker, 30)
        name = min(name for name in disk.files() if name.startswith("t.log."))
        disk.unlink(name)
        _, page = await ask(app, "/topic/peek")
        assert page["trouble"] == f"{name}: No such file or directory"


async def test_a_disk_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page ends there."""
    disk = SimulatedDisk()
    async with nsqd(disk) as (broker, app):
        await fill(broker, 30)
        disk.fail(5, forever=True, only=("read",))
        _, page = await ask(app, "/topic/peek")
        assert page["messages"] == []
        assert "Input/output error" in page["trouble"]
        disk.heal()


async def test_far_offsets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they can only be found by reading: with deferred messages among the others."""
    monkeypatch.setattr(log_peek, "MAX_SCANNED_BYTES", 50)
    monkeypatch.setattr(log_peek, "_BLOCK_BYTES", 300)
    async with nsqd(SimulatedDisk()) as (broker, app):
        broker.topic("t").channel("c")
        await fill(broker, 60)
        assert shown(await look(app, offset=50, limit=2)) == text(numbered(60)[50:52])
        publish(broker, "t", b"late", defer_ms=90_000)
        await wait_all_tasks_blocked()
        status, document = await ask(app, "/channel/peek", channel="c", offset=50)
        assert (status, document["message"]) == (400, "OFFSET_TOO_FAR")


async def test_a_topic_deleted_during_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is that it is not there."""
    async with nsqd(SimulatedDisk()) as (broker, app):
        await fill(broker, 30)
        read = log_peek.LogView.read

        def delete_and_read(self: log_peek.LogView, *arguments: Any) -> None:
            trio.from_thread.run_sync(broker.delete_topic, "t")
            read(self, *arguments)

        monkeypatch.setattr(log_peek.LogView, "read", delete_and_read)
        assert await ask(app, "/topic/peek") == (404, {"message": "TOPIC_NOT_FOUND"})


async def test_pages_of_what_came_back() -> None:
    """An offset within a run of returned messages shows its rest, and then the others, once."""
    disk = SimulatedDisk()
    async with nsqd(disk) as (broker, _):
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(6))
        await fill(broker, 9, first=6)
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=5)
        await consumer.messages(5)
        await consumer.say(commands.ready(0))
    async with nsqd(disk) as (_, app):
        for offset in range(16):
            page = await look(app, offset=offset, limit=20)
            assert shown(page) == text(numbered(15)[offset:])


async def test_messages_in_flight_of_a_log() -> None:
    """They are in memory, as those of the other engine."""
    async with nsqd(SimulatedDisk()) as (broker, app):
        broker.topic("t").channel("c")
        await fill(broker, 6)
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=2)
        await consumer.messages(2)
        await consumer.say(commands.ready(0))
        page = await look(app, state="in_flight")
        assert shown(page) == text(numbered(6)[:2])
        assert shown(await look(app)) == text(numbered(6)[2:])
