"""Old segments give way to what is still needed of them, and nobody misses a message."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.core.helpers import MemoryBackend
from tests.storage.log.test_retention import Served
from trionsq.core.channel import ChannelState
from trionsq.core.subscription import Subscription
from trionsq.storage.folder import DataFolder
from trionsq.storage.log import held, replacement
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.opening import open_logs
from trionsq.storage.log.ranges import MessageRange
from trionsq.storage.log.reading import RangesRead
from trionsq.storage.log.remainders import Remainders
from trionsq.storage.log.retention import Retention
from trionsq.storage.log.seeking import first_kept
from trionsq.storage.log.state import WAL_FILE
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import Crashed, SimulatedDisk
from trionsq.testing.logstate import MemoryState

_SEGMENT_BYTES = 4_000
_LATE_MS = 3_600_000


class Flow(Served):
    """A topic with a steady flow, of which some messages are deferred for an hour."""

    def __init__(self, share: float = 0.5, patience: int = 1) -> None:
        super().__init__(_SEGMENT_BYTES)
        self.late: list[bytes] = []
        self.remainders = Remainders(self.node, share=share, min_bytes=0, patience=patience)
        self._count = 0

    def bring(self, count: int, late_every: int = 0, ticks_every: int = 0) -> None:
        """Publish messages of 250 bytes, and finish what comes."""
        for number in range(self._count, self._count + count):
            is_late = late_every and not number % late_every
            body = b"%05d" % number + bytes(245)
            self.late += [body] * bool(is_late)
            self.publish(body, defer_ms=_LATE_MS if is_late else 0)
            self.finish()
            if ticks_every and not number % ticks_every:
                self.work()
        self._count += count

    def work(self, ticks: int = 1) -> None:
        """Make remainders as ticks do."""
        for _ in range(ticks):
            self.tick()
            self.remainders.tick(self.snapshots)
            self.turn()

    @property
    def nbytes(self) -> int:
        """The size of all segments."""
        return sum(len(self.disk.files()[name]) for name in self.files)


def late_after(disk: SimulatedDisk) -> list[bytes]:
    """Start on a disk; return what its one channel has after an hour."""
    state = MemoryState(disk)
    content, jobs = state.load(), HeldBackground()
    node = LogNode(DataFolder(disk, jobs), state, next_number=content.next_number)
    [found] = open_logs(node, content)
    [cursor] = found.channels
    jobs.run_all()
    assert not node.folder.faults
    return bodies_of(cursor, jobs)


def bodies_of(cursor: Cursor, jobs: HeldBackground) -> list[bytes]:
    """The bodies of all that a channel has."""
    core = ChannelState("c", 1_000, cursor, Random(1))
    bodies: list[bytes] = []

    def offer(delivery: object) -> bool:
        segment = delivery
        batch, first, last = segment.batch, segment.first, segment.last  # type: ignore[attr-defined]
        bodies.extend(map(bytes, batch.bodies.slice(first, last)))
        return True

    consumer = Subscription(offer, 3600.0)
    core.add_subscription(consumer)
    core.set_ready(consumer, 1_000, 0.0)
    for _ in range(10):
        core.scan(0.0, 1 << 62)
        jobs.run_all()
    assert not core.depth + core.deferred_count
    assert not core.dropped["damaged"]
    return sorted(bodies)


@pytest.mark.parametrize("late_every", [7, 20, 90])
def test_few_deferred_messages_under_a_steady_flow_take_little_of_the_disk(late_every: int) -> None:
    """The log is about as large as what is still needed of it; all of that comes, once, when it is
    due, also after a restart."""
    flow = Flow()
    for _ in range(4):
        flow.bring(100, late_every, ticks_every=4)
        flow.work(3)
        held = len(flow.late)
        assert flow.nbytes < 3 * _SEGMENT_BYTES + held * 500
        assert len(flow.files) < 5 + held // 4
        assert flow.channel.deferred_count == held
        counted = flow.log.figures.disk_nbytes(flow.log.segments)
        assert counted <= flow.nbytes < counted + _SEGMENT_BYTES  # the newest one has room
    assert late_after(flow.disk.after_power_loss()) == flow.late
    flow.turn(_LATE_MS / 1000)
    assert flow.channel.in_flight.count == held
    assert not flow.node.folder.faults
    assert flow.channel.check() is None
    flow.finish()
    flow.work(2)
    assert len(flow.files) == 1


def test_a_message_that_is_long_in_flight_keeps_its_attempts_and_its_id() -> None:
    """It is requeued from the small segment as from the large one."""
    flow = Flow()
    flow.publish(b"slow")
    [id_] = flow.consumer.in_flight
    for _ in range(4):
        for _ in range(15):
            flow.publish(bytes(250))
        flow.finish(b"slow")
        flow.work(3)
    assert flow.log.segments[0].end < 300
    flow.log.cache.clear()
    core = flow.channel
    assert core.requeue(flow.consumer, id_, 1_000, 0.0, flow.now_ns)
    flow.work()
    flow.turn(2)
    assert list(flow.consumer.in_flight) == [id_]
    delivery = flow.consumer.in_flight[id_]
    assert delivery.attempts == 2
    assert delivery.batch.bodies.body_at(delivery.first) == b"slow"


def test_a_channel_that_is_behind_keeps_all() -> None:
    """What it has to read, no remainder leaves out."""
    flow = Flow()
    flow.add_channel("slow")
    flow.bring(60, late_every=20)
    before = flow.files
    flow.work(5)
    assert flow.files == before


def test_very_many_messages_far_apart_are_looked_at_in_several_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No job takes long for them, or looks on when they are too many; what is needed stays."""
    monkeypatch.setattr(replacement, "_LOOKED_AT_PER_STEP", 2)
    monkeypatch.setattr(held, "_CHUNK_RANGES", 2)
    flow = Flow()
    flow.bring(40, late_every=9)
    before = flow.files
    monkeypatch.setattr(replacement, "_MAX_RANGES", 1)
    flow.work(5)
    assert flow.files == before
    monkeypatch.setattr(replacement, "_MAX_RANGES", 100)
    flow.tick()
    flow.remainders.tick(flow.snapshots)
    jobs = 0
    while flow.jobs:
        jobs += 1
        flow.jobs.run_one()
    assert jobs >= len(flow.late) // 2
    flow.work(5)
    assert len(flow.files) < len(before)
    assert late_after(flow.disk.after_power_loss()) == flow.late


def test_a_channel_in_memory_keeps_nothing() -> None:
    """An ephemeral channel has what it holds in memory, and so no segment."""
    flow = Flow()
    flow.topic.add_channel(ChannelState("e#ephemeral", 5, MemoryBackend(), Random(1)))
    flow.bring(60, late_every=20)
    flow.work(5)
    assert flow.nbytes < 2 * _SEGMENT_BYTES


@pytest.mark.parametrize("fails", [None, "sync", "sync_folder", "rename", "create", "write"])
def test_each_crash_leaves_the_old_segments_or_the_new_one(fails: str | None) -> None:
    """A kill, or a power cut, at any operation while a remainder takes up the one before it, also
    when the disk fails: all that is deferred comes."""
    at, has_ended = 0, False
    while not has_ended:
        at += 1
        flow = Flow()
        flow.bring(25, late_every=9)
        flow.work(3)
        flow.bring(13, late_every=9)
        assert len(flow.log.segments) == 3
        assert flow.log.segments[0].header.is_remainder
        if fails is not None:
            flow.disk.fail(errno.EIO, only=[fails], name="*" if fails == "sync_folder" else "t.*")
        flow.disk.crash_at(at)
        try:
            flow.work(3)
            has_ended = True
        except Crashed:
            pass
        disk = flow.disk
        if has_ended:
            assert len(flow.log.segments) == 2 or fails
            assert not [name for name in disk.files() if name.endswith(".tmp")]
        for crashed in [disk.after_kill(), *(disk.after_power_loss() for _ in range(4))]:
            assert late_after(crashed) == flow.late
            # And once more: what the first start removed, or did not, changes nothing.
            assert late_after(crashed.after_power_loss()) == flow.late
    assert at > 6


def test_a_read_that_meets_a_new_file_is_repeated() -> None:
    """It was begun with the old segments: that is no damage, and no message is lost."""
    flow = Flow()
    flow.bring(25, late_every=9)
    flow.tick()
    flow.remainders.tick(flow.snapshots)
    flow.jobs.run_one()  # it has chosen
    flow.remainders.tick(flow.snapshots)
    flow.jobs.start_one()
    assert any(segment.is_replaced for segment in flow.log.segments)
    found: list[RangesRead] = []
    flow.log.read_ranges([MessageRange(0, 1, 0), MessageRange(9, 1, 0)], found.append)
    flow.jobs.start_one()
    flow.jobs.run_all()
    [read] = found
    assert (len(read.segments), read.lost, read.damage) == (2, 0, [])
    assert not flow.node.folder.faults


def test_files_stay_while_somebody_copies_them() -> None:
    """No remainder is begun during a backup, whose state may need more."""
    flow = Flow()
    flow.bring(40, late_every=20)
    before = flow.files
    flow.node.hold_files()
    flow.work(5)
    assert flow.files == before
    flow.node.release_files()
    flow.work(5)
    assert len(flow.files) < len(before)


def test_nothing_is_left_out_that_a_state_needs_whose_successor_failed() -> None:
    """A crash would go back to it: a remainder waits for the next commit."""
    flow = Flow()
    flow.bring(40, late_every=20)
    before = flow.nbytes
    flow.disk.fail(errno.EIO, only=["sync"], name=WAL_FILE)
    flow.tick()
    assert flow.node.figures.failed_commits == 1
    flow.disk.fail(errno.EIO, only=["sync"], name=WAL_FILE)
    flow.remainders.tick(flow.snapshots)
    flow.turn()
    flow.remainders.tick(flow.snapshots)
    assert flow.node.figures.failed_commits == 2
    assert flow.nbytes == before
    flow.work(5)
    assert flow.nbytes < before // 2


@pytest.mark.parametrize("jobs", range(4))
def test_a_topic_that_is_deleted_meanwhile_leaves_nothing(jobs: int) -> None:
    """Neither its segments nor a remainder that is half made."""
    flow = Flow()
    flow.bring(40, late_every=20)
    flow.tick()
    for _ in range(2):
        flow.remainders.tick(flow.snapshots)
        for _ in range(min(jobs, len(flow.jobs))):
            flow.jobs.run_one()
    flow.log.delete()
    for _ in range(3):
        flow.remainders.tick(flow.snapshots)
        flow.jobs.run_all()
    assert not flow.files
    assert not flow.node.holds


def test_a_read_of_a_topic_that_is_deleted_meanwhile_ends() -> None:
    """It finds no file, and does not ask for a new one again and again."""
    flow = Flow()
    flow.bring(25, late_every=9)
    flow.tick()
    flow.remainders.tick(flow.snapshots)
    flow.jobs.run_one()  # it has chosen
    flow.remainders.tick(flow.snapshots)
    flow.jobs.start_one()
    found: list[RangesRead] = []
    flow.log.delete()
    flow.log.read_ranges([MessageRange(0, 1, 0), MessageRange(9, 1, 0)], found.append)
    for _ in range(20):
        if flow.jobs:
            flow.jobs.run_one()
    assert found
    assert not flow.jobs
    assert not flow.files


@pytest.mark.parametrize("steps", range(3))
def test_a_stop_meanwhile_leaves_what_was_there(steps: int) -> None:
    """A remainder that is not complete is given up."""
    flow = Flow()
    flow.bring(40, late_every=20)
    flow.tick()
    for _ in range(steps):
        flow.remainders.tick(flow.snapshots)
        if steps < 2:
            flow.jobs.run_one()
    flow.remainders.close()
    flow.jobs.run_all()
    assert not flow.node.holds
    assert not [name for name in flow.disk.files() if name.endswith(".tmp")]
    assert late_after(flow.disk.after_power_loss()) == flow.late


def test_damage_in_what_is_needed_stays_where_it_is() -> None:
    """An operator can still look at it, and all that is good still comes."""
    flow = Flow()
    flow.bring(20, late_every=9)
    name = flow.files[0]
    data = bytearray(flow.disk.files()[name])
    data[data.index(flow.late[1]) + 100] ^= 4
    flow.disk.write_file(name, bytes(data))
    flow.log.cache.clear()
    flow.work(5)
    assert flow.disk.files()[name] == bytes(data)
    assert flow.log.whole_from == 0
    flow.turn(_LATE_MS / 1000)
    assert flow.channel.in_flight.count == len(flow.late) - 1
    assert flow.channel.dropped["damaged"] == 1


def test_what_is_left_out_no_channel_can_go_back_to() -> None:
    """The log says from where on it has all messages, also after a start."""
    flow = Flow()
    flow.bring(40, late_every=20)
    assert flow.log.whole_from == 0
    flow.work(5)
    whole_from = flow.log.whole_from
    assert flow.log.first < whole_from == flow.log.segments[-1].first
    state = MemoryState(flow.disk.after_kill())
    node = LogNode(DataFolder(state._disk, HeldBackground()), state)
    [found] = open_logs(node, state.load())
    assert found.log.whole_from == whole_from
    assert first_kept(found.log) == first_kept(flow.log) == whole_from


def test_a_log_with_a_retention_keeps_what_is_finished() -> None:
    """An operator wants to read it again: no remainder leaves it out."""
    flow = Flow()
    flow.snapshots.retentions.default = Retention(nbytes=1_000_000)
    flow.bring(40, late_every=20)
    before = flow.files
    flow.work(5)
    assert flow.files == before
    assert first_kept(flow.log) == 0


@pytest.mark.parametrize("jobs", range(3))
@pytest.mark.parametrize("how", ["seek", "new"])
def test_what_a_channel_has_gone_back_to_is_not_left_out(how: str, jobs: int) -> None:
    """Nor if it has read on meanwhile, and so is past it again: it may requeue what it has."""
    flow = Flow()
    flow.bring(40, late_every=20)
    flow.tick()
    flow.remainders.tick(flow.snapshots)
    for _ in range(jobs):
        if flow.jobs and not flow.log.whole_from:
            flow.jobs.run_one()
    begin_at = first_kept(flow.log)
    channel, consumer = flow.channel, flow.consumer
    if how == "new":
        cursor = flow.node.new_cursor(flow.log, "new", begin_at)
        channel = ChannelState("new", 1_000, cursor, Random(1))
        flow.topic.add_channel(channel)
        consumer = Subscription(lambda delivery: True, 3600.0)
        channel.add_subscription(consumer)
    else:
        backend = channel.store.backend
        assert isinstance(backend, Cursor)
        for _ in channel.seek(lambda: backend.seek(begin_at)):
            pass
    channel.set_ready(consumer, 1_000, 0.0)
    for _ in range(5):
        flow.turn()
        flow.remainders.tick(flow.snapshots)
    flow.turn()
    count = sum(1 for one in range(begin_at, 40) if one % 20)
    assert channel.in_flight.count == count
    flow.log.cache.clear()
    for id_ in list(consumer.in_flight):
        assert channel.requeue(consumer, id_, 1_000, 0.0, flow.now_ns)
    flow.turn(2)
    assert channel.in_flight.count == count
    assert not channel.dropped["damaged"]
    assert not flow.node.folder.faults


def test_a_channel_that_begins_behind_a_remainder_lacks_no_message() -> None:
    """A log begins behind what is there only in part, also while that is being made."""
    flow = Flow()
    flow.bring(40, late_every=20)
    for _ in range(8):
        flow.tick()
        flow.remainders.tick(flow.snapshots)
        if flow.jobs:
            flow.jobs.run_one()
        flow.log.cache.clear()
        begin_at = first_kept(flow.log)
        cursor = flow.node.new_cursor(flow.log, "new", begin_at)
        assert len(bodies_of(cursor, flow.jobs)) == 40 - begin_at
        cursor.delete()
