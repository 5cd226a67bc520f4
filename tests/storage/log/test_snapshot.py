"""Snapshots of a channel's open messages: of one moment, and worked out in turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.helpers import run_out
from tests.storage.log.sweep.world import World
from trionsq.core.channel import ChannelState
from trionsq.core.ids import IdSource
from trionsq.core.subscription import Delivery, Subscription
from trionsq.core.topic import TopicState
from trionsq.storage.folder import DataFolder
from trionsq.storage.log import held as held_module
from trionsq.storage.log import snapshot as snapshot_module
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.ranges import MessageRange, join_ranges, unpack_open
from trionsq.storage.log.rows import UpdateChannel
from trionsq.storage.log.snapshot import ChannelSnapshot, Snapshots
from trionsq.testing.background import InlineBackground
from trionsq.testing.disk import SimulatedDisk, SimulatedFile
from trionsq.testing.logstate import MemoryState
from trionsq.wire.bodies import ListBodies

NOW_NS = 1_795_263_063_880_871_234


class Channel:
    """A channel of a log with consumers, whose messages the test settles one by one.

    Attributes:
        now_s: the time.
    """

    def __init__(self, consumers: int, rdy: int, memory: int = 1000) -> None:
        self.disk = SimulatedDisk()
        self.node = LogNode(DataFolder(self.disk, InlineBackground()), MemoryState(self.disk))
        self.log = self.node.new_topic("t")
        self.topic = TopicState("t", 0, self.log, IdSource(1))
        self.cursor: Cursor = self.node.new_cursor(self.log, "c")
        self.core = ChannelState("c", memory, self.cursor, Random(1))
        self.topic.add_channel(self.core)
        self.now_s = 0.0
        self.consumers = [Subscription(self._take, 10.0) for _ in range(consumers)]
        for one in self.consumers:
            self.core.add_subscription(one)
            self.core.set_ready(one, rdy, self.now_s)

    def _take(self, delivery: Delivery) -> bool:
        delivery.written = True
        return True

    @property
    def now_ns(self) -> int:
        return NOW_NS + int(self.now_s * 1e9)

    def publish(self, count: int, defer_ms: int = 0) -> None:
        self.topic.publish(ListBodies([b"x"] * count), self.now_ns, defer_ms)
        self.topic.pump(self.now_s, self.now_ns)
        self.run()

    def run(self) -> None:
        """Let the channel's task and its scan do what they have."""
        for _ in range(5):
            self.core.dispatch(self.now_s)
        while self.core.wake_at_s <= self.now_s:
            self.core.scan(self.now_s, self.now_ns)

    def snapshot(self) -> ChannelSnapshot:
        return ChannelSnapshot(self.cursor, 1, self.core.store.memory, self.core.in_flight)


def opened(taken: ChannelSnapshot) -> tuple[UpdateChannel, list[MessageRange]]:
    """The row of a snapshot that is done, and what is open in it."""
    row = taken.changes[0]
    assert isinstance(row, UpdateChannel)
    return row, unpack_open(row.row.open)[0]


def sequences(ranges: Iterable[MessageRange]) -> set[int]:
    return {at for one in ranges for at in range(one.sequence, one.sequence + one.count)}


def test_very_many_open_messages_of_one_channel_take_many_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No turn looks at more than a number of messages, however they lie and wherever they are."""
    monkeypatch.setattr(snapshot_module, "_LOOKED_AT_PER_TURN", 50)
    channel = Channel(consumers=3, rdy=400, memory=200)
    for _ in range(8):
        channel.publish(250)
    for one in channel.consumers:
        # Every second one is finished; then some return, to memory and beside it.
        channel.core.set_ready(one, 0, channel.now_s)
        channel.core.finish(one, list(one.in_flight)[::2], channel.now_s)
    for one in channel.consumers[:2]:
        for id_ in list(one.in_flight):
            assert channel.core.requeue(one, id_, 0, channel.now_s, channel.now_ns)
    looked_at = [0]

    def counted(items: Iterable[MessageRange]) -> Iterator[MessageRange]:
        for item in items:
            looked_at[-1] += 1
            yield item

    in_flight = snapshot_module._in_flight_ranges

    def in_flight_ranges(ids: list[bytes], deliveries: list[Delivery]) -> list[MessageRange]:
        looked_at[-1] += len(ids)
        return in_flight(ids, deliveries)

    monkeypatch.setattr(snapshot_module, "join_ranges", lambda items: join_ranges(counted(items)))
    monkeypatch.setattr(snapshot_module, "_in_flight_ranges", in_flight_ranges)
    taken = channel.snapshot()
    steps = taken.steps()
    while next(steps, taken) is None:
        looked_at.append(0)
    assert taken.open_count == 600
    assert sum(looked_at) >= 200 + 600
    assert max(looked_at) <= 2 * 50 + 1
    assert channel.core.in_flight.compacts


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["finish", "requeue", "defer", "touch", "wait", "publish", "ready"]),
        st.integers(0, 2),
        st.integers(0, 200),
    ),
    max_size=12,
)


@given(before=MUTATIONS, meanwhile=MUTATIONS, turn=st.integers(1, 8), memory=st.integers(0, 12))
@settings(deadline=None)
def test_a_snapshot_is_of_the_moment_at_which_it_began(
    before: list[tuple[str, int, int]],
    meanwhile: list[tuple[str, int, int]],
    turn: int,
    memory: int,
) -> None:
    """Whatever consumers do, what times out and what is compacted between two of its turns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_module, "_LOOKED_AT_PER_TURN", turn)
        channel = Channel(consumers=3, rdy=12, memory=memory)
        for _ in range(3):
            channel.publish(12)
        for one in before:
            change(channel, *one)
        at_once = channel.snapshot()
        run_out(at_once.steps())
        taken = channel.snapshot()
        changes = iter(meanwhile)
        for _ in taken.steps():
            for one in islice(changes, 2):
                change(channel, *one)
    assert opened(taken) == opened(at_once)
    assert (taken.low, taken.open_count) == (at_once.low, at_once.open_count)
    assert channel.core.check() is None


def change(channel: Channel, what: str, who: int, which: int) -> None:
    """Do something with a message that is in flight, or with the channel."""
    core, consumer = channel.core, channel.consumers[who]
    ids = list(consumer.in_flight)
    if what == "publish":
        channel.publish(1 + which % 5, 1000 * (which % 2))
    elif what == "wait":
        channel.now_s += (0.1, 2.5, 11.0)[which % 3]
    elif what == "ready":
        core.set_ready(consumer, which % 30, channel.now_s)
    elif ids:
        id_ = ids[which % len(ids)]
        if what == "finish":
            core.finish(consumer, [id_, *ids[: which % 7]], channel.now_s)
        elif what == "touch":
            core.touch(consumer, id_, channel.now_s, 15.0)
        else:
            delay_ms = 3_000 if what == "defer" else 0
            core.requeue(consumer, id_, delay_ms, channel.now_s, channel.now_ns)
    channel.run()


def test_a_delivery_that_is_looked_at_later_is_not_compacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would not say any more what was in flight at the moment of the snapshot."""
    monkeypatch.setattr(snapshot_module, "_LOOKED_AT_PER_TURN", 5)
    channel = Channel(consumers=2, rdy=20)
    channel.publish(40)
    second = channel.consumers[1]
    for one in channel.consumers:
        channel.core.set_ready(one, 0, channel.now_s)
    channel.core.finish(second, list(second.in_flight)[4:], channel.now_s)
    [delivery] = set(second.in_flight.values())
    left = {delivery.batch.sequences[delivery.first + at] for at in range(4)}  # type: ignore[index]
    taken = channel.snapshot()
    steps = taken.steps()
    next(steps)
    channel.core.finish(second, list(second.in_flight)[:1], channel.now_s)
    channel.now_s += 3
    channel.run()
    run_out(steps)
    assert sequences(opened(taken)[1]) >= left
    channel.now_s += 3
    channel.run()
    assert len(delivery.ids) == 3


@pytest.mark.parametrize("how", ["empty", "seek"])
def test_a_snapshot_of_a_channel_that_was_emptied_meanwhile_is_no_use(how: str) -> None:
    """The state has it where the channel goes on, and keeps that; the next snapshot counts."""
    channel, snapshots = Channel(consumers=1, rdy=20), Snapshots()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_module, "_LOOKED_AT_PER_TURN", 5)
        channel.publish(20)
        steps = snapshots.add_channel(channel.core, 1)
        next(steps)
        if how == "empty":
            run_out(channel.core.empty())
        else:
            run_out(channel.core.seek(lambda: channel.cursor.seek(17)))
            channel.core.dispatch(channel.now_s)
        channel.publish(3)
        run_out(steps)
        snapshots.commit(channel.node)
        assert stored_open(channel) == set()
        run_out(snapshots.add_channel(channel.core, 1))
        snapshots.commit(channel.node)
        assert stored_open(channel) == {*range(20 if how == "empty" else 17, 23)}


def test_what_such_a_snapshot_was_to_drop_does_not_outlive_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deferred messages that were delivered, and then emptied, are not held after a restart."""
    monkeypatch.setattr(snapshot_module, "_LOOKED_AT_PER_TURN", 5)
    monkeypatch.setattr(held_module, "_CHUNK_RANGES", 2)
    channel, snapshots = Channel(consumers=1, rdy=20), Snapshots()
    for _ in range(5):
        channel.publish(1, 1_000)
    run_out(snapshots.add_channel(channel.core, 1))
    snapshots.commit(channel.node)
    assert len(channel.node.state.load().held) == 3
    channel.now_s += 2
    channel.run()
    channel.publish(10)
    steps = snapshots.add_channel(channel.core, 1)
    next(steps)
    run_out(channel.core.empty())
    run_out(steps)
    snapshots.commit(channel.node)
    assert not channel.node.state.load().held


def stored_open(channel: Channel) -> set[int]:
    """What the state says is read and not finished."""
    [row] = channel.node.state.load().channels
    return sequences(unpack_open(row.open)[0])


def test_a_start_reads_the_end_of_a_segment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that an earlier start has found, and that takes no more; a crash between that
    start and its first snapshot changes nothing."""
    world = World(Random(1), SimulatedDisk(), MemoryState, "always", 1 << 20, 1 << 20)
    world.open()
    world.make_topic("t")
    topic = world.topics["t"]
    world.make_channel(topic, "c")
    for _ in range(1500):
        world.publish(topic, 1, 0, with_key=True)
        world.settle()
    nbytes = 0
    read = SimulatedFile.read

    def counted(file: SimulatedFile, max_bytes: int, offset: int) -> bytes:
        nonlocal nbytes
        data = read(file, max_bytes, offset)
        nbytes += len(data) if ".log." in file.path else 0
        return data

    monkeypatch.setattr(SimulatedFile, "read", counted)
    size = topic.log.segments[-1].end
    for saves in (True, False, True, True, False):
        if saves:
            world.tick()
        world.settle()
        world.disk = world.disk.after_kill()
        world.stop(is_crash=True, has_lost_power=False)
        nbytes = 0
        world.open()
        assert 0 < nbytes < size // 2
