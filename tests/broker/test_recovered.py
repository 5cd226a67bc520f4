"""After a kill a message may be on disk twice, at its topic and at a channel: it is served once."""

from __future__ import annotations

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import consume, finish, numbered, publish
from trionsq.broker.broker import Broker
from trionsq.core.recovered import _MAX_IDS
from trionsq.storage.sync_job import SyncJob
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

COUNT = 1200


async def killed_amid_the_fan_out(
    monkeypatch: pytest.MonkeyPatch, channels: tuple[str, ...] = ("c",), *, size: int = 8
) -> SimulatedDisk:
    """All messages are in the channels' files, and the topic's positions do not say so yet."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0, sync_timeout_ns=10**15) as broker:
        for channel in channels:
            broker.topic("t").channel(channel)
        broker.topic("t").pause()
        for body in numbered(COUNT, size=size):
            publish(broker, "t", body)
        await wait_all_tasks_blocked()
        broker.folder.sync_all()
        monkeypatch.setattr(SyncJob, "run", lambda job: None)
        broker.topic("t").unpause()
        await wait_all_tasks_blocked()
        await broker.save_metadata()
        assert broker.topics["t"].core.depth == 0
        killed = disk.after_kill()
        monkeypatch.undo()
    return killed


def dropped(broker: Broker, channel: str = "c") -> int:
    """Copies that a channel has left out."""
    return broker.topics["t"].channels[channel].core.dropped["double"]


@pytest.mark.parametrize("mem_queue_size", [0, 10, 100_000])
async def test_a_client_gets_each_message_once_and_each_fin_counts(
    mem_queue_size: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No FIN fails, the copies are counted as dropped, and nothing is left."""
    disk = await killed_amid_the_fan_out(monkeypatch)
    async with nsqd_in_memory(disk=disk, mem_queue_size=mem_queue_size) as broker:
        await wait_all_tasks_blocked()
        core = broker.topics["t"].channels["c"].core
        consumer, messages = await consume(broker, "t", "c", COUNT)
        assert sorted(message.body for message in messages) == numbered(COUNT)
        await finish(consumer, *messages)
        await consumer.silence(100)
        assert core.finish_count == COUNT
        assert (core.depth, core.in_flight_count) == (0, 0)
        assert dropped(broker) == COUNT
        assert core.store.recovered is None


async def test_a_small_rdy_leaves_nothing_out(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each channel for itself, message by message, with time-outs in between."""
    disk = await killed_amid_the_fan_out(monkeypatch, ("c", "d"))
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        for channel in ("c", "d"):
            consumer = Conversation.begin(broker, capacity_bytes=2**20)
            await consumer.subscribe("t", channel, ready=1)
            found = []
            for _ in range(COUNT):
                message = await consumer.message()
                found.append(message.body)
                await consumer.say(commands.finish(message.message_id))
            assert sorted(found) == numbered(COUNT)
            await consumer.silence(100)
            assert dropped(broker, channel) == COUNT


async def test_what_only_the_channel_has_is_kept(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id alone is no proof: a message with another body is another message."""
    disk = await killed_amid_the_fan_out(monkeypatch, size=30)
    name, other = "t.diskqueue.000000.dat", b"another message of this length"
    # The topic has another body under the second id.
    disk.write_file(name, disk.files()[name].replace(numbered(2, size=30)[1], other, 1))
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=1)
        bodies = []
        for _ in range(COUNT + 1):
            message = await consumer.message()
            bodies.append(message.body)
            await consumer.say(commands.finish(message.message_id))
        assert sorted(bodies) == sorted([*numbered(COUNT, size=30), other])
        assert dropped(broker) == COUNT - 1


async def test_large_copies_are_left_out_in_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read brings few of them; other tasks get their turn, and the client its messages."""
    disk = await killed_amid_the_fan_out(monkeypatch, size=20_000)
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        consumer = Conversation.begin(broker, capacity_bytes=2**20)
        await consumer.subscribe("t", "c", ready=10)
        found = set()
        for _ in range(COUNT):
            message = await consumer.message()
            assert message.body not in found
            found.add(message.body)
            await consumer.say(commands.finish(message.message_id))
        assert dropped(broker) == COUNT


async def test_after_a_clean_stop_nothing_is_noted(autojump_clock: MockClock) -> None:
    """Neither the topic nor the channel looks at ids."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(50))
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        topic = broker.topics["t"]
        assert topic.channels["c"].core.store.recovered is None
        assert topic.core._recovered is None
        _, messages = await consume(broker, "t", "c", 50)
        assert len(messages) == 50


async def test_what_is_noted_is_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic notes the first messages only, however large its backlog is."""
    disk = await killed_amid_the_fan_out(monkeypatch)
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        await wait_all_tasks_blocked()
        recovered = broker.topics["t"].channels["c"].core.store.recovered
        assert recovered is not None
        broker.topic("t").pause()
        for _ in range(40):
            publish(broker, "t", *numbered(1000))
        broker.topic("t").unpause()
        await wait_all_tasks_blocked()
        assert COUNT < len(recovered) < 2 * _MAX_IDS


async def test_messages_of_after_the_stop_are_no_copies(autojump_clock: MockClock) -> None:
    """A read that skips the damaged end of an old file and goes on in a new one drops nothing."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(3))
        await wait_all_tasks_blocked()
        killed = disk.after_kill()
    name = "t:c.diskqueue.000000.dat"
    whole = killed.files()[name]
    killed.write_file(name, whole + whole[:10])
    async with nsqd_in_memory(disk=killed, mem_queue_size=0) as broker:
        new = [b"new%d" % number for number in range(5)]
        publish(broker, "t", *new)
        _, messages = await consume(broker, "t", "c", 8)
        assert sorted(message.body for message in messages) == numbered(3) + new


async def test_a_message_without_a_valid_id_is_dropped(autojump_clock: MockClock) -> None:
    """Zeros that a power failure left in a file are no messages that nobody can finish."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(5))
        await wait_all_tasks_blocked()
        killed = disk.after_kill()
    name = "t:c.diskqueue.000000.dat"
    data = bytearray(killed.files()[name])
    size = len(data) // 5
    data += data[:size]  # written after the last sync
    for place in (3, 5):
        data[place * size + 4 : (place + 1) * size] = bytes(size - 4)
    killed.write_file(name, bytes(data))
    async with nsqd_in_memory(disk=killed, mem_queue_size=0) as broker:
        core = broker.topics["t"].channels["c"].core
        consumer, messages = await consume(broker, "t", "c", 5)
        assert sorted(message.body for message in messages) == numbered(5)
        await finish(consumer, *messages)
        await consumer.silence(100)
        assert core.dropped["damaged"] == 2
        assert (core.depth, core.in_flight_count, core.check()) == (0, 0, None)


@pytest.mark.parametrize("byte", [b" ", b"\r", b"\n"])
async def test_a_message_whose_id_no_command_can_name_is_dropped(
    byte: bytes, autojump_clock: MockClock
) -> None:
    """A flipped bit in a file that was written long ago makes no message that ends each consumer's
    connection: its FIN would have too short an id. Other strange ids are served."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(3))
    name = "t:c.diskqueue.000000.dat"
    data = bytearray(disk.files()[name])
    size = len(data) // 3
    data[20:21] = b"%"
    data[size + 29 : size + 30] = byte
    disk.write_file(name, bytes(data))
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        core = broker.topics["t"].channels["c"].core
        consumer, messages = await consume(broker, "t", "c", 2)
        await finish(consumer, *messages)
        await consumer.silence(100)
        assert core.dropped["damaged"] == 1
        assert (core.depth, core.in_flight_count, core.check()) == (0, 0, None)
