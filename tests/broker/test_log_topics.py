"""Topics with a log, in a broker: what only they promise."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import Gate, check_balances, consume, finish, numbered, publish
from tests.broker.test_clock_jumps import JumpingClock
from trionsq.broker import logs
from trionsq.broker.runtime import Clock
from trionsq.broker.topic import PublishRefused
from trionsq.core.channel import ChannelState
from trionsq.http.app import create_app
from trionsq.storage.log import held, snapshot
from trionsq.storage.log.snapshot import Snapshots
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands
from trionsq.wire.bodies import ListBodies

LOG: dict[str, Any] = {"storage": "log", "durability": "always"}


async def test_nothing_is_answered_before_it_is_written(autojump_clock: MockClock) -> None:
    """OK waits for the round, also for that of the first publish when nothing else goes on."""
    background = Gate()
    async with nsqd_in_memory(background=background, **LOG) as broker:
        broker.topic("t")
        background.shut()
        producer = Conversation.begin(broker)
        await producer.say(commands.publish("t", b"x"))
        await producer.silence(5)
        background.open()
        await producer.response()


async def test_a_publish_that_fails_at_once_is_refused() -> None:
    """A round that has failed by the time `publish` returns is no stored one."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        topic = broker.topic("t")
        disk.fail(errno.ENOSPC, forever=True)
        pending = topic.publish(ListBodies([b"x"]))
        assert pending is not None
        assert pending.error is not None
        disk.heal()
        assert topic.publish(ListBodies([b"y"])) is None
        assert topic.core.message_count == 1
        check_balances(broker)


async def test_what_an_operator_repeats_is_not_durable_before_it_is() -> None:
    """A pause whose commit failed is 500 again as long as the disk does not work."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        app = create_app(broker)
        broker.topic("t")
        disk.fail(errno.EIO, forever=True)
        for _ in range(2):
            response = await app.test_client().post("/topic/pause?topic=t")
            assert response.status_code == 500
        disk.heal()
        response = await app.test_client().post("/topic/pause?topic=t")
        assert response.status_code == 200
        found = disk.after_power_loss()
    async with nsqd_in_memory(disk=found, **LOG) as broker:
        assert broker.topics["t"].core.paused


async def test_snapshots_of_much_in_flight_are_taken_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other tasks run before the messages in flight at many channels are looked at."""
    monkeypatch.setattr(logs, "_IN_FLIGHT_PER_TURN", 6)
    async with nsqd_in_memory(**LOG) as broker:
        topic = broker.topic("t")
        for number in range(6):
            topic.channel(f"c{number}")
        publish(broker, "t", *[b"x"] * 4)
        for number in range(6):
            await consume(broker, "t", f"c{number}", 4)
        taken = [0]
        add = Snapshots.add_channel

        def counted(self: Snapshots, core: ChannelState, number: int) -> Iterator[None]:
            taken[-1] += 1
            return add(self, core, number)

        async def watch() -> None:
            while True:
                taken.append(0)
                await trio.lowlevel.checkpoint()

        monkeypatch.setattr(Snapshots, "add_channel", counted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.lowlevel.checkpoint()
            await broker.logs.take_snapshots()
            nursery.cancel_scope.cancel()
        # Two turns of a task may follow each other.
        assert sum(taken) == 6
        assert max(taken) <= 4


async def test_a_snapshot_that_is_given_up_is_ended_by_the_next(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only it knows, such as a new delay, is in the state then."""
    monkeypatch.setattr(snapshot, "_LOOKED_AT_PER_TURN", 2)
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, state_interval_ns=3_600_000_000_000, **LOG) as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(10))
        consumer, got = await consume(broker, "t", "c", 10)
        await consumer.say(commands.requeue(got[0].message_id, 60_000))
        await finish(consumer, *got[1:4])
        core = broker.topics["t"].channels["c"].core
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.logs.take_snapshots)
            while core.in_flight.compacts:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert broker.logs._steps is not None
        await broker.logs.take_snapshots()
        disk = disk.after_kill()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        core = broker.topics["t"].channels["c"].core
        assert (core.depth, core.deferred_count) == (6, 1)


async def test_interval_syncs_in_time(autojump_clock: MockClock) -> None:
    """What was answered after the write survives a power failure --sync-timeout later."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, storage="log", durability="interval") as broker:
        publish(broker, "t", b"x")
        assert broker.topics["t"].core.store.backend.pending is None
        await trio.sleep(2.5)
        assert not broker.folder.changed
        found = disk.after_power_loss()
    async with nsqd_in_memory(disk=found, storage="log") as broker:
        await consume(broker, "t", "c", 1)


@pytest.mark.parametrize("down_s", [0, 60])
async def test_what_is_deferred_comes_after_a_restart(
    down_s: float, autojump_clock: MockClock
) -> None:
    """No other work of the channel has to wake it, and its account is right from the start."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", b"late", defer_ms=25_000)
        await wait_all_tasks_blocked()
    due_s = trio.current_time() + 25
    await trio.sleep(down_s)
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
        began_s = trio.current_time()
        core = broker.topics["t"].channels["c"].core
        assert core.deferred_count == 1
        assert core.check() is None
        consumer, [message] = await consume(broker, "t", "c", 1)
        assert max(due_s, began_s) <= trio.current_time() + 0.1
        assert trio.current_time() <= max(due_s, began_s) + 1
        await finish(consumer, message)
        assert core.check() is None


async def test_a_due_message_comes_as_soon_as_it_is_read(autojump_clock: MockClock) -> None:
    """It does not wait for the next scan of all channels."""
    background = Gate()
    async with nsqd_in_memory(background=background, **LOG) as broker:
        publish(broker, "t", b"late", defer_ms=1_000)
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=1)
        await wait_all_tasks_blocked()
        topic_log = logs.log_of(broker.topics["t"])
        assert topic_log is not None
        topic_log.cache.clear()
        background.shut()
        await trio.sleep(1.14)
        await consumer.silence(0)
        background.open()
        opened_s = trio.current_time()
        assert (await consumer.message()).body == b"late"
        assert trio.current_time() == opened_s


async def test_what_was_finished_does_not_come_again_after_a_kill(
    autojump_clock: MockClock,
) -> None:
    """The state has it after --state-interval, though nothing else happens."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, state_interval_ns=5_000_000_000, **LOG) as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", b"1", b"2", b"3")
        consumer, messages = await consume(broker, "t", "c", 3)
        await finish(consumer, messages[0], messages[2])
        await trio.sleep(6)
        disk = disk.after_kill()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        _, [message] = await consume(broker, "t", "c", 1)
        assert message.body == b"2"
        assert broker.topics["t"].channels["c"].core.depth == 0


async def test_a_disk_that_is_well_again_is_found_out(autojump_clock: MockClock) -> None:
    """Though nobody publishes, /ping says OK after --state-interval."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        broker.topic("t").channel("c")
        disk.fail(errno.EIO, forever=True, only=("write", "sync"))
        with pytest.raises(PublishRefused):
            publish(broker, "t", b"x")
        await trio.sleep(10)
        assert broker.folder.fault
        disk.heal()
        await trio.sleep(2)
        assert broker.health == "OK"


async def test_an_operator_hears_of_a_change_when_it_is_durable() -> None:
    """Not while the job that commits it runs."""
    background = Gate()
    async with nsqd_in_memory(background=background, **LOG) as broker:
        background.shut()
        broker.topic("t").channel("c")
        heard: list[str | None] = []

        async def commit() -> None:
            heard.append(await broker.logs.commit())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await wait_all_tasks_blocked()
            assert heard == []
            background.open()
        assert heard == [None]


async def test_the_backend_depth_is_what_only_the_disk_has() -> None:
    """/stats does not call the newest messages of a log, which are in memory, its backend."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", b"1", b"2")
        publish(broker, "waits", b"1", b"2", b"3")
        await wait_all_tasks_blocked()
        stored = [broker.topics["waits"].core.store, broker.topics["t"].channels["c"].core.store]
        assert [(store.backend.depth, store.backend.on_disk) for store in stored] == [
            (3, 0),
            (2, 0),
        ]
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        publish(broker, "t", b"3")
        publish(broker, "waits", b"4")
        await wait_all_tasks_blocked()
        stored = [broker.topics["waits"].core.store, broker.topics["t"].channels["c"].core.store]
        assert [(store.backend.depth, store.backend.on_disk) for store in stored] == [
            (4, 3),
            (3, 2),
        ]


async def test_small_messages_do_not_fill_the_memory_while_the_disk_hangs() -> None:
    """Publishers wait long before there are as many as fit in 16 MiB by their bodies alone."""
    background = Gate()
    async with nsqd_in_memory(background=background, **LOG) as broker:
        topic = broker.topic("t")
        background.shut()
        topic.publish(ListBodies([b"x"] * 200_000))
        assert topic.should_wait(1)
        background.open()
        await wait_all_tasks_blocked()
        assert not topic.should_wait(1)


async def test_a_disk_that_hangs_does_not_hang_the_stop(autojump_clock: MockClock) -> None:
    """It ends in bounded time, and says that the log may not be durable."""
    background = Gate()
    async with nsqd_in_memory(background=background, **LOG) as broker:
        publish(broker, "t", b"x")
        background.shut()
        stopped_s = trio.current_time()
    assert trio.current_time() - stopped_s < 200
    assert any("did not become durable in time" in line for line in broker.unsaved)


@pytest.mark.parametrize("durability", ["always", "interval"])
async def test_a_stop_waits_for_a_disk_that_fails_for_a_while(
    durability: str, autojump_clock: MockClock
) -> None:
    """Nothing that counts is left unsaved if the disk works again within five seconds."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, storage="log", durability=durability) as broker:
        channel = broker.topic("t").channel("c")
        publish(broker, "t", *numbered(3))
        await wait_all_tasks_blocked()
        consumer, [first, *_] = await consume(broker, "t", "c", 3)
        await finish(consumer, first)
        await wait_all_tasks_blocked()
        assert channel.core.finish_count == 1
        disk.fail(errno.EIO, forever=True, only=("sync",))
        broker.stop()
        await trio.sleep(3)
        disk.heal()
    assert broker.unsaved == []
    async with nsqd_in_memory(disk=disk, storage="log", durability=durability) as broker:
        assert broker.topics["t"].channels["c"].core.depth == 2


async def test_a_start_reads_what_came_after_the_last_snapshot_alone() -> None:
    """A log of a million segments starts soon: of the older ones it reads the headers."""
    disk = SimulatedDisk(logged=True)
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        assert broker.logs._node is not None
        broker.logs._node.segment_bytes = 300
        broker.topic("t").channel("c")
        for number in range(20):
            publish(broker, "t", b"%0400d" % number)
            await wait_all_tasks_blocked()
        await broker.logs.take_snapshots()
        publish(broker, "t", b"%0400d" % 20)
        disk = disk.after_kill()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        reads = [name for operation, name in disk.log if operation == "read" and ".log." in name]
        *older, last = sorted(set(reads))
        assert len(older) >= 19
        assert {reads.count(name) for name in older[:-2]} == {1}
        assert reads.count(last) > 1
        assert broker.topics["t"].channels["c"].core.depth == 21


async def test_what_is_ephemeral_stays_in_memory() -> None:
    """An ephemeral topic has no log, and an ephemeral channel of a log topic holds no segment."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        assert broker.topic("t#ephemeral").storage == "default"
        assert broker.logs._node is not None
        broker.logs._node.segment_bytes = 300
        topic = broker.topic("t")
        channels = [topic.channel("c"), topic.channel("e#ephemeral")]
        for number in range(20):
            publish(broker, "t", b"%0100d" % number)
            await wait_all_tasks_blocked()
        assert [channel.core.depth for channel in channels] == [20, 20]
        assert len([name for name in disk.files() if ".log." in name]) > 5
        await channels[0].empty().wait()
        await broker.logs.take_snapshots()
        assert len([name for name in disk.files() if ".log." in name]) == 1
        assert [channel.core.depth for channel in channels] == [0, 20]


def next_run(clock: JumpingClock, jump_s: float = 0.0) -> JumpingClock:
    """The clock of the next nsqd: it knows only the wall clock, which jumps meanwhile."""
    later = JumpingClock()
    later._start_s, later.offset_s = clock._start_s, clock.offset_s + jump_s
    return later


async def test_ids_begin_after_the_last_one_of_the_log(autojump_clock: MockClock) -> None:
    """Also if the file that knows them is lost and the clock was set back: none comes twice."""
    disk, clock = SimulatedDisk(), JumpingClock()
    ids: list[bytes] = []
    for offset_s in (0.0, -3600.0):
        clock = next_run(clock, offset_s)
        async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
            broker.topic("t").channel("c")
            publish(broker, "t", *numbered(5))
            consumer, got = await consume(broker, "t", "c", 5)
            ids += [message.message_id for message in got]
            await finish(consumer, *got)
        disk.unlink("trionsq.dat")
    assert len(set(ids)) == 10
    assert min(ids[5:]) > max(ids[:5])


async def test_a_stop_answers_what_is_under_way(autojump_clock: MockClock) -> None:
    """The round ends and its publisher gets OK, before the connections are closed."""
    background = Gate()
    async with nsqd_in_memory(background=background, **LOG) as broker:
        broker.topic("t").channel("c")
        await wait_all_tasks_blocked()
        producer = Conversation.begin(broker)
        background.shut()
        await producer.say(commands.publish("t", b"x"))
        await wait_all_tasks_blocked()
        broker.stop()
        await wait_all_tasks_blocked()
        await producer.silence(1)
        background.open()
        await producer.response()


async def test_a_clock_set_back_before_the_stop_delays_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state gets due times of the wall clock as it is then, also those it had before."""
    monkeypatch.setattr(held, "_CHUNK_RANGES", 2)
    disk, clock = SimulatedDisk(), JumpingClock()
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
        broker.topic("t").channel("c")
        await trio.sleep(0.2)
        for delay_s in (5, 6, 7, 8, 9):
            publish(broker, "t", b"%d" % delay_s, defer_ms=delay_s * 1000)
        began_s = trio.current_time()
        await trio.sleep(1.5)
        clock.offset_s -= 1800
        await trio.sleep(0.5)
    for _ in range(2):
        clock = next_run(clock)
        async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
            await trio.sleep(0.5)
    async with nsqd_in_memory(disk=disk, clock=next_run(clock), **LOG) as broker:
        consumer, _ = await consume(broker, "t", "c", 0)
        for delay_s in (5, 6, 7, 8, 9):
            assert (await consumer.message()).body == b"%d" % delay_s
            assert delay_s - 0.1 <= trio.current_time() - began_s <= delay_s + 0.2


async def test_a_clock_set_back_while_nsqd_is_down_delays_no_new_message(
    autojump_clock: MockClock,
) -> None:
    """What was due shortly before the stop was due an hour ahead; that is no limit for others."""
    disk, clock = SimulatedDisk(), JumpingClock()
    async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", b"first", defer_ms=1000)
        publish(broker, "t", b"waits", defer_ms=10_000)
        consumer, [message] = await consume(broker, "t", "c", 1)
        await finish(consumer, message)
        stopped_s = trio.current_time()
    for _ in range(2):
        clock = next_run(clock, -1800)
        async with nsqd_in_memory(disk=disk, clock=clock, **LOG) as broker:
            publish(broker, "t", b"new", defer_ms=2000)
            consumer, [message] = await consume(broker, "t", "c", 1)
            assert message.body == b"new"
            assert trio.current_time() - stopped_s <= 5
            await finish(consumer, message)
    async with nsqd_in_memory(disk=disk, clock=next_run(clock), **LOG) as broker:
        _, [message] = await consume(broker, "t", "c", 1)
        assert message.body == b"waits"
        assert 9 <= trio.current_time() - stopped_s <= 15
