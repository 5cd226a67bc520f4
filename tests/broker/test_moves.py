"""A topic is moved to a log while clients use it."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.copies import Images, drained, record
from tests.broker.support import Gate, check_balances, consume, finish, numbered, publish
from tests.soak import more_in_soak, swept
from trionsq.broker import logcopy
from trionsq.broker.broker import Broker
from trionsq.broker.moving import MoveFailed
from trionsq.broker.runtime import Clock
from trionsq.storage.folder import DataFolder
from trionsq.storage.log.moved import MovedQueues
from trionsq.storage.log.node import LogNode
from trionsq.testing.background import InlineBackground
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.logstate import open_state
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

DEFAULT: dict[str, Any] = {"storage": "default", "durability": "always"}


@pytest.mark.parametrize("mem", [0, 5, 1000])
async def test_all_messages_are_there_once(mem: int, autojump_clock: MockClock) -> None:
    """Of memory, disk, in flight and deferred; each channel gets its own and those to come."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    async with nsqd_in_memory(disk=disk, clock=clock, mem_queue_size=mem, **DEFAULT) as broker:
        topic = broker.topic("t")
        topic.channel("ahead")
        publish(broker, "t", *numbered(10))
        await wait_all_tasks_blocked()
        topic.channel("behind")
        publish(broker, "t", *numbered(20, 20))
        await wait_all_tasks_blocked()
        publish(broker, "t", b"late", defer_ms=60_000)
        await wait_all_tasks_blocked()
        consumer, got = await consume(broker, "t", "ahead", 30)
        await finish(consumer, *got[:10])
        topic.pause()
        publish(broker, "t", *numbered(7, 30))
        publish(broker, "t", b"later", defer_ms=90_000)
        await broker.registry.moves.move(topic)
        assert topic.storage == "log"
        check_balances(broker)
        core = topic.channels["ahead"].core
        assert (core.depth, core.in_flight_count, core.deferred_count) == (0, 20, 1)
        assert topic.core.depth == 8
        await finish(consumer, *got[10:15])
        topic.unpause()
        publish(broker, "t", b"new")
        await wait_all_tasks_blocked()
        check_balances(broker)
    async with nsqd_in_memory(disk=disk, clock=clock, **DEFAULT) as broker:
        assert broker.topics["t"].storage == "log"
        assert [name for name in disk.files() if "diskqueue" in name] == []
        left = Counter(message.body for message in got[15:])
        expected = Counter([*numbered(7, 30), b"new", b"late", b"later"])
        assert await drained(broker, "ahead") == left + expected
        assert await drained(broker, "behind") == Counter(numbered(20, 20)) + expected


async def test_publishers_wait_and_consumers_finish_meanwhile(autojump_clock: MockClock) -> None:
    """No publish is refused; a FIN counts, what is given back comes again, with its attempts."""
    background = Gate()
    async with nsqd_in_memory(background=background, **DEFAULT) as broker:
        topic = broker.topic("t")
        core = topic.channel("c").core
        publish(broker, "t", *numbered(5))
        consumer = Conversation.begin(broker, capacity_bytes=2**20)
        await consumer.subscribe("t", "c", ready=4)
        got = await consumer.messages(4)
        await broker.logs.ensure_node()
        background.shut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.registry.moves.move, topic)
            await wait_all_tasks_blocked()
            background.run_one()  # from here on a start removes the log
            await wait_all_tasks_blocked()
            producer = Conversation.begin(broker)
            await producer.say(commands.publish("t", b"waits"))
            await finish(consumer, got[0])
            await consumer.say(commands.requeue(got[1].message_id, 0))
            again = await consumer.message()
            assert (again.body, again.attempts) == (got[1].body, 2)
            await consumer.say(commands.requeue(got[2].message_id, 50_000))
            await producer.silence(5)
            assert topic.storage == "default"
            background.open()
        await producer.response()
        check_balances(broker)
        await finish(consumer, got[3], again)
        began_s = trio.current_time()
        assert {(await consumer.message()).body for _ in range(2)} == {numbered(5)[4], b"waits"}
        late = await consumer.message()
        assert (late.body, late.attempts) == (got[2].body, 2)
        assert trio.current_time() - began_s > 40
        assert core.finish_count == 3
        check_balances(broker)


async def test_a_move_that_fails_changes_nothing(autojump_clock: MockClock) -> None:
    """A full disk: the topic goes on with its old engine, and the move succeeds later."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=3, **DEFAULT) as broker:
        topic = broker.topic("t")
        topic.channel("c")
        publish(broker, "t", *numbered(8))
        publish(broker, "t", b"late", defer_ms=60_000)
        await wait_all_tasks_blocked()
        consumer = Conversation.begin(broker, capacity_bytes=2**20)
        await consumer.subscribe("t", "c", ready=2)
        got = await consumer.messages(2)
        disk.fail(28, forever=True, only=("create", "write"), name="*.log.*")
        with pytest.raises(MoveFailed):
            await broker.registry.moves.move(topic)
        disk.heal()
        assert topic.storage == "default"
        publish(broker, "t", b"new")
        await wait_all_tasks_blocked()
        check_balances(broker)
        await broker.registry.moves.move(topic)
        check_balances(broker)
        await finish(consumer, *got)
        consumer.close()
        left = Counter([*numbered(8), b"late", b"new"]) - Counter(one.body for one in got)
        assert await drained(broker, "c") == left


@pytest.mark.parametrize("what", ["empty", "delete", "empty topic", "delete topic"])
@pytest.mark.parametrize("jobs", [1, 2, 3])
async def test_what_an_operator_drops_meanwhile_stays_dropped(
    what: str, jobs: int, autojump_clock: MockClock
) -> None:
    """Before the commit and during it; also after a kill behind the answer."""
    background, disk = Gate(), SimulatedDisk()
    async with nsqd_in_memory(background=background, disk=disk, **DEFAULT) as broker:
        topic = broker.topic("t")
        topic.channel("c")
        topic.channel("other")
        publish(broker, "t", *numbered(5))
        publish(broker, "t", b"late", defer_ms=60_000)
        await wait_all_tasks_blocked()
        topic.pause()
        publish(broker, "t", b"waits")
        background.shut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_move, broker)
            await wait_all_tasks_blocked()
            for _ in range(jobs):
                background.run_one()
                await wait_all_tasks_blocked()
            match what:
                case "empty":
                    topic.channels["c"].empty()
                case "delete":
                    topic.delete_channel("c")
                case "empty topic":
                    topic.empty()
                case "delete topic":
                    broker.delete_topic("t")
            background.open()
            await broker.registry.moves.decided()
            assert await broker.logs.commit() is None
            await broker.save_metadata()
        await wait_all_tasks_blocked()
        assert await broker.logs.commit() is None
        image = disk.after_kill()
    async with nsqd_in_memory(disk=image, **DEFAULT) as broker:
        if what == "delete topic":
            assert broker.topics == {}
            assert not [name for name in image.files() if ".log." in name]
            return
        topic = broker.topics["t"]
        assert topic.storage == "log"
        topic.unpause()
        own = Counter([*numbered(5), b"late"])
        waits = Counter([] if what == "empty topic" else [b"waits"])
        assert await drained(broker, "other") == own + waits
        if what != "delete":
            assert await drained(broker, "c") == (waits if what == "empty" else own + waits)
        else:
            assert "c" not in topic.channels


async def _move(broker: Broker) -> None:
    with suppress(MoveFailed):
        await broker.registry.moves.move(broker.topics["t"])


async def test_a_commit_that_fails_is_repeated_each_second(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then nobody may change the topic, for nobody knows which engine a start would find."""
    background, disk = Gate(), SimulatedDisk()
    async with nsqd_in_memory(background=background, disk=disk, **DEFAULT) as broker:
        topic, moves = broker.topic("t"), broker.registry.moves
        topic.channel("c")
        await wait_all_tasks_blocked()
        background.shut()
        waits: list[trio.Event] = []

        async def decided(heard: trio.Event) -> None:
            await moves.decided()
            heard.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(moves.move, topic)
            await wait_all_tasks_blocked()
            while topic.storage == "default":
                waits.append(heard := trio.Event())
                nursery.start_soon(decided, heard)
                await wait_all_tasks_blocked()
                if not heard.is_set():
                    break
                background.run_one()
                await wait_all_tasks_blocked()
            assert not waits[-1].is_set()
            disk.fail(5, forever=True, name="trionsq.state*")
            background.run_one()
            await wait_all_tasks_blocked()
            assert waits[-1].is_set()
            assert topic.storage == "default"
            assert len(background) == 0
            assert caplog.text.count("waits for the state") == 1
            disk.heal()
            mock_clock.jump(1.1)
            background.open()
            await wait_all_tasks_blocked()
        assert topic.storage == "log"


async def test_a_move_waits_for_the_disk_before_it_copies_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of small messages: what is not written yet stays far below what a log takes."""
    monkeypatch.setattr(logcopy, "_WRITE_BYTES", 1_000)
    background = Gate()
    async with nsqd_in_memory(background=background, **DEFAULT) as broker:
        topic = broker.topic("t")
        topic.channel("c")
        for body in numbered(40):
            publish(broker, "t", body)
        await wait_all_tasks_blocked()
        background.shut()
        unsafe: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.registry.moves.move, topic)
            await wait_all_tasks_blocked()
            [running] = broker.registry.moves._running.values()
            while not running.ended.is_set():
                background.run_one()
                await wait_all_tasks_blocked()
                unsafe.append(running.move._log.unsafe[1])
            background.open()
        assert 0 < max(unsafe) <= 1_200
        assert await drained(broker, "c") == Counter(numbered(40))


async def test_files_that_were_moved_in_part_are_kept() -> None:
    """Under another name, of the damaged queue alone; all that can be read is in the log."""
    disk = SimulatedDisk()
    options = {**DEFAULT, "mem_queue_size": 0}
    async with nsqd_in_memory(disk=disk, **options) as broker:
        for name in ("c", "other"):
            broker.topic("t").channel(name)
        for body in numbered(5):
            publish(broker, "t", body)
            await wait_all_tasks_blocked()
    damaged = "t:c.diskqueue.000000.dat"
    data = disk.files()[damaged]
    record = len(data) // 5
    disk.write_file(damaged, data[: 3 * record] + b"\xff" * record + data[4 * record :])
    async with nsqd_in_memory(disk=disk, **options) as broker:
        await broker.registry.moves.move(broker.topics["t"])
        await wait_all_tasks_blocked()
        assert [name for name in disk.files() if "diskqueue" in name] == [f"{damaged}.bad"]
        assert await drained(broker, "c") == Counter(numbered(5)[:3])
        assert await drained(broker, "other") == Counter(numbered(5))


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("file", ["t:c.diskqueue.000000.dat", "t.diskqueue.000001.dat", ""])
async def test_what_the_original_wrote_after_the_commit_of_a_move_is_taken_over(
    file: str, is_made_again: bool, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """nsqd is killed before it has deleted the old files, and the original takes them: a start
    removes what it knows, and brings into the log what is new, alone."""
    disk = Images()
    options = {"mem_queue_size": 0, **DEFAULT}
    async with nsqd_in_memory(disk=disk, **options) as broker:
        topic = broker.topic("t")
        topic.channel("c")
        publish(broker, "t", *numbered(5))
        await wait_all_tasks_blocked()
        topic.pause()
        publish(broker, "t", *numbered(2, 20))
        await wait_all_tasks_blocked()
        disk.images = []
        await broker.registry.moves.move(topic)
        await trio.sleep(2)
        images, disk.images = disk.images, None
    left = next(image for image, _ in reversed(images) if image.files().keys() >= QUEUE_FILES)
    if file and is_made_again:  # its file has the number of a moved one
        queue, theirs = file.partition(".")[0], record(b"the original's")
        left.write_file(f"{queue}.diskqueue.000000.dat", theirs)
        left.write_file(f"{queue}.diskqueue.meta.dat", b"1\n0,0\n0,%d\n" % len(theirs))
    elif file:
        left.write_file(file, left.files().get(file, b"") + record(b"the original's"))
    async with nsqd_in_memory(disk=left, **options) as broker:
        assert broker.topics["t"].storage == "log"
        await trio.sleep(2)
        assert not [name for name in left.files() if "diskqueue" in name]
        assert ("has grown since it was moved to a log" in caplog.text) == bool(file)
        broker.topics["t"].unpause()
        expected = Counter([*numbered(5), *numbered(2, 20)])
        if file:
            expected[b"the original's"] += 1
        assert await drained(broker, "c") == expected


def test_what_an_earlier_release_noted_of_moved_queues_is_removed() -> None:
    """It noted their names without their files."""
    disk = SimulatedDisk()
    node = LogNode(DataFolder(disk, InlineBackground()), open_state(disk))
    topic_log = node.new_topic("t")
    for name in ("t.diskqueue.000000.dat", "t.diskqueue.meta.dat", "u.diskqueue.000000.dat"):
        disk.write_file(name, b"x")
    noted = json.dumps({topic_log.number: ["t"]}).encode()
    MovedQueues(node, {"moved": noted}).remove_files(node.state.load())
    assert [name for name in disk.files() if "diskqueue" in name] == ["u.diskqueue.000000.dat"]


@pytest.mark.parametrize("jobs", [0, 1, 2, 3, 4, 6, 9])
async def test_a_stop_in_the_middle_of_a_move_keeps_all(
    jobs: int, autojump_clock: MockClock
) -> None:
    """After each of its jobs: the next start has each message once, in the old engine or in the
    log, with its delay; and the move succeeds then."""
    background, clock, disk = Gate(), Clock.from_trio(), SimulatedDisk()
    options = {"mem_queue_size": 3, "disk": disk, "clock": clock, **DEFAULT}
    async with nsqd_in_memory(background=background, **options) as broker:
        topic = broker.topic("t")
        topic.channel("a")
        topic.channel("b")
        publish(broker, "t", *numbered(9))
        publish(broker, "t", b"late", defer_ms=60_000)
        await wait_all_tasks_blocked()
        consumer = Conversation.begin(broker, capacity_bytes=2**20)
        await consumer.subscribe("t", "a", ready=4)
        got = await consumer.messages(4)
        await consumer.say(commands.ready(1))
        await finish(consumer, *got[:2])
        background.shut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_move, broker)
            for _ in range(jobs):
                await wait_all_tasks_blocked()
                if len(background):
                    background.run_one()
            broker.stop()
            await wait_all_tasks_blocked()
            background.open()
    due_s = trio.current_time() + 55
    async with nsqd_in_memory(**options) as broker:
        topic = broker.topics["t"]
        if topic.storage == "default":
            await broker.registry.moves.move(topic)
        finished = Counter(message.body for message in got[:2])
        expected = Counter([*numbered(9), b"late"])
        assert await drained(broker, "a") == expected - finished
        assert trio.current_time() >= due_s
        assert await drained(broker, "b") == expected


QUEUE_FILES = {"t.diskqueue.000000.dat", "t:c.diskqueue.000000.dat"}


@more_in_soak
async def test_a_crash_at_any_operation_loses_nothing(autojump_clock: MockClock) -> None:
    """A start finds the old engine as it was, or the log with all, also what no file had before;
    and the log brings back nothing that was finished."""
    disk, clock = Images(), Clock.from_trio()
    options = {"mem_queue_size": 0, **DEFAULT}
    async with nsqd_in_memory(disk=disk, clock=clock, **options) as broker:
        topic = broker.topic("t")
        for name in ("a", "b"):
            topic.channel(name)
        publish(broker, "t", *numbered(9))
        await wait_all_tasks_blocked()
        consumer = Conversation.begin(broker, capacity_bytes=2**20)
        await consumer.subscribe("t", "a", ready=4)
        got = await consumer.messages(4)
        await consumer.say(commands.ready(1))
        await finish(consumer, *got[:2])
        publish(broker, "t", b"late", defer_ms=20_000)
        await wait_all_tasks_blocked()
        topic.pause()
        publish(broker, "t", b"waits")
        await wait_all_tasks_blocked()
        broker.folder.sync_all()
        await broker.save_metadata()
        due_s = trio.current_time() + 19.9
        disk.images = []
        await broker.registry.moves.move(topic)
        await trio.sleep(2)
        images, disk.images = disk.images, None
    finished = {message.body for message in got[:2]}
    on_disk = {"a": {*numbered(9)[4:], b"waits"}, "b": {*numbered(9), b"waits"}}
    in_log = {"a": {*numbered(9), b"waits", b"late"} - finished}
    in_log["b"] = {*numbered(9), b"waits", b"late"}
    engines = []
    for number in swept(len(images) - 1, 3):
        for image in images[number]:
            async with nsqd_in_memory(disk=image, clock=clock, **options) as broker:
                topic = broker.topics["t"]
                engines.append(topic.storage)
                left_over = ".log." if topic.storage == "default" else ".diskqueue."
                assert not [name for name in image.files() if left_over in name], number
                topic.unpause()
                for name, least in on_disk.items():
                    found = await drained(broker, name)
                    if topic.storage == "log":
                        assert found == Counter(in_log[name]), number
                        assert trio.current_time() >= due_s
                    assert least <= found.keys(), number
    assert set(engines) == {"default", "log"}


async def test_all_topics_are_moved_after_a_start(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """With --move-topics, while nsqd serves; the next start moves what could not be moved."""
    caplog.set_level("INFO", "trionsq")
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **DEFAULT) as broker:
        for name in ("full", "t", "e#ephemeral"):
            broker.topic(name).channel("c")
            publish(broker, name, *numbered(4))
        await wait_all_tasks_blocked()
    options = {**DEFAULT, "storage": "log", "move_topics": True}
    disk.fail(28, forever=True, name="full.log.*")
    async with nsqd_in_memory(disk=disk, **options) as broker:
        broker.topic("e#ephemeral")
        await wait_all_tasks_blocked()
        storage = {name: topic.storage for name, topic in broker.topics.items()}
        assert storage == {"full": "default", "t": "log", "e#ephemeral": "default"}
        assert "moved 1 topics to logs" in caplog.text
        assert "1 topics keep their engine" in caplog.text
        disk.heal()
    async with nsqd_in_memory(disk=disk, **options) as broker:
        await wait_all_tasks_blocked()
        for name in ("full", "t"):
            assert broker.topics[name].storage == "log"
            assert await drained(broker, "c", name) == Counter(numbered(4))
