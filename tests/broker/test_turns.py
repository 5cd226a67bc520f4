"""No turn of the event loop does more than a bounded amount of work, however much there is.

What is counted is the work of the longest step of any task, not its time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances, connect, numbered, publish
from tests.broker.upgrading import Upgrading
from trionsq.broker.channel import Channel
from trionsq.broker.client import _READ_BYTES, Client
from trionsq.broker.runtime import Clock
from trionsq.broker.topic import PublishRefused
from trionsq.broker.topic_mover import _MAX_SEGMENTS
from trionsq.core.channel import ChannelState
from trionsq.core.in_flight import InFlight
from trionsq.core.queue import Store
from trionsq.core.subscription import Delivery
from trionsq.core.topic import TopicState
from trionsq.durations import SECOND_NS
from trionsq.storage.diskqueue import DiskQueue
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import MemoryTransport
from trionsq.transports.transport import MAX_FULL_READS, LayeredTransport
from trionsq.transports.watches import _READS_PER_TRIAL
from trionsq.wire import commands


class Steps(trio.abc.Instrument):
    """Counts work, and knows the most that one step of a task did.

    Attributes:
        most: of the longest step.
        total: of all steps.
    """

    def __init__(self) -> None:
        self.most = self.total = self._now = 0

    def work(self, units: int = 1) -> None:
        self._now += units
        self.total += units
        self.most = max(self.most, self._now)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._now = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._now = 0

    def begin(self) -> None:
        """Count from now on."""
        self.most = self.total = self._now = 0

    def watch(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cls: type,
        name: str,
        units: Callable[..., int] = lambda *args: 1,
    ) -> None:
        """Count the calls of a method, or what they do."""
        original = getattr(cls, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.work(units(*args))
            return original(*args, **kwargs)

        monkeypatch.setattr(cls, name, counted)


@pytest.fixture
async def steps() -> Any:
    instrument = Steps()
    trio.lowlevel.add_instrument(instrument)
    yield instrument
    trio.lowlevel.remove_instrument(instrument)


class CountedTable(dict[bytes, Delivery]):
    """A table of messages in flight that counts how often it is looked at."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def __contains__(self, id_: object) -> bool:
        self._steps.work()
        return super().__contains__(id_)

    def __len__(self) -> int:
        self._steps.work()
        return super().__len__()

    def __bool__(self) -> bool:
        self._steps.work()
        return super().__len__() > 0


@pytest.mark.parametrize("command", ["FIN", "REQ", "TOUCH"])
@pytest.mark.parametrize("idle", [10, 1000])
async def test_a_late_fin_looks_at_few_consumers_in_a_turn(
    idle: int, command: str, steps: Steps, autojump_clock: MockClock
) -> None:
    """Of thousands on a channel. Each is answered as ever, and others go on meanwhile."""
    async with nsqd_in_memory() as broker:
        asking = Conversation.begin(broker, capacity_bytes=2**20)
        await asking.subscribe("t", "c")
        holder = Conversation.begin(broker)
        await holder.subscribe("t", "c", ready=1)
        publish(broker, "t", b"x")
        held = (await holder.message()).message_id
        channel = broker.topics["t"].channels["c"]
        for _ in range(idle):
            _, client, _ = connect(broker)
            client.consumer.in_flight = CountedTable(steps)
            channel.add_client(client, 0)
        ids = [b"%016x" % number for number in range(30)]
        make = {"FIN": commands.finish, "TOUCH": commands.touch}.get(
            command, lambda id_: commands.requeue(id_, 0)
        )
        await wait_all_tasks_blocked()
        steps.begin()
        await asking.say(*map(make, ids), make(held))
        for id_ in ids:
            assert await asking.error() == (
                f"E_{command}_FAILED {command} {id_.decode()} failed ID not in flight"
            )
        assert "client does not own message" in await asking.error()
        assert steps.total >= idle
        assert steps.most <= 2500
        for client in list(broker.clients):
            client.close()
    assert broker.client_failures == 0


@pytest.mark.parametrize("count", [10, 3000])
async def test_messages_time_out_in_turns(
    count: int, steps: Steps, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many at the same moment: the last one comes back as soon as the first."""
    steps.watch(monkeypatch, Store, "restore", lambda store, segment: segment.count)
    async with nsqd_in_memory(msg_timeout_ns=2 * SECOND_NS, max_rdy_count=10_000) as broker:
        consumer = Conversation.begin(broker, capacity_bytes=2**22)
        await consumer.subscribe("t", "c", ready=10_000)
        publish(broker, "t", *numbered(count))
        await consumer.messages(count)
        core = broker.topics["t"].channels["c"].core
        steps.begin()
        await consumer.say(commands.ready(0))
        await trio.sleep(2.2)
        assert (core.timeout_count, core.depth, core.in_flight_count) == (count, count, 0)
        assert steps.total == count
        assert steps.most <= 1000
        check_balances(broker)


@pytest.mark.parametrize("count", [10, 3000])
async def test_deferred_messages_come_due_in_turns(
    count: int, steps: Steps, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many at the same moment."""
    steps.watch(monkeypatch, Store, "restore", lambda store, segment: segment.count)
    async with nsqd_in_memory() as broker:
        broker.topic("t").channel("c")
        for body in numbered(count):
            publish(broker, "t", body, defer_ms=5000)
        await trio.sleep(1)
        core = broker.topics["t"].channels["c"].core
        assert (core.deferred_count, core.depth) == (count, 0)
        await trio.sleep(5)
        assert (core.deferred_count, core.depth) == (0, count)
        assert steps.most <= 1000


@pytest.mark.parametrize("count", [10, 1000])
async def test_deferred_messages_are_read_from_disk_in_turns(
    count: int, steps: Steps, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the first RDY reads a few at a time, and what is behind them comes."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    async with nsqd_in_memory(disk=disk, clock=clock) as broker:
        broker.topic("t").channel("c")
        for body in numbered(count):
            publish(broker, "t", body, defer_ms=600_000)
        await trio.sleep(1)
    steps.watch(monkeypatch, DiskQueue, "read")
    async with nsqd_in_memory(disk=disk, clock=clock, mem_queue_size=0) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c")
        publish(broker, "t", b"behind")
        await wait_all_tasks_blocked()
        steps.begin()
        await consumer.say(commands.ready(1))
        assert (await consumer.message()).body == b"behind"
        core = broker.topics["t"].channels["c"].core
        assert (core.deferred_count, core.store.backend.depth) == (count, 0)
        assert count < steps.total <= count + 5
        assert steps.most <= 65
        assert broker.topics["t"].channels["c"].check() is None


@pytest.mark.parametrize("count", [10, 3000])
async def test_a_backlog_is_handed_out_in_turns(
    count: int, steps: Steps, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a channel is unpaused, as many as wait for it."""
    steps.watch(monkeypatch, ChannelState, "_deliver")
    async with nsqd_in_memory() as broker:
        channel = broker.topic("t").channel("c")
        channel.pause()
        for body in numbered(count):
            publish(broker, "t", body)
        clients = [connect(broker)[1] for _ in range(count // 10)]
        for client in clients:
            client.consumer.rdy = 10
            client.channel = channel
            channel.add_client(client, 0)
            channel.core.offer_credit(client.consumer, 0.0)
        await trio.sleep(1)
        steps.begin()
        channel.unpause()
        await wait_all_tasks_blocked()
        assert channel.core.in_flight_count == count
        assert steps.most <= 80
        check_balances(broker)
        for client in clients:
            client.close()


@pytest.mark.parametrize("count", [10, 1500])
async def test_a_batch_fans_out_in_turns(
    count: int, steps: Steps, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To any number of channels; each gets all of it, in order."""
    steps.watch(monkeypatch, ChannelState, "put")
    async with nsqd_in_memory() as broker:
        topic = broker.topic("t")
        for number in range(count):
            topic.channel(f"c{number}")
        await trio.sleep(1)
        steps.begin()
        for body in numbered(3):
            publish(broker, "t", body)
        await wait_all_tasks_blocked()
        assert {channel.core.depth for channel in topic.channels.values()} == {3}
        assert steps.total == 3 * count
        assert steps.most <= 1024 + 512
        check_balances(broker)


async def test_channels_come_and_go_amid_a_fan_out(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one does not get the batch under way, a deleted one holds up nobody."""
    monkeypatch.setattr("trionsq.core.topic._MAX_PUMP", 10)
    monkeypatch.setattr("trionsq.broker.topic_mover._MAX_COST", 10)
    async with nsqd_in_memory() as broker:
        topic = broker.topic("t")
        for number in range(100):
            topic.channel(f"c{number}")
        await wait_all_tasks_blocked()
        publish(broker, "t", b"1")
        while topic.channels["c30"].core.depth == 0:
            await trio.lowlevel.checkpoint()
        assert (topic.channels["c99"].core.depth, topic.core.depth) == (0, 1)
        topic.channel("new")
        for number in (2, 60, 61, 99):
            topic.delete_channel(f"c{number}")
        publish(broker, "t", b"2")
        topic.pause()
        await trio.sleep(1)
        assert topic.channels["c98"].core.depth == 0
        topic.unpause()
        await trio.sleep(1)
        depths = {name: channel.core.depth for name, channel in topic.channels.items()}
        assert depths.pop("new") == 1
        assert set(depths.values()) == {2}
        check_balances(broker)


@pytest.mark.parametrize("what", ["channel", "topic"])
async def test_clients_of_what_is_deleted_are_closed_in_turns(
    what: str, steps: Steps, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are; all of them are closed when the answer is given."""
    steps.watch(monkeypatch, Client, "close")
    async with nsqd_in_memory() as broker:
        topic = broker.topic("t")
        channel = topic.channel("c")
        for _ in range(300):
            _, client, _ = connect(broker)
            client.channel = channel
            channel.add_client(client, 0)
        await wait_all_tasks_blocked()
        steps.begin()
        chore = topic.delete_channel("c") if what == "channel" else broker.delete_topic("t")
        assert channel.exiting
        await chore.wait()
        await wait_all_tasks_blocked()
        assert (steps.total, len(broker.clients)) == (300, 0)
        assert steps.most <= 32


@pytest.mark.parametrize("count", [10, 300])
async def test_a_topic_is_deleted_in_turns(
    count: int, steps: Steps, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any number of channels. Its name is free at once, and nothing of before comes back."""
    steps.watch(monkeypatch, Channel, "close")
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        old = broker.topic("t")
        for number in range(count):
            old.channel(f"c{number}")
        publish(broker, "t", b"old")
        await trio.sleep(1)
        steps.begin()
        chore = broker.delete_topic("t")
        with pytest.raises(PublishRefused, match="exiting"):
            old.publish(None)  # type: ignore[arg-type]  # refused before it looks
        # One whose turn has not come.
        name = f"c{count - 1}"
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", name, ready=5)
        await chore.wait()
        publish(broker, "t", b"new")
        assert (await consumer.message()).body == b"new"
        await consumer.silence(2)
        assert (old.channels, steps.total) == ({}, count)
        assert steps.most <= 17
        assert not broker.registry._closing
        check_balances(broker)


async def test_a_stop_amid_a_deletion_deletes_the_rest(autojump_clock: MockClock) -> None:
    """No file of a deleted topic is left for one that is made later under its name."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, mem_queue_size=0) as broker:
        topic = broker.topic("t")
        for number in range(100):
            topic.channel(f"c{number}")
        publish(broker, "t", b"old")
        await trio.sleep(1)
        broker.delete_topic("t")
        assert topic.channels
    assert not [name for name in disk.names() if name.startswith(("t.", "t:"))]


@pytest.mark.parametrize("count", [10, 5000])
async def test_a_channel_is_emptied_in_turns(
    count: int, steps: Steps, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting, in flight and deferred messages, of any number of clients."""
    steps.watch(monkeypatch, InFlight, "drop_emptied")
    async with nsqd_in_memory(mem_queue_size=10**6) as broker:
        channel = broker.topic("t").channel("c")
        clients = [connect(broker)[1] for _ in range(count // 10)]
        for client in clients:
            client.channel = channel
            channel.add_client(client, 0)
            channel.core.set_ready(client.consumer, 10, 0.0)
        for body in numbered(2 * count):
            publish(broker, "t", body)
        for body in numbered(count):
            publish(broker, "t", body, defer_ms=5000)
        await trio.sleep(1)
        core = channel.core
        assert (core.in_flight_count, core.depth, core.deferred_count) == (count, count, count)
        steps.begin()
        chore = channel.empty()
        assert (core.depth, core.deferred_count) == (0, 0)
        await chore.wait()
        assert (core.in_flight_count, core.dropped["emptied"]) == (0, 3 * count)
        assert steps.total == count // 10
        assert steps.most <= 182  # 2,000 units: each client is one, and its ten messages
        assert len(core.waiting) == count // 10
        check_balances(broker)
        for client in clients:
            client.close()


async def test_few_of_many_waiting_publishers_look_for_room(
    steps: Steps, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind them stand in line; when there is room all publish."""
    async with nsqd_in_memory(mem_queue_size=1) as broker:
        topic = broker.topic("t")
        looks: list[int] = []
        waiting = True
        monkeypatch.setattr(type(topic), "should_wait", lambda self, count: look())

        def look() -> bool:
            looks.append(trio.lowlevel.current_statistics().tasks_living)
            return waiting

        done = 0

        async def publisher() -> None:
            nonlocal done
            await topic.wait_for_room(1)
            done += 1

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(publisher)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            looks.clear()
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            assert 0 < len(looks) <= 12 * 16
            waiting = False
        assert done == 200


async def test_single_messages_fan_out_in_turns(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """A backlog of many publishes goes to the first channel some at a time."""
    async with nsqd_in_memory() as broker:
        for number in range(2000):
            publish(broker, "t", b"%d" % number)
        steps.watch(monkeypatch, TopicState, "pump")
        channel = broker.topic("t").channel("c")
        await wait_all_tasks_blocked()
        assert channel.core.depth == 2000
        assert steps.total >= 2000
        assert steps.most <= _MAX_SEGMENTS + 1


@pytest.mark.parametrize(
    ("nbytes", "reads_max"), [(4, _READS_PER_TRIAL), (_READ_BYTES, MAX_FULL_READS)]
)
async def test_a_client_that_always_has_input_leaves_others_their_turn(
    nbytes: int,
    reads_max: int,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    """However small or large what it sends: a step has a bounded number of reads."""
    original, left = MemoryTransport.receive_nowait, 200

    def receive_nowait(self: MemoryTransport, max_bytes: int) -> bytes | None:
        nonlocal left
        steps.work()
        left -= 1
        return b"NOP\n" * (nbytes // 4) if left > 0 else original(self, max_bytes)

    async with nsqd_in_memory() as broker:
        client = Conversation.begin(broker)
        await client.subscribe("t", "c")
        await wait_all_tasks_blocked()
        monkeypatch.setattr(MemoryTransport, "receive_nowait", receive_nowait)
        steps.begin()
        await client.say(b"NOP\n")
        await wait_all_tasks_blocked()
        assert left <= 0
        assert steps.most <= reads_max + 1


async def test_a_client_with_layers_leaves_others_a_turn_after_each_full_read(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """A full read of what is compressed may have cost its sender a thousandth."""
    original, left = LayeredTransport.receive_nowait, 200

    def receive_nowait(self: LayeredTransport, max_bytes: int) -> bytes | None:
        nonlocal left
        steps.work()
        left -= 1
        return b"NOP\n" * (_READ_BYTES // 4) if left > 0 else original(self, max_bytes)

    async with nsqd_in_memory() as broker:
        client = Upgrading(broker)
        await client.upgrade("snappy")
        monkeypatch.setattr(LayeredTransport, "receive_nowait", receive_nowait)
        steps.begin()
        await client.say(b"NOP\n")
        await wait_all_tasks_blocked()
        assert left <= 0
        assert steps.most <= 2
        assert client.client in broker.clients
