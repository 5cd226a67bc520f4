"""A disk that refuses, fails or is slow: what publishers, channels and /ping see of it."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import (
    Gate,
    check_balances,
    consume,
    finish,
    full_disk,
    is_stuck,
    numbered,
    publish,
)
from trionsq.broker.broker import Broker
from trionsq.broker.topic import PublishRefused
from trionsq.storage.metadata import load_metadata, save_metadata
from trionsq.storage.sync_job import SyncJob
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

COMMANDS = {
    "PUB": commands.publish("t", b"new"),
    "MPUB": commands.publish_many("t", [b"new", b"newer"]),
    "DPUB": commands.publish_deferred("t", 5000, b"new"),
}


# Refusals


@pytest.mark.parametrize("mem", [0, 2])
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_publish_that_the_disk_refuses(
    command: str, mem: int, autojump_clock: MockClock
) -> None:
    """The error comes instead of OK, and nothing is stored, not even for after a restart."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=mem) as broker:
        publish(broker, "t", *numbered(4))
        disk.fail(errno.ENOSPC, forever=True, only=["write", "create"], name="t.*")
        publisher = Conversation.begin(broker)
        await publisher.say(COMMANDS[command])
        assert (await publisher.error()).startswith(f"E_{command}_FAILED {command} failed ")
        assert await publisher.end() == []
        assert broker.topics["t"].core.message_count == 4
        assert broker.health.startswith("NOK - /simulated/t.diskqueue.")
        assert disk.faults["write"] + disk.faults["create"]
        disk.heal()
        await trio.sleep(2)
        assert broker.health == "OK"
    async with nsqd_in_memory(disk=disk) as broker:
        consumer, messages = await consume(broker, "t", "c", 4)
        assert sorted(message.body for message in messages) == numbered(4)
        await consumer.silence(50)


async def test_health_recovers_by_itself(autojump_clock: MockClock) -> None:
    """Without anything published: the disk is tried again, first for the room that was missing."""
    disk = SimulatedDisk(capacity=4096)
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        await wait_all_tasks_blocked()
        with pytest.raises(PublishRefused, match="No space left"):
            publish(broker, "t", b"x" * 5000)
        await trio.sleep(10)
        assert broker.health.startswith("NOK - ")
        disk.capacity = None
        await trio.sleep(2)
        assert broker.health == "OK"
    assert disk.faults["write"]


# Fan-out


async def test_a_fan_out_that_the_disk_refuses_keeps_the_batch(
    autojump_clock: MockClock,
) -> None:
    """/ping is red; with memory and disk full publishers are refused; nothing is lost.

    When the disk takes data again all goes on by itself, each message to each channel once.
    """
    disk = full_disk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=3) as broker:
        quick = Conversation.begin(broker)
        await quick.subscribe("t", "quick", ready=100)
        topic = broker.topic("t")
        topic.channel("slow")
        taken: list[bytes] = []
        for body in numbered(20):
            try:
                publish(broker, "t", body)
            except PublishRefused:
                break
            taken.append(body)
            await wait_all_tasks_blocked()
        assert is_stuck(topic)
        assert 6 <= len(taken) <= 7
        assert broker.health.startswith("NOK - /simulated/t")
        await trio.sleep(20.5)
        assert is_stuck(topic)
        assert disk.faults["create"]
        disk.heal()
        await trio.sleep(3)
        assert (is_stuck(topic), topic.core.depth, broker.health) == (False, 0, "OK")
        assert sorted(m.body for m in await quick.messages(len(taken))) == taken
        _, messages = await consume(broker, "t", "slow", len(taken))
        assert sorted(message.body for message in messages) == taken
        await quick.silence(1)
        check_balances(broker)


async def test_a_stuck_fan_out_is_finished_after_a_restart(autojump_clock: MockClock) -> None:
    """The channel that had the message does not get it again, the one that lacked it does."""
    disk = full_disk("t:slow")
    async with nsqd_in_memory(disk=disk, mem_queue_size=2) as broker:
        quick = Conversation.begin(broker)
        await quick.subscribe("t", "quick", ready=100)
        topic = broker.topic("t")
        topic.channel("slow")
        for body in numbered(6):
            publish(broker, "t", body)
            await wait_all_tasks_blocked()
        assert is_stuck(topic)
        await finish(quick, *await quick.messages(3))
        disk.heal()
    assert disk.faults["create"]
    assert broker.unsaved == []
    async with nsqd_in_memory(disk=disk, mem_queue_size=2) as broker:
        _, slow = await consume(broker, "t", "slow", 6)
        quick, rest = await consume(broker, "t", "quick", 3)
        assert sorted(message.body for message in slow) == numbered(6)
        assert sorted(message.body for message in rest) == numbered(6)[3:]
        await quick.silence(50)


# A slow disk


async def until_behind(broker: Broker, gate: Gate, count_max: int = 20) -> list[bytes]:
    """Publish one by one with a disk that makes nothing durable, until one would have to wait."""
    gate.shut()
    topic = broker.topic("t")
    taken: list[bytes] = []
    for body in numbered(count_max):
        if topic.should_wait(1):
            break
        publish(broker, "t", body)
        taken.append(body)
        await wait_all_tasks_blocked()
    assert len(taken) < count_max
    assert gate.held_up
    return taken


@pytest.mark.parametrize("command", COMMANDS)
async def test_publishers_wait_while_a_sync_is_under_way(
    command: str, autojump_clock: MockClock
) -> None:
    """They are neither refused nor answered, and go on when it is done."""
    gate = Gate()
    async with nsqd_in_memory(background=gate, mem_queue_size=0, sync_every=2) as broker:
        taken = await until_behind(broker, gate)
        publisher = Conversation.begin(broker)
        await publisher.say(COMMANDS[command], COMMANDS[command])
        await publisher.silence(20)
        assert broker.health == "OK"
        gate.open()
        await publisher.response()
        await publisher.response()
        extra = 4 if command == "MPUB" else 2
        assert broker.topics["t"].core.depth == len(taken) + extra


@pytest.mark.parametrize("how", ["sync", "consume", "delete", "empty"])
async def test_publishers_wait_for_a_channel_that_is_behind(
    how: str, autojump_clock: MockClock
) -> None:
    """Whatever ends the stand-still, they go on: none of them sleeps on."""
    gate = Gate()
    async with nsqd_in_memory(background=gate, mem_queue_size=2, sync_every=1) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c")
        channel = broker.topic("t").channels["c"]
        taken = await until_behind(broker, gate)
        assert channel.core.store.backend.behind
        assert is_stuck(broker.topics["t"])
        publisher = Conversation.begin(broker)
        await publisher.say(commands.publish_many("t", [b"a", b"b", b"c"]))
        await publisher.silence(20)
        match how:
            case "sync":
                gate.open()
            case "consume":
                await consumer.say(commands.ready(100))
            case "delete":
                broker.topics["t"].delete_channel("c")
            case "empty":
                broker.topics["t"].empty()
        await publisher.response()
        if how == "sync":
            _, messages = await consume(broker, "t", "c", len(taken) + 3)
            assert len({message.message_id for message in messages}) == len(messages)
        check_balances(broker)
        gate.open()


@pytest.mark.parametrize("of_channel", [False, True])
async def test_publishers_that_wait_hear_of_the_end_of_the_topic(
    of_channel: bool, autojump_clock: MockClock
) -> None:
    """They get an error when it is deleted, and the broker can stop."""
    gate = Gate()
    async with nsqd_in_memory(
        background=gate, mem_queue_size=2 if of_channel else 0, sync_every=1
    ) as broker:
        topic = broker.topic("t")
        if of_channel:
            topic.channel("c")
        await until_behind(broker, gate)
        publisher = Conversation.begin(broker)
        await publisher.say(commands.publish_many("t", [b"a", b"b", b"c"]))
        await publisher.silence(5)
        broker.delete_topic("t")
        assert await publisher.error() == "E_MPUB_FAILED MPUB failed exiting"
        gate.open()


async def test_publishers_that_wait_hear_of_a_sync_that_failed(autojump_clock: MockClock) -> None:
    """They are refused like those that come later, until a sync succeeds."""
    gate, disk = Gate(), SimulatedDisk()
    async with nsqd_in_memory(disk=disk, background=gate, mem_queue_size=0, sync_every=1) as broker:
        taken = await until_behind(broker, gate)
        publisher = Conversation.begin(broker)
        await publisher.say(commands.publish("t", b"x"))
        await publisher.silence(5)
        disk.fail(errno.EIO, forever=True, only=["sync"], name="t.*")
        gate.open()
        assert (await publisher.error()).startswith("E_PUB_FAILED PUB failed ")
        assert disk.faults["sync"]
        assert broker.health.startswith("NOK - ")
        disk.heal()
        await trio.sleep(2)
        assert broker.health == "OK"
        publish(broker, "t", b"y")
        _, messages = await consume(broker, "t", "c", len(taken) + 1)
        assert sorted(m.body for m in messages) == sorted([*taken, b"y"])


# Defects


async def test_a_message_that_is_due_in_centuries(autojump_clock: MockClock) -> None:
    """The longest delay that options allow is stored: after a restart it is still waited for."""
    disk, delay_ms = SimulatedDisk(), 8_999_999_999_999
    options: dict[str, Any] = {"mem_queue_size": 0, "max_req_timeout_ns": 2_500_000 * 3600 * 10**9}
    async with nsqd_in_memory(disk=disk, **options) as broker:
        publisher = Conversation.begin(broker)
        await publisher.say(b"DPUB t %d\n\x00\x00\x00\x05later" % delay_ms)
        await publisher.response()
        await trio.sleep(5)
        assert broker.health == "OK"
    assert broker.unsaved == []
    async with nsqd_in_memory(disk=disk, **options) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        await consumer.silence(5)
        core = broker.topics["t"].channels["c"].core
        assert (core.depth, core.deferred_count) == (0, 1)


async def test_a_defect_in_a_disk_job_costs_its_queue(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers to that queue are refused with the reason, /ping shows it, all else goes on; and
    so does the queue when the defect has gone."""

    def broken(job: SyncJob) -> None:
        raise TypeError("a defect")

    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0, sync_every=1) as broker:
        with monkeypatch.context() as patch:
            patch.setattr(SyncJob, "run", broken)
            publish(broker, "t", b"a")
            await trio.sleep(5)
            assert broker.health.startswith("NOK - a defect of nsqd")
            with pytest.raises(PublishRefused, match="a defect of nsqd"):
                publish(broker, "t", b"b")
            assert broker.folder.background.defects.count
        await trio.sleep(5)
        assert broker.health == "OK"
        publish(broker, "t", b"c")
        _, messages = await consume(broker, "t", "c", 2)
        assert [message.body for message in messages] == [b"a", b"c"]
    assert broker.unsaved == []


# Metadata


@pytest.mark.parametrize("failing_s", [3, 100])
@pytest.mark.parametrize("name", ["nsqd.dat", "trionsq.dat"])
async def test_metadata_that_can_not_be_written_at_the_start(
    name: str, failing_s: float, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """nsqd serves; /ping is red until they are written, which happens by itself."""
    caplog.set_level(logging.ERROR, "trionsq")
    disk = SimulatedDisk()
    disk.fail(errno.EIO, forever=True, name=f"{name}*.tmp")
    async with nsqd_in_memory(disk=disk) as broker:
        await trio.sleep(failing_s)
        assert broker.health == f"NOK - /simulated/{name}: Input/output error"
        assert [record.getMessage() for record in caplog.records] == [
            f"NSQ: failed to persist metadata - /simulated/{name}: Input/output error"
        ]
        publish(broker, "t", b"served")
        await consume(broker, "t", "c", 1)
        disk.heal()
        await trio.sleep(2)
        assert broker.health == "OK"
        assert name in disk.files()
    assert disk.faults.total()


async def test_metadata_that_can_not_be_written_later(autojump_clock: MockClock) -> None:
    """A new topic, or a pause that the operator was told of, is on disk as soon as that goes."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk) as broker:
        await wait_all_tasks_blocked()
        disk.fail(errno.ENOSPC, forever=True, only=["write"], name="nsqd.dat*")
        broker.topic("t")
        await trio.sleep(3)
        assert broker.health.startswith("NOK - /simulated/nsqd.dat")
        assert b'"t"' not in disk.files()["nsqd.dat"]
        disk.heal()
        await trio.sleep(2)
        assert broker.health == "OK"
        assert b'"name":"t","paused":false' in disk.files()["nsqd.dat"]
        disk.fail(errno.ENOSPC, only=["write"], name="nsqd.dat*")
        broker.topics["t"].pause()
        await broker.save_metadata()
        assert broker.health != "OK"
        await trio.sleep(2)
        assert broker.health == "OK"
        assert b'"name":"t","paused":true' in disk.files()["nsqd.dat"]
    assert disk.faults["write"] > 1


async def test_a_cancelled_write_of_metadata_does_not_come_last(
    autojump_clock: MockClock,
) -> None:
    """One write at a time: what a later one says stands, even if nobody waits for the first."""
    gate, disk = Gate(), SimulatedDisk()
    async with nsqd_in_memory(disk=disk, background=gate) as broker:
        topic = broker.topic("t")
        await wait_all_tasks_blocked()
        gate.shut()
        topic.pause()
        with trio.move_on_after(1):
            await broker.save_metadata()
        assert gate.held_up == 1
        topic.unpause()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.save_metadata)
            await wait_all_tasks_blocked()
            assert len(gate) == 1
            gate.open()
        assert b'"name":"t","paused":false' in disk.files()["nsqd.dat"]


async def test_a_pause_waits_for_its_metadata(autojump_clock: MockClock) -> None:
    """What `save_metadata` returns from is on disk."""
    gate, disk = Gate(), SimulatedDisk()
    async with nsqd_in_memory(disk=disk, background=gate) as broker:
        topic = broker.topic("t")
        await wait_all_tasks_blocked()
        gate.shut()
        topic.pause()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.save_metadata)
            await trio.sleep(5)
            assert len(nursery.child_tasks) == 1
            gate.open()
        assert b'"name":"t","paused":true' in disk.after_power_loss().files()["nsqd.dat"]


# Deletion


async def test_a_deleted_topic_whose_files_stay(autojump_clock: MockClock) -> None:
    """/ping shows it until they are gone; a new topic of that name has none of its messages."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        publish(broker, "t", *numbered(4))
        disk.fail(errno.EIO, forever=True, only=["unlink"])
        broker.delete_topic("t")
        assert disk.faults["unlink"]
        await trio.sleep(3)
        assert broker.health.startswith("NOK - /simulated/t.diskqueue.")
        publish(broker, "t", b"new")
        _, messages = await consume(broker, "t", "c", 1)
        assert [message.body for message in messages] == [b"new"]
        await trio.sleep(3)
        assert broker.health.startswith("NOK - /simulated/t.diskqueue.")
        disk.heal()
        await trio.sleep(3)
        assert broker.health == "OK"
        broker.delete_topic("t")
    assert not [name for name in disk.files() if name.startswith("t.")]


async def test_files_that_no_topic_owns_are_told_at_the_start(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """They come back if their topic is made, as in nsqd: a warning names it."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        publish(broker, "forgotten", *numbered(4))
        publish(broker, "kept", *numbered(4))
    records = [one for one in load_metadata(disk) if one.name == "kept"]
    save_metadata(disk, records)
    caplog.clear()
    async with nsqd_in_memory(disk=disk):
        [warning] = [line for line in caplog.messages if "without a topic or channel" in line]
    assert warning.endswith("created again: forgotten")


async def test_files_of_a_deleted_topic_go_at_the_next_start(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After a kill before they were removed none of its messages comes back, and none is kept."""
    disk, gate = SimulatedDisk(), Gate()
    async with nsqd_in_memory(disk=disk, background=gate, mem_queue_size=0) as broker:
        publish(broker, "deleted", *numbered(4))
        await trio.sleep(10)
        gate.shut()
        broker.delete_topic("deleted")
        assert gate.held_up
        killed = disk.after_kill()
        gate.open()
    assert "deleted.diskqueue.000000.dat" in killed.files()
    save_metadata(killed, [])
    async with nsqd_in_memory(disk=killed):
        pass
    assert not [line for line in caplog.messages if "without a topic or channel" in line]
    assert not [name for name in killed.files() if name.startswith("deleted")]
