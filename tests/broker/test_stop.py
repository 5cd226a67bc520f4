"""The end of a broker whose disk is full, fails or hangs."""

from __future__ import annotations

import errno

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import Gate, consume, full_disk, numbered, publish
from trionsq.broker.broker import Broker
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands


async def fill(broker: Broker) -> None:
    """Seven messages wait at the topic ``u``; of nine of ``t`` one is in flight, one deferred."""
    publish(broker, "u", *numbered(7))
    consumer = Conversation.begin(broker)
    await consumer.subscribe("t", "c", ready=2)
    await wait_all_tasks_blocked()
    publish(broker, "t", *numbered(9))
    messages = await consumer.messages(2)
    await consumer.say(commands.ready(0))
    await consumer.say(commands.requeue(messages[0].message_id, 60_000))
    await wait_all_tasks_blocked()
    core = broker.topics["t"].channels["c"].core
    assert (core.depth, core.in_flight_count, core.deferred_count) == (7, 1, 1)


async def check_all_there(disk: SimulatedDisk) -> None:
    """What `fill` left in the broker is there for the next one."""
    async with nsqd_in_memory(disk=disk) as broker:
        for name, count in (("u", 7), ("t", 9)):
            consumer = Conversation.begin(broker)
            await consumer.subscribe(name, "c", ready=100)
            bodies = []
            for _ in range(count):
                message = await consumer.message()
                bodies.append(message.body)
                await consumer.say(commands.finish(message.message_id))
            assert sorted(bodies) == numbered(count)
            await consumer.silence(100)
    assert disk.open_files == 0


async def test_a_full_disk_is_named_with_what_it_did_not_take(autojump_clock: MockClock) -> None:
    """By queue and number of messages, after some seconds; what went to disk is whole."""
    disk = full_disk("t:*")
    async with nsqd_in_memory(disk=disk) as broker:
        await fill(broker)
        stopped_s = trio.current_time()
    assert 3 <= trio.current_time() - stopped_s <= 30
    assert disk.faults
    [line] = broker.unsaved
    assert line.startswith("t:c: 9 messages only in memory: ")
    assert "No space left on device" in line
    assert disk.open_files == 0
    disk.heal()
    async with nsqd_in_memory(disk=disk) as broker:
        _, messages = await consume(broker, "u", "c", 7)
        assert sorted(message.body for message in messages) == numbered(7)
        assert broker.topics["t"].channels["c"].core.depth == 0


async def test_a_disk_without_capacity_at_the_stop(autojump_clock: MockClock) -> None:
    """Every queue that could not be saved whole is named, also the metadata."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk) as broker:
        await fill(broker)
        disk.capacity = sum(map(len, disk.files().values()))
    assert disk.faults["write"]
    names = sorted(line.partition(":")[0] for line in broker.unsaved)
    assert names == ["t", "the metadata (nsqd.dat)", "u"]
    assert any(line.startswith("u: 7 messages only in memory: ") for line in broker.unsaved)
    assert disk.open_files == 0


@pytest.mark.parametrize("what", ["*.diskqueue.*", "*.diskqueue.meta.*", "nsqd.dat*", "*"])
async def test_what_did_not_fit_is_saved_when_room_is_made(
    what: str, autojump_clock: MockClock
) -> None:
    """Within some seconds: then nothing is missing and nobody needs to know."""
    disk = SimulatedDisk()
    async with trio.open_nursery() as nursery, nsqd_in_memory(disk=disk) as broker:
        await fill(broker)
        disk.fail(errno.ENOSPC, forever=True, only=["write"], name=what)

        async def make_room() -> None:
            await trio.sleep(2)
            disk.heal()

        nursery.start_soon(make_room)
    assert disk.faults["write"]
    assert broker.unsaved == []
    await check_all_there(disk)


async def test_a_failed_sync_at_the_stop_is_tried_again(autojump_clock: MockClock) -> None:
    """EIO once: the messages are there. A power failure may yet take what that sync was for."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk) as broker:
        await fill(broker)
        disk.fail(errno.EIO, only=["sync"], name="t:*")
    assert disk.faults == {"sync": 1}
    assert broker.unsaved == []
    await check_all_there(disk.after_kill())


async def test_a_disk_that_hangs_does_not_hang_the_stop(autojump_clock: MockClock) -> None:
    """It ends in bounded time and names all that is not known to be durable."""
    gate = Gate()
    async with nsqd_in_memory(background=gate) as broker:
        await fill(broker)
        gate.shut()
        stopped_s = trio.current_time()
    assert trio.current_time() - stopped_s < 200
    assert gate.held_up
    names = sorted(line.partition(":")[0] for line in broker.unsaved)
    assert names == ["t", "the metadata (nsqd.dat)", "u"]
    text = "u: 7 messages on disk that may not be durable: the disk did not answer in time"
    assert text in broker.unsaved


@pytest.mark.parametrize("at_s", [0.0, 0.5, 4.0, 59.0])
async def test_a_stop_can_be_cut_short_while_the_disk_hangs(
    at_s: float, autojump_clock: MockClock
) -> None:
    """A cancellation ends it there and then; no task is left."""
    gate = Gate()
    with trio.CancelScope() as scope:
        async with nsqd_in_memory(background=gate) as broker:
            await fill(broker)
            gate.shut()
            scope.deadline = trio.current_time() + at_s
    assert scope.cancelled_caught
    assert trio.current_time() == scope.deadline
    assert broker._tasks is not None
    assert not broker._tasks.child_tasks


async def test_a_hang_that_ends_in_time_costs_nothing(autojump_clock: MockClock) -> None:
    """The stop waits for the disk, and all is saved."""
    gate, disk = Gate(), SimulatedDisk()
    async with (
        trio.open_nursery() as nursery,
        nsqd_in_memory(disk=disk, background=gate) as broker,
    ):
        await fill(broker)
        gate.shut()

        async def go_on() -> None:
            await trio.sleep(30)
            gate.open()

        nursery.start_soon(go_on)
    assert gate.held_up
    assert broker.unsaved == []
    await check_all_there(disk)


async def test_a_stop_with_a_sync_under_way(autojump_clock: MockClock) -> None:
    """Jobs begun before the stop are waited for; a topic that was deleted meanwhile stays so."""
    gate, disk = Gate(), SimulatedDisk()
    async with (
        trio.open_nursery() as nursery,
        nsqd_in_memory(disk=disk, background=gate, mem_queue_size=0, sync_every=1) as broker,
    ):
        publish(broker, "gone", *numbered(2))
        gate.shut()
        publish(broker, "gone", *numbered(3))
        publish(broker, "t", *numbered(3))
        await wait_all_tasks_blocked()
        broker.delete_topic("gone")

        async def go_on() -> None:
            await trio.sleep(1)
            gate.open()

        nursery.start_soon(go_on)
    assert gate.held_up
    assert (broker.unsaved, disk.open_files) == ([], 0)
    assert not [name for name in disk.files() if name.startswith("gone")]
    async with nsqd_in_memory(disk=disk) as broker:
        assert list(broker.topics) == ["t"]
        assert broker.topics["t"].core.depth == 3


async def test_a_stop_while_a_publisher_waits_for_the_disk(autojump_clock: MockClock) -> None:
    """It gets no OK, so nothing is promised; the broker ends all the same."""
    gate, disk = Gate(), SimulatedDisk()
    async with (
        trio.open_nursery() as nursery,
        nsqd_in_memory(disk=disk, background=gate, mem_queue_size=0, sync_every=1) as broker,
    ):
        gate.shut()
        while not broker.topic("t").should_wait(1):
            publish(broker, "t", b"x")
        before = broker.topics["t"].core.message_count
        publisher = Conversation.begin(broker)
        await publisher.say(commands.publish("t", b"waits"))
        await publisher.silence(1)

        async def go_on() -> None:
            await trio.sleep(1)
            gate.open()

        nursery.start_soon(go_on)
    assert await publisher.end() == []
    assert broker.unsaved == []
    async with nsqd_in_memory(disk=disk) as broker:
        assert broker.topics["t"].core.depth == before


async def test_a_sync_that_fails_for_a_while_is_tried_until_it_works(
    autojump_clock: MockClock,
) -> None:
    """Also if the files have taken all messages: a fault alone is a reason to try again."""
    disk = SimulatedDisk()
    async with trio.open_nursery() as nursery, nsqd_in_memory(disk=disk) as broker:
        publish(broker, "u", *numbered(7))
        disk.fail(errno.EIO, forever=True, only=["sync"], name="u.*")

        async def heal() -> None:
            await trio.sleep(2)
            disk.heal()

        nursery.start_soon(heal)
    assert disk.faults["sync"] > 1
    assert broker.unsaved == []
    async with nsqd_in_memory(disk=disk) as broker:
        assert broker.topics["u"].core.depth == 7
