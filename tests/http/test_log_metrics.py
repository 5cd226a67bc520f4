"""What /metrics says of topics with a log (trionsq.http.metrics, trionsq.storage.log.figures)."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.broker.support import Gate, publish
from tests.http.test_metrics import scrape
from trionsq.broker.logs import log_of
from trionsq.http.app import create_app
from trionsq.storage.log.node import LogNode
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.web import metrics as web_metrics
from trionsq.wire.bodies import ListBodies

LOG: dict[str, Any] = {"storage": "log", "durability": "always"}


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are not kept, so that each scrape sees what the test did."""
    monkeypatch.setattr(web_metrics, "_CACHED_S", 0.0)


async def test_engine_and_durability_show_for_each_topic() -> None:
    """Topics of all kinds have the row; only those with a log have the others."""
    async with nsqd_in_memory(storage="log", durability="interval") as broker:
        for name, storage in (("t", ""), ("u", "default"), ("e#ephemeral", "")):
            broker.topic(name, storage)
        seen = await scrape(create_app(broker))
        rows = {("t", "log", "interval"), ("u", "default", "memory")}
        for topic, storage, durability in rows | {("e#ephemeral", "default", "memory")}:
            labels = {"topic": topic, "storage": storage, "durability": durability}
            assert seen("nsqd_topic_storage", **labels) == 1
            segments = seen("nsqd_log_segments", topic=topic)
            assert (segments is not None) == (storage == "log")


async def test_what_is_not_safe_yet_shows() -> None:
    """Messages whose round is not written, then in `interval` bytes that no fsync has reached."""
    background = Gate()
    async with nsqd_in_memory(
        background=background, storage="log", durability="interval"
    ) as broker:
        app = create_app(broker)
        topic = broker.topic("t")
        await wait_all_tasks_blocked()
        background.shut()
        topic.publish(ListBodies([b"abc", b"de"]))
        seen = await scrape(app)
        assert seen("nsqd_log_unsafe_messages", topic="t") == 2
        assert seen("nsqd_log_unsafe_bytes", topic="t") == 205
        assert seen("nsqd_log_rounds_total", topic="t") == 0
        background.open()
        await wait_all_tasks_blocked()
        seen = await scrape(app)
        assert seen("nsqd_log_unsafe_messages", topic="t") == 0
        assert seen("nsqd_log_unsafe_bytes", topic="t") == 0
        assert seen("nsqd_log_rounds_total", topic="t") == 1
        unsynced = seen("nsqd_log_unsynced_bytes", topic="t")
        assert unsynced is not None
        assert 5 < unsynced < 200
        topic_log = log_of(topic)
        assert topic_log is not None
        topic_log.sync()
        await wait_all_tasks_blocked()
        seen = await scrape(app)
        assert seen("nsqd_log_unsynced_bytes", topic="t") == 0
        assert seen("nsqd_log_fsync_duration_seconds_count") == 1
        assert seen("nsqd_log_state_commits_total") == 1


async def test_the_size_follows_the_segments() -> None:
    """All files of the log count, and go from the sum when they go from the disk."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        app = create_app(broker)
        broker.topic("t")
        assert broker.logs.node is not None
        broker.logs.node.segment_bytes = 300
        topic = broker.topic("s")
        topic.channel("c")
        for count in (20, 1):
            for number in range(count):
                publish(broker, "s", b"%0100d" % number)
                await wait_all_tasks_blocked()
                files = [len(data) for name, data in disk.files().items() if "s.log." in name]
                seen = await scrape(app)
                assert seen("nsqd_log_segments", topic="s") == len(files)
                counted = seen("nsqd_log_disk_bytes", topic="s")
                assert counted is not None
                assert counted <= sum(files) < counted + 300  # the newest one has room
            await topic.channels["c"].empty().wait()
            await broker.logs.take_snapshots()
            await wait_all_tasks_blocked()
        assert len(files) == 2


async def test_refused_rounds_and_failed_commits_are_counted() -> None:
    """With what they had in them; a disk without any room shows as full."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        app = create_app(broker)
        topic = broker.topic("t")
        disk.fail(errno.EIO, forever=True)
        topic.publish(ListBodies([b"x", b"y"]))
        broker.topic("u")
        seen = await scrape(app)
        assert seen("nsqd_log_failed_rounds_total", topic="t") == 1
        assert seen("nsqd_log_refused_messages_total", topic="t") == 2
        assert (seen("nsqd_log_state_commit_failures_total") or 0) >= 1
        assert seen("nsqd_log_disk_full") == 0
        disk.heal()


async def test_a_full_disk_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as the reserve is given up, also in /ping; what is published then is refused."""
    async with nsqd_in_memory(**LOG) as broker:
        app = create_app(broker)
        topic = broker.topic("t")
        monkeypatch.setattr(LogNode, "is_full", True)
        with pytest.raises(Exception, match="the disk is full"):
            topic.publish(ListBodies([b"x"]))
        seen = await scrape(app)
        assert seen("nsqd_log_disk_full") == 1
        assert seen("nsqd_log_refused_messages_total", topic="t") == 1
        broker.topic("u")
        assert broker.health == "NOK - the disk is full: topics with a log take no messages"
        monkeypatch.undo()
        broker.topic("v")
        assert broker.health == "OK"
