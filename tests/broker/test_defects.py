"""Exceptions that nobody expected: each costs one part of nsqd for a while, and no message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances, connect, consume, finish, numbered, publish
from trionsq.broker.broker import Broker
from trionsq.broker.client import Client
from trionsq.broker.defects import PARTS, Defects
from trionsq.broker.metadata import MetadataKeeper
from trionsq.broker.registry import TopicRegistry
from trionsq.broker.topic import Topic
from trionsq.core import dispatch
from trionsq.core.channel import ChannelState
from trionsq.core.queue import Store
from trionsq.core.recovered import ChannelStore
from trionsq.core.topic import TopicState
from trionsq.storage.diskqueue import DiskQueue
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import memory_connection
from trionsq.wire import commands


class Breakage:
    """Makes a method raise TypeError: always, or as often as it is told.

    Attributes:
        fired: times that it raised.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: type, method: str) -> None:
        self.fired = 0
        self.left = 0
        self.only: Callable[[Any], bool] = lambda subject: True
        original = getattr(of, method)

        def broken(subject: Any, *arguments: Any, **named: Any) -> Any:
            if self.left > 0 and self.only(subject):
                self.left -= 1
                self.fired += 1
                raise TypeError(f"injected into {method}")
            return original(subject, *arguments, **named)

        monkeypatch.setattr(of, method, broken)

    def times(self, count: int) -> None:
        self.left = count

    def forever(self) -> None:
        self.left = 2**31

    def end(self) -> None:
        self.left = 0


def bodies_at(broker: Broker, channel: str) -> list[bytes]:
    """The bodies that wait in memory at a channel of the topic ``t``."""
    core = broker.topics["t"].channels[channel].core
    return sorted(
        segment.batch.bodies.body_at(place)
        for segment in core.peek()
        for place in range(segment.first, segment.last)
    )


async def test_a_defect_in_the_fan_out_loses_no_message(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel at which it failed gets the segment as well, once; the others got it already."""
    async with nsqd_in_memory() as broker:
        for name in ("a", "b", "c"):
            broker.topic("t").channel(name)
        await wait_all_tasks_blocked()
        breakage = Breakage(monkeypatch, ChannelState, "put")
        breakage.only = lambda core: core.name == "b"
        breakage.times(3)
        publish(broker, "t", *numbered(5))
        await wait_all_tasks_blocked()
        assert breakage.fired == 1
        assert broker.health.startswith("NOK - TOPIC(t) is stopped by a defect of nsqd: TypeError")
        publish(broker, "t", b"later")
        publish(broker, "other", b"x")
        assert bodies_at(broker, "a") == numbered(5)
        await trio.sleep(10)
        assert breakage.fired == 3
        assert broker.defects.counts["topic"] == 3
        for name in ("a", "b", "c"):
            assert bodies_at(broker, name) == [*numbered(5), b"later"]
        assert broker.health == "OK"
        assert not broker.defects.stopped
        check_balances(broker)


async def test_a_defect_in_a_topics_task_stops_that_topic_only(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again after pauses that grow; others flow, and what it holds is kept."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk) as broker:
        for topic in ("t", "u"):
            broker.topic(topic).channel("c")
        await wait_all_tasks_blocked()
        breakage = Breakage(monkeypatch, TopicState, "pump")
        breakage.only = lambda core: core.name == "t"
        breakage.forever()
        publish(broker, "t", b"kept")
        for number in range(20):
            publish(broker, "u", b"%d" % number)
            await trio.sleep(30)
        # 0.1 s, doubled up to 30 s, for ten minutes.
        assert 9 <= breakage.fired <= 30
        assert broker.topics["u"].channels["c"].core.depth == 20
        assert broker.topics["t"].core.depth == 1
    breakage.end()
    async with nsqd_in_memory(disk=disk) as broker:
        _, [message] = await consume(broker, "t", "c", 1)
        assert message.body == b"kept"


@pytest.mark.parametrize(
    ("of", "method"),
    [(ChannelStore, "pop_segment"), (ChannelState, "_deliver"), (dispatch, "sampled")],
)
async def test_a_defect_in_a_channels_task_loses_no_message(
    of: Any, method: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message comes to the client once, when the task begins again; the counts add up."""
    async with nsqd_in_memory() as broker:
        talk, client, _ = connect(broker, capacity_bytes=2**20)
        await talk.say(commands.identify({"sample_rate": 99, "feature_negotiation": True}))
        await talk.frame()
        await talk.subscribe("t", "c", ready=50)
        await wait_all_tasks_blocked()
        breakage = Breakage(monkeypatch, of, method)
        breakage.times(1)
        publish(broker, "t", *numbered(20))
        await wait_all_tasks_blocked()
        assert breakage.fired == 1
        assert broker.defects.counts["channel"] == 1
        assert "CHANNEL(t:c) is stopped" in broker.health
        await talk.say(commands.ready(50))
        messages = await talk.messages(20)
        assert sorted(message.body for message in messages) == numbered(20)
        await finish(talk, *messages)
        await trio.sleep(1)
        assert broker.health == "OK"
        assert client.consumer.finish_count == 20
        check_balances(broker)


async def test_a_defect_while_a_message_is_served_at_once_costs_no_topic(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few messages are handed to clients in the topic's turn: no channel gets them twice."""
    async with nsqd_in_memory() as broker:
        talk, _, _ = connect(broker)
        await talk.subscribe("t", "c", ready=10)
        broker.topic("t").channel("other")
        await wait_all_tasks_blocked()
        breakage = Breakage(monkeypatch, ChannelState, "_deliver")
        breakage.times(1)
        publish(broker, "t", b"one")
        await wait_all_tasks_blocked()
        assert breakage.fired == 1
        assert (broker.defects.counts["topic"], broker.defects.counts["channel"]) == (0, 1)
        assert bodies_at(broker, "other") == [b"one"]
        publish(broker, "t", b"two")
        await talk.say(commands.ready(10))
        assert {message.body for message in await talk.messages(2)} == {b"one", b"two"}
        check_balances(broker)


async def test_a_defect_in_a_scan_costs_that_channel_a_second(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages time out all the same, a little later, and those of others in time."""
    async with nsqd_in_memory(msg_timeout_ns=10**9) as broker:
        talks = {}
        for topic in ("t", "u"):
            talks[topic], _ = await consume_nothing_yet(broker, topic)
            publish(broker, topic, b"x")
            await talks[topic].message()
        breakage = Breakage(monkeypatch, ChannelState, "scan")
        breakage.only = lambda core: core is broker.topics["t"].channels["c"].core
        breakage.times(2)
        start_s = trio.current_time()
        await talks["u"].message()
        assert trio.current_time() - start_s < 1.2
        assert (await talks["t"].message()).attempts == 2
        assert trio.current_time() - start_s < 4
        assert breakage.fired == 2
        assert broker.defects.counts["scan"] == 2
        assert broker.health == "OK"
        check_balances(broker)


async def consume_nothing_yet(broker: Broker, topic: str) -> tuple[Conversation, Client]:
    """A consumer with credit for one message."""
    talk, client, _ = connect(broker)
    await talk.subscribe(topic, "c", ready=1)
    return talk, client


async def test_what_is_put_back_is_not_lost_by_a_defect(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that time out while the backend fails in an unknown way stay in memory."""
    async with nsqd_in_memory(msg_timeout_ns=10**9, mem_queue_size=0) as broker:
        talk, _, _ = connect(broker, 2**20)
        await talk.subscribe("t", "c", ready=40)
        for body in numbered(40):
            publish(broker, "t", body)
        await talk.messages(40)
        await talk.say(commands.ready(0))
        await wait_all_tasks_blocked()
        breakage = Breakage(monkeypatch, DiskQueue, "append")
        breakage.forever()
        await trio.sleep(1.5)
        assert breakage.fired
        assert broker.topics["t"].channels["c"].core.depth == 40
        breakage.end()
        await talk.say(commands.ready(40))
        assert sorted(message.body for message in await talk.messages(40)) == numbered(40)
        check_balances(broker)


async def test_a_defect_in_a_look_at_a_client_costs_that_client(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed, for nobody would look after it any more; the others get their heartbeats."""
    async with nsqd_in_memory() as broker:
        victim, client, _ = connect(broker)
        other = Conversation.begin(broker)
        other.shows_heartbeats = True
        breakage = Breakage(monkeypatch, Client, "check_heartbeat")
        breakage.only = lambda subject: subject is client
        breakage.times(1)
        await victim.end()
        await other.frame()
        assert breakage.fired == 1
        assert broker.defects.counts["heartbeat"] == 1
        assert client not in broker.clients


@pytest.mark.parametrize(
    ("part", "of", "method", "after_s"),
    [
        ("metadata", MetadataKeeper, "save", 5),
        ("id_reserve", MetadataKeeper, "reserve_ids", 130),
    ],
)
async def test_a_defect_in_a_timer_costs_a_turn_of_it(
    part: str,
    of: type,
    method: str,
    after_s: float,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timer begins again and does its work; messages flow, and /ping stays OK."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        breakage = Breakage(monkeypatch, of, method)
        breakage.times(1)
        publish(broker, "t", *numbered(3))
        await trio.sleep(after_s)
        assert breakage.fired == 1
        assert broker.defects.counts[part] == 1
        assert broker.defects.counts.total() == 1
        assert broker.health == "OK"
        _, messages = await consume(broker, "t", "c", 3)
        assert sorted(message.body for message in messages) == numbered(3)
        await trio.sleep(after_s)
        if part == "metadata":
            assert b'"t"' in disk.files()["nsqd.dat"]


@pytest.mark.parametrize(
    ("part", "method"), [("disk_sync", "sync"), ("disk_retry", "release_finished_file")]
)
async def test_a_defect_in_a_timer_of_the_disk_costs_a_turn_of_it(
    part: str, method: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer begins again; messages flow, and what was to be durable gets so."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        publish(broker, "t", *numbered(3))
        await trio.sleep(5)
        # Retries look at the queues while anything is wrong.
        broker.folder.faults["a file"] = "broken by the test"
        publish(broker, "t", *numbered(3))
        breakage = Breakage(monkeypatch, DiskQueue, method)
        breakage.times(1)
        await trio.sleep(10)
        assert breakage.fired == 1
        assert broker.defects.counts[part] == broker.defects.counts.total() == 1
        broker.folder.faults.clear()
        assert broker.health == "OK"
        _, messages = await consume(broker, "t", "c", 6)
        assert len(messages) == 6
        assert not breakage.left


async def test_a_defect_at_the_end_of_a_connection_ends_no_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its clean-up meets is counted as that client's."""
    async with nsqd_in_memory() as broker:
        talk, _, _ = connect(broker)
        await talk.subscribe("t", "c", ready=1)
        breakage = Breakage(monkeypatch, ChannelState, "remove_subscription")
        breakage.times(1)
        talk.close()
        await wait_all_tasks_blocked()
        assert breakage.fired == 1
        assert broker.client_failures == 1
        publish(broker, "t", b"x")
        _, [message] = await consume(broker, "t", "c", 1)
        assert message.body == b"x"


async def test_a_connection_that_can_not_be_begun_is_closed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs no listener."""
    async with nsqd_in_memory() as broker:
        breakage = Breakage(monkeypatch, Broker, "connect")
        breakage.times(1)
        _, transport = memory_connection()
        broker.accept(transport)
        assert transport.is_closed
        assert broker.client_failures == 1


async def test_an_error_that_ends_the_broker_comes_after_the_save(
    autojump_clock: MockClock,
) -> None:
    """Every queue is saved as at a stop: waiting, in flight and deferred; then it is raised."""
    disk = SimulatedDisk()

    async def fail() -> None:
        raise TypeError("injected")

    async def run() -> Broker:
        async with nsqd_in_memory(disk=disk) as broker:
            brokers.append(broker)
            publish(broker, "t", *numbered(5))
            publish(broker, "t", b"later", defer_ms=3_600_000)
            await consume(broker, "t", "c", 2)
            assert broker._tasks is not None
            broker._tasks.start_soon(fail)
            await trio.sleep_forever()
        raise AssertionError

    brokers: list[Broker] = []
    with pytest.raises(ExceptionGroup) as caught:
        await run()
    [broker] = brokers
    assert caught.group_contains(TypeError, match="injected")
    assert broker.unsaved == []
    assert broker.exiting
    assert disk.open_files == 0
    async with nsqd_in_memory(disk=disk) as broker:
        core = broker.topics["t"].channels["c"].core
        assert core.depth + core.deferred_count == 6


async def test_a_defect_while_topics_are_loaded_forgets_none(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata keep the topics that were not loaded yet; the next start has all of them."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk) as broker:
        for name in "tuv":
            broker.topic(name).channel("c")
            publish(broker, name, b"x")
    plain = TopicRegistry.topic

    def topic(self: TopicRegistry, name: str) -> Topic:
        if name == "u":
            raise TypeError("injected")
        return plain(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(TopicRegistry, "topic", topic)
        with pytest.raises(ExceptionGroup) as caught:
            async with nsqd_in_memory(disk=disk):
                raise AssertionError
    assert caught.group_contains(TypeError, match="injected")
    async with nsqd_in_memory(disk=disk) as broker:
        assert sorted(broker.topics) == ["t", "u", "v"]
        assert [topic.channels["c"].core.depth for topic in broker.topics.values()] == [1, 1, 1]


async def test_a_defect_in_the_saving_of_one_queue_costs_no_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with its messages; the others are saved whole."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk) as broker:
        for topic in ("t", "u", "v"):
            publish(broker, topic, b"x")
        breakage = Breakage(monkeypatch, Store, "save_memory")
        breakage.only = lambda store: store is broker.topics["u"].core.store
        breakage.forever()
    assert breakage.fired
    [line] = broker.unsaved
    assert line.startswith("u: 1 messages only in memory: a defect of nsqd: TypeError: injected")
    breakage.end()
    async with nsqd_in_memory(disk=disk) as broker:
        assert {name: topic.core.depth for name, topic in broker.topics.items()} == {
            "t": 1,
            "u": 0,
            "v": 1,
        }


async def test_a_cancellation_is_no_defect(autojump_clock: MockClock) -> None:
    """It ends the broker at once, as a second signal does: nothing is saved, nothing counted."""
    disk = SimulatedDisk()
    with trio.CancelScope() as scope:
        async with nsqd_in_memory(disk=disk) as broker:
            publish(broker, "t", b"x")
            await wait_all_tasks_blocked()
            operations = disk.operations
            scope.cancel()
            await trio.sleep_forever()
    assert disk.operations == operations
    assert broker.defects.counts.total() == 0


async def test_a_topic_that_fails_can_be_deleted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing is stopped any more, and one of that name can be made."""
    async with nsqd_in_memory() as broker:
        broker.topic("t").channel("c")
        breakage = Breakage(monkeypatch, TopicState, "pump")
        breakage.forever()
        publish(broker, "t", b"x")
        await trio.sleep(1)
        assert broker.health != "OK"
        broker.delete_topic("t")
        await wait_all_tasks_blocked()
        assert broker.health == "OK"
        breakage.end()
        publish(broker, "t", b"y")
        _, [message] = await consume(broker, "t", "c", 1)
        assert message.body == b"y"


async def test_the_log_has_a_trace_a_minute(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """For each part, with the number of those it left out; all of them are counted."""
    defects = Defects()
    for _ in range(1000):
        for part in ("scan", "topic"):
            with defects.fence(part, "X"):
                raise TypeError("again")
        await trio.sleep(0.1)
    assert defects.counts["scan"] == defects.counts["topic"] == 1000
    records = [record for record in caplog.records if record.exc_info]
    assert len(records) == 4
    assert "(599 more defects of this part since its last traceback)" in caplog.text
    assert defects.last == {"scan": "X: TypeError: again", "topic": "X: TypeError: again"}


def test_all_parts_have_a_counter_from_the_start() -> None:
    """A counter that appears with its first defect can't be alarmed on."""
    assert dict(Defects().counts) == dict.fromkeys(PARTS, 0)
