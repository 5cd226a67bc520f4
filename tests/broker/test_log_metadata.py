"""nsqd.dat and the topics that have a log: which of the two leads."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.broker.support import publish
from trionsq.storage.log.metadata_mark import MetadataMark
from trionsq.storage.metadata import ChannelRecord, TopicRecord, load_metadata, save_metadata
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.logstate import open_state
from trionsq.testing.memory import nsqd_in_memory

LOG: dict[str, Any] = {"storage": "log", "durability": "always"}


async def served() -> SimulatedDisk:
    """A disk with a log topic and its channels a and b."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        for name in ("a", "b"):
            broker.topic("t").channel(name)
        publish(broker, "t", b"x")
        await wait_all_tasks_blocked()
    return disk


async def test_a_deleted_channel_does_not_come_back_by_an_older_file() -> None:
    """The state knows of the deletion, the file of before the kill does not."""
    disk = await served()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        disk.fail(5, forever=True, name="nsqd.dat*")
        await broker.topics["t"].delete_channel("b").wait()
        assert await broker.logs.commit() is None
        killed = disk.after_kill()
        disk.heal()
    assert [one.name for one in load_metadata(killed)[0].channels] == ["a", "b"]
    async with nsqd_in_memory(disk=killed, **LOG) as broker:
        assert list(broker.topics["t"].channels) == ["a"]


async def test_what_the_original_wrote_is_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    """Its new channels and pauses; a channel that it has not got stays, and is named."""
    disk = await served()
    channels = (ChannelRecord("a", True), ChannelRecord("new"))
    save_metadata(disk, [TopicRecord("t", True, channels), TopicRecord("other")])
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        topic = broker.topics["t"]
        paused = {name: channel.core.paused for name, channel in topic.channels.items()}
        assert paused == {"a": True, "b": False, "new": False}
        assert topic.core.paused
        assert broker.topics["other"].storage == "default"
        assert topic.channels["b"].core.depth == 1
        await broker.logs.take_snapshots()
        killed = disk.after_kill()
    assert "of another nsqd, lacks t:b, which stays" in caplog.text
    async with nsqd_in_memory(disk=killed, **LOG) as broker:
        topic = broker.topics["t"]
        assert topic.core.paused
        assert topic.channels["a"].core.paused


async def test_a_topic_that_the_original_has_not_got_stays_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those that it has got are not, nor is any when the file is ours."""
    disk = await served()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        broker.topic("gone")
    assert "of another nsqd" not in caplog.text
    channels = (ChannelRecord("a", True), ChannelRecord("b"))
    save_metadata(disk, [TopicRecord("t", False, channels)])
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        assert broker.topics.keys() == {"t", "gone"}
    lacking = [one.getMessage() for one in caplog.records if "of another nsqd" in one.getMessage()]
    assert lacking == ["NSQ: nsqd.dat, of another nsqd, lacks gone, which stays"]


async def test_a_crash_at_any_operation_of_a_save_leaves_a_file_of_ours() -> None:
    """The old and the new one are both known, also if a write has failed before."""
    disk = await served()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        images = [disk.after_kill()]
        perform = disk._perform

        def note(*arguments: Any, **named: Any) -> Any:
            images.append(disk.after_kill())
            return perform(*arguments, **named)

        disk.fail(5, name="nsqd.dat*")
        broker.topic("t").channel("c")
        await wait_all_tasks_blocked()
        disk._perform = note  # type: ignore[method-assign]
        for name in ("d", "e"):
            broker.topic("t").channel(name)
            await broker.save_metadata()
        disk._perform = perform  # type: ignore[method-assign]
    assert len(images) > 8
    for image in images:
        state = open_state(image)
        assert MetadataMark(state, state.load().meta).is_ours(image)
