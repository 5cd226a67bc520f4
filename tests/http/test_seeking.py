"""/channel/create with ``from``, and /channel/seek (trionsq.http.seeking, trionsq.broker.seeks)."""

from __future__ import annotations

import errno
import json
from typing import Any
from urllib.parse import quote

import pytest
import trio
from quart_trio import QuartTrio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import Gate, check_balances, consume, finish, numbered, publish
from trionsq.broker import seeks
from trionsq.broker.broker import Broker
from trionsq.broker.runtime import Clock
from trionsq.http.app import create_app
from trionsq.storage.log.retention import Retention
from trionsq.storage.log.seeking import LogPosition, find_position, rfc3339
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

LOG: dict[str, Any] = {"storage": "log", "durability": "always"}
START_NS = 1_700_000_000_000_000_000


async def ask(app: QuartTrio, target: str) -> tuple[int, Any]:
    """Status and document of a POST, or the code of a refusal."""
    response = await app.test_client().post(target)
    data = await response.get_data()
    document: Any = json.loads(data) if data else None
    return response.status_code, document if response.status_code == 200 else document["message"]


async def seek(app: QuartTrio, to: str, channel: str = "c") -> tuple[int, Any]:
    return await ask(app, f"/channel/seek?topic=t&channel={channel}&to={quote(to)}")


async def create(app: QuartTrio, begin: str, channel: str = "n") -> tuple[int, Any]:
    return await ask(app, f"/channel/create?topic=t&channel={channel}&from={quote(begin)}")


def with_small_segments(broker: Broker) -> Broker:
    """Segments of topics that are made from now on have two messages of 200 bytes."""
    assert broker.logs.node is not None
    broker.logs.node.segment_bytes = 500
    return broker


async def publish_seconds(broker: Broker, count: int) -> None:
    """Publish messages that are one second apart."""
    for number in range(count):
        publish(broker, "t", b"%0200d" % number)
        await trio.sleep(1)


def numbers(messages: list[Any]) -> list[int]:
    return [int(message.body) for message in messages]


def at(seconds: float) -> str:
    return rfc3339(START_NS + int(seconds * 1e9))


POSITIONS = [
    ("beginning", 0),
    ("0", 0),
    ("7", 7),
    ("9", 9),
    (at(-1000), 0),
    (at(0), 0),
    (at(3), 3),
    (at(3.000000001), 4),
    (at(9), 9),
    ("2023-11-14T22:13:23.0Z", 3),
    ("2023-11-14T23:43:23.5+01:30", 4),
    ("2023-11-14T21:13:23-01:00", 3),
    ("10", 10),
    ("999999999999999999", 10),
    (at(1000), 10),
    ("end", 10),
]


@pytest.mark.parametrize(("position", "expected"), POSITIONS)
async def test_a_channel_begins_where_it_was_asked_to(
    position: str, expected: int, autojump_clock: MockClock
) -> None:
    """By name, sequence or time; a new one as well as one that goes back; the answer says where."""
    async with nsqd_in_memory(clock=Clock.from_trio(START_NS), **LOG) as broker:
        app = create_app(broker)
        with_small_segments(broker).topic("t").channel("c")
        await publish_seconds(broker, 10)
        time = at(expected) if expected < 10 else None
        answer = 200, {"sequence": expected, "time": time}
        assert await create(app, position) == answer
        assert await seek(app, position) == answer
        publish(broker, "t", b"10")
        for channel in ("c", "n"):
            consumer, messages = await consume(broker, "t", channel, 11 - expected)
            assert numbers(messages) == list(range(expected, 11))
            await finish(consumer, *messages)
            core = broker.topics["t"].channels[channel].core
            assert core.replayed_count == 10 - expected
            assert core.depth == core.in_flight_count == 0
        check_balances(broker)


async def test_what_was_in_flight_and_deferred_is_forgotten() -> None:
    """FIN, REQ and TOUCH of it fail; each message of the range comes once more as it was published.
    Other channels notice nothing."""
    async with nsqd_in_memory(**LOG) as broker:
        app = create_app(broker)
        for name in ("c", "other"):
            broker.topic("t").channel(name)
        publish(broker, "t", *numbered(6))
        consumer, messages = await consume(broker, "t", "c", 6)
        await finish(consumer, messages[0], messages[3])
        ids = [message.message_id for message in messages]
        await consumer.say(commands.requeue(ids[1], 60_000), commands.ready(0))
        await wait_all_tasks_blocked()
        status, answer = await seek(app, "2")
        assert (status, answer["sequence"]) == (200, 2)
        await consumer.say(commands.finish(ids[2]), commands.requeue(ids[4], 0))
        await consumer.say(commands.touch(ids[5]))
        for command in ("FIN", "REQ", "TOUCH"):
            assert (await consumer.error()).startswith(f"E_{command}_FAILED")
        core = broker.topics["t"].channels["c"].core
        assert (core.depth, core.in_flight_count, core.deferred_count) == (4, 0, 0)
        check_balances(broker)
        await consumer.say(commands.ready(10))
        again = await consumer.messages(4)
        assert [(one.message_id, one.body, one.attempts) for one in again] == [
            (one.message_id, one.body, 1) for one in messages[2:]
        ]
        await finish(consumer, *again)
        assert (core.finish_count, core.message_count, core.replayed_count) == (6, 6, 4)
        assert core.dropped == {"emptied": 4}
        assert broker.topics["t"].channels["other"].core.depth == 6
        check_balances(broker)


async def test_a_paused_channel_stays_paused() -> None:
    """What is to come once more waits there."""
    async with nsqd_in_memory(**LOG) as broker:
        app = create_app(broker)
        channel = broker.topic("t").channel("c")
        channel.pause()
        publish(broker, "t", *numbered(3))
        consumer, _ = await consume(broker, "t", "c", 0)
        assert (await seek(app, "1"))[0] == 200
        await wait_all_tasks_blocked()
        assert (channel.core.depth, channel.core.in_flight_count) == (2, 0)
        channel.unpause()
        assert numbers(await consumer.messages(2)) == [1, 2]


REFUSED = [
    ("seek?topic=t&channel=c", 400, "MISSING_ARG_TO"),
    ("seek?topic=t&to=end", 400, "MISSING_ARG_CHANNEL"),
    ("seek?channel=c&to=end", 400, "MISSING_ARG_TOPIC"),
    ("seek?topic=t$&channel=c&to=end", 400, "INVALID_ARG_TOPIC"),
    ("seek?topic=x&channel=c&to=end", 404, "TOPIC_NOT_FOUND"),
    ("seek?topic=t&channel=x&to=end", 404, "CHANNEL_NOT_FOUND"),
    ("seek?topic=d&channel=c&to=end", 400, "TOPIC_HAS_NO_LOG: the default engine keeps"),
    ("seek?topic=t&channel=e%23ephemeral&to=0", 400, "EPHEMERAL_CHANNEL_HAS_NO_POSITION"),
    ("create?topic=t&channel=c&from=end", 409, "CHANNEL_EXISTS: /channel/seek moves it"),
    ("create?topic=t&channel=f%23ephemeral&from=0", 400, "EPHEMERAL_CHANNEL_HAS_NO_POSITION"),
    ("create?topic=d&channel=n&from=0", 400, "TOPIC_HAS_NO_LOG: the default engine keeps"),
    ("create?topic=x&channel=n&from=0", 404, "TOPIC_NOT_FOUND"),
    *(
        (f"seek?topic=t&channel=c&to={bad}", 400, "INVALID_ARG_TO: not beginning, end, a time")
        for bad in ("", "-1", "+1", "1.5", "start", "2026-01-31", "2026-01-31T12:00:00",
                    "2026-02-30T12:00:00Z", "2026-01-31T25:00:00Z", "2026-01-31T12:00:00%2B24:00",
                    "2026-01-31T12:00:00.Z", "%ff", "9" * 19, "%D9%A3")
    ),
    ("create?topic=t&channel=n&from=now", 400, "INVALID_ARG_FROM: not beginning, end, a time"),
]  # fmt: skip


async def test_refusals_say_why_and_change_nothing() -> None:
    """Parameters, names, topics and channels that have no position."""
    async with nsqd_in_memory(**LOG) as broker:
        app = create_app(broker)
        for name in ("c", "e#ephemeral"):
            broker.topic("t").channel(name)
        broker.topic("d", "default").channel("c")
        for topic in ("t", "d"):
            publish(broker, topic, *numbered(3))
        await wait_all_tasks_blocked()
        for target, status, code in REFUSED:
            answer = await ask(app, f"/channel/{target}")
            assert (answer[0], answer[1][: len(code)]) == (status, code), target
        topics = broker.topics.values()
        depths = [channel.core.depth for one in topics for channel in one.channels.values()]
        assert depths == [3, 3, 3]


async def test_a_disk_that_gives_nothing_moves_nothing() -> None:
    """The operator hears it at once, and the channel goes on."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        app = create_app(broker)
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(3))
        disk.fail(errno.EIO, forever=True, only=("read", "open"))
        for answer in (await seek(app, "1"), await create(app, "beginning")):
            assert answer[0] == 500
            assert answer[1].startswith("NOT_READ: ")
        disk.heal()
        assert [*broker.topics["t"].channels] == ["c"]
        await consume(broker, "t", "c", 3)


async def test_a_position_is_answered_when_it_is_durable() -> None:
    """A kill before leaves the old one, a power cut behind it the new one; a failure is 500."""
    disk, background = SimulatedDisk(), Gate()
    async with nsqd_in_memory(disk=disk, background=background, **LOG) as broker:
        app = create_app(broker)
        channel = broker.topic("t").channel("c")
        publish(broker, "t", *numbered(5))
        await wait_all_tasks_blocked()
        await channel.empty().wait()
        await broker.logs.take_snapshots()
        heard: list[tuple[int, Any]] = []

        async def to_one() -> None:
            heard.append(await seek(app, "1"))

        async with trio.open_nursery() as nursery:
            background.shut()
            nursery.start_soon(to_one)
            while not background.held_up:  # noqa: ASYNC110 - a thread looks for the position
                await trio.sleep(0.001)
            await wait_all_tasks_blocked()
            assert not heard
            before = disk.after_kill()
            background.open()
        assert heard[0][0] == 200
        behind = disk.after_power_loss()
        disk.fail(errno.EIO, forever=True, only=("write", "sync"))
        status, code = await seek(app, "3")
        assert status == 500
        assert code.startswith("NOT_DURABLE: ")
        disk.heal()
        assert (await seek(app, "4"))[0] == 200
        failed = disk.after_power_loss()
    for found, depth in ((before, 0), (behind, 4), (failed, 1)):
        async with nsqd_in_memory(disk=found, **LOG) as broker:
            assert broker.topics["t"].channels["c"].core.depth == depth


async def test_a_snapshot_of_before_does_not_undo_a_seek() -> None:
    """It is committed first, though its job ends later than the seek begins."""
    disk, background = SimulatedDisk(), Gate()
    async with nsqd_in_memory(disk=disk, background=background, **LOG) as broker:
        channel = broker.topic("t").channel("c")
        publish(broker, "t", *numbered(5))
        consumer, messages = await consume(broker, "t", "c", 5)
        await finish(consumer, *messages)
        background.shut()
        await broker.logs.take_snapshots()
        cursor = channel.core.store.backend
        await channel.seek(lambda: cursor.seek(2)).wait()  # type: ignore[attr-defined]
        background.open()
        assert await broker.logs.commit() is None
        found = disk.after_kill()
    async with nsqd_in_memory(disk=found, **LOG) as broker:
        assert broker.topics["t"].channels["c"].core.depth == 3


async def test_a_seek_holds_the_segments_that_it_goes_back_to() -> None:
    """Though another change of the topic is committed before the channel's next snapshot."""
    disk = SimulatedDisk()
    retained = {"retain_ns": 3_600_000_000_000, **LOG}
    async with nsqd_in_memory(disk=disk, state_interval_ns=10**15, **retained) as broker:
        app = create_app(broker)
        channel = with_small_segments(broker).topic("t").channel("c")
        for number in range(10):
            publish(broker, "t", b"%0200d" % number)
        consumer, messages = await consume(broker, "t", "c", 10)
        await finish(consumer, *messages)
        await consumer.say(commands.ready(0))
        await broker.logs.take_snapshots()
        assert (await seek(app, "0"))[0] == 200
        broker.logs.retentions.default = Retention()
        await consumer.say(commands.ready(2500))
        again = await consumer.messages(10)
        assert await broker.logs.commit(broker.topics["t"].core) is None
        assert len([name for name in disk.files() if ".log." in name]) >= 5
        await finish(consumer, *again)
        await broker.logs.take_snapshots()
        assert len([name for name in disk.files() if ".log." in name]) == 1
        assert channel.core.replayed_count == 10


async def test_what_is_gone_is_the_beginning() -> None:
    """A position before it is the oldest message that the log has, and the answer says so."""
    async with nsqd_in_memory(**LOG) as broker:
        app = create_app(broker)
        channel = with_small_segments(broker).topic("t").channel("c")
        for number in range(11):
            publish(broker, "t", b"%0200d" % number)
        await wait_all_tasks_blocked()
        await channel.empty().wait()
        await broker.logs.take_snapshots()
        for position in ("beginning", "0", "5", "2001-01-01T00:00:00Z"):
            status, answer = await seek(app, position)
            assert (status, answer["sequence"]) == (200, 10)
            assert channel.core.depth == 1


async def test_the_first_channel_may_pass_over_what_nobody_has_had() -> None:
    """It counts as dropped, a second channel does not get it either, a seek brings it."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        app = create_app(broker)
        publish(broker, "t", *numbered(5))
        status, answer = await create(app, "3", "c")
        assert (status, answer["sequence"]) == (200, 3)
        core = broker.topics["t"].core
        assert core.dropped == {"emptied": 3}
        assert broker.topics["t"].channel("second").core.depth == 0
        consumer, messages = await consume(broker, "t", "c", 2)
        assert numbers(messages) == [3, 4]
        await finish(consumer, *messages)
        assert core.check() is None
        check_balances(broker)
        found = disk.after_kill()
    async with nsqd_in_memory(disk=found, **LOG) as broker:
        app = create_app(broker)
        assert (await seek(app, "beginning", "second"))[1]["sequence"] == 0
        _, messages = await consume(broker, "t", "second", 5)
        assert numbers(messages) == [0, 1, 2, 3, 4]


async def test_what_a_topic_was_emptied_of_does_not_come() -> None:
    """Nor do its places count."""
    async with nsqd_in_memory(**LOG) as broker:
        app = create_app(broker)
        topic = broker.topic("t")
        publish(broker, "t", *numbered(2))
        await topic.empty().wait()
        publish(broker, "t", b"2")
        channel = topic.channel("c")
        await wait_all_tasks_blocked()
        assert (await seek(app, "beginning"))[1]["sequence"] == 2
        assert channel.core.depth == 1
        _, messages = await consume(broker, "t", "c", 1)
        assert numbers(messages) == [2]


async def test_what_a_paused_topic_has_comes_later() -> None:
    """A channel cannot go behind what its topic has handed on."""
    async with nsqd_in_memory(**LOG) as broker:
        app = create_app(broker)
        topic = broker.topic("t")
        channel = topic.channel("c")
        publish(broker, "t", *numbered(2))
        await wait_all_tasks_blocked()
        topic.pause()
        publish(broker, "t", b"2", b"3")
        await wait_all_tasks_blocked()
        assert await seek(app, "3") == (200, {"sequence": 2, "time": None})
        assert await create(app, "3") == (200, {"sequence": 2, "time": None})
        topic.unpause()
        _, messages = await consume(broker, "t", "c", 2)
        assert numbers(messages) == [2, 3]
        assert channel.core.replayed_count == 0
        check_balances(broker)


@pytest.mark.parametrize("when", ["before", "behind"])
async def test_what_is_left_while_it_is_looked_for(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that go meanwhile are no position, whether they were read or not."""
    async with nsqd_in_memory(retain_ns=10**18, **LOG) as broker:
        app = create_app(broker)
        channel = with_small_segments(broker).topic("t").channel("c")
        for number in range(11):
            publish(broker, "t", b"%0200d" % number)
        await wait_all_tasks_blocked()
        await channel.empty().wait()
        await broker.logs.take_snapshots()
        found: list[LogPosition] = []

        def find(*arguments: Any) -> LogPosition:
            broker.logs.retentions.default = Retention()
            if when == "before":
                trio.from_thread.run(broker.logs.take_snapshots)
            found.append(find_position(*arguments))
            trio.from_thread.run(broker.logs.take_snapshots)
            return found[-1]

        monkeypatch.setattr(seeks, "find_position", find)
        status, answer = await seek(app, "0")
        assert (status, answer["sequence"]) == (200, 10)
        assert channel.core.depth == 1
        assert [one.sequence for one in found] == ([10] if when == "before" else [0, 10])


async def test_a_channel_that_goes_meanwhile_does_not_seek(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one begin that somebody else has made."""
    async with nsqd_in_memory(**LOG) as broker:
        app = create_app(broker)
        topic = broker.topic("t")
        topic.channel("c")
        publish(broker, "t", *numbered(3))
        await wait_all_tasks_blocked()

        def find(*arguments: Any) -> LogPosition:
            if "c" in topic.channels:
                trio.from_thread.run_sync(topic.delete_channel, "c")
                trio.from_thread.run_sync(topic.channel, "n")
            return find_position(*arguments)

        monkeypatch.setattr(seeks, "find_position", find)
        assert await seek(app, "0") == (404, "CHANNEL_NOT_FOUND")
        topic.delete_channel("n")
        topic.channel("c")
        assert (await create(app, "0"))[0] == 409
        assert topic.channels["n"].core.depth == 0
