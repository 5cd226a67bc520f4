"""What a log tells its publishers and keeps for its channels, when jobs or crashes intervene."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from tests.core.helpers import MemoryBackend
from trionsq.core.batch import ListColumn, MessageBatch, Segment
from trionsq.core.channel import ChannelState
from trionsq.core.ids import IdSource
from trionsq.core.round import Round
from trionsq.core.topic import TopicState
from trionsq.storage.folder import DataFolder
from trionsq.storage.log import budgets
from trionsq.storage.log.format import SEGMENT_HEADER_BYTES
from trionsq.storage.log.held import HeldMessages
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.opening import open_logs
from trionsq.storage.log.ranges import HeldRange, MessageRange
from trionsq.storage.log.reading import RangesRead
from trionsq.storage.log.rows import UpdateTopic
from trionsq.storage.log.snapshot import Snapshots
from trionsq.storage.log.state import STATE_FILE, WAL_FILE
from trionsq.storage.log.tailcache import TailCache
from trionsq.storage.log.topiclog import TopicLog
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import Crashed, SimulatedDisk
from trionsq.testing.logstate import MemoryState
from trionsq.wire.bodies import ListBodies

NOW_NS = 1_700_000_000_000_000_000


class Node:
    """A node with one topic; its jobs wait until they are told to run."""

    def __init__(self, durability: str = "always", segment_bytes: int = 1 << 20) -> None:
        self.disk = SimulatedDisk()
        self.jobs = HeldBackground()
        folder = DataFolder(self.disk, self.jobs)
        self.node = LogNode(
            folder, MemoryState(self.disk), durability=durability, segment_bytes=segment_bytes
        )
        self.log: TopicLog = self.node.new_topic("t")
        self.topic = TopicState("t", 0, self.log, IdSource(1))
        self.jobs.run_all()


def test_a_publish_of_an_idle_node_waits_for_its_round() -> None:
    """The publisher hears nothing while the job that writes its message runs."""
    node = Node()
    pending = node.topic.publish(ListBodies([b"a"]), NOW_NS)
    assert pending is not None
    heard: list[str | None] = []
    pending.when_done(lambda: heard.append(pending.error))
    assert heard == []
    node.jobs.run_all()
    assert heard == [None]
    assert node.log.pending is None


def test_a_job_takes_what_gathered_before_the_one_before_is_told_of() -> None:
    """Many publishers do not wait for a turn of the event loop; they hear in order."""
    node = Node()
    node.jobs.writes_directly = False
    bodies = [b"%d" % number for number in range(100)]
    heard: list[bytes] = []
    for body in bodies:
        publish(node, body).when_done(lambda body=body: heard.append(body))  # type: ignore[misc]
    node.jobs.start_one()
    node.jobs.start_one()
    assert heard == []
    disk = node.disk.after_power_loss()
    node.jobs.run_all()
    assert heard == bodies
    assert node.log.check() is None
    assert read_all(*start(disk)) == bodies


def test_few_messages_wait_for_a_turn_of_the_event_loop() -> None:
    """Then they have become more: rounds of one or two would cost more than they bring."""
    node = Node()
    node.jobs.writes_directly = False
    for body in (b"a", b"b"):
        publish(node, body)
    node.jobs.start_one()
    with pytest.raises(IndexError):
        node.jobs.start_one()
    last = publish(node, b"c")
    node.jobs.run_one()
    node.jobs.run_one()
    assert last.is_done
    assert node.log.check() is None


def test_behind_a_round_that_failed_the_next_one_waits() -> None:
    """The event loop hears first which sequences have no message."""
    node = Node()
    node.jobs.writes_directly = False
    node.disk.fail(errno.EIO, only=["write"])
    node.disk.fail(errno.EIO, at=2, only=["write"])
    rounds = [publish(node, body) for body in [b"a", *[b"b"] * 100]]
    node.jobs.start_one()
    with pytest.raises(IndexError):
        node.jobs.start_one()
    node.jobs.run_all()
    assert [bool(one.error) for one in rounds] == [True] + [False] * 100
    assert node.log.check() is None
    assert read_all(*start(node.disk.after_power_loss())) == [b"b"] * 100


def test_what_a_crash_made_of_a_round_that_failed_is_a_gap() -> None:
    """No state has it, but the segment behind it: nobody takes it for a message that is lost."""
    node = Node()
    publish(node, b"a")
    node.jobs.run_all()
    node.disk.fail(errno.EIO, only=["write"])
    node.disk.fail(errno.EIO, at=2, only=["write"])
    refused = publish(node, b"b")
    node.jobs.run_all()
    assert refused.error
    publish(node, b"c")
    node.jobs.run_all()
    _, log = start(node.disk.after_power_loss())
    assert list(log.gaps) == [(1, 2)]
    assert (log.depth, log.end) == (2, 3)


def test_what_a_thread_would_go_on_with_may_be_gone() -> None:
    """A topic is deleted while a job of it runs: the jobs that follow begin all the same."""
    node = Node()
    node.jobs.writes_directly = False
    publish(node, b"a")
    for _ in range(100):
        publish(node, b"b")
    assert node.node._jobs.forget_log(node.log) is not None
    node.jobs.run_all()
    node.log.end = node.log.safe_end
    later = publish(node, b"c")
    node.jobs.run_all()
    assert later.is_done


def test_what_a_deleted_topic_has_gathered_is_refused() -> None:
    """Its publishers hear that the topic is deleted; what a job is writing is as it may be."""
    node = Node()
    rounds = [publish(node, body) for body in (b"a", b"b")]
    node.log.delete()
    assert rounds[1].error == "the topic is deleted"
    node.log.sync()
    node.jobs.run_all()
    assert all(one.is_done for one in rounds)
    assert [name for name in node.disk.files() if name.startswith("t.log")] == []


def test_a_commit_of_nothing_ends() -> None:
    """An operator's command may wait for one that a full disk's retry began."""
    node = Node()
    committed = node.node.commit([])
    assert node.node.committed() is committed
    node.jobs.run_all()
    assert committed.is_done
    assert committed.error is None


def test_changes_that_failed_are_not_durable_while_a_round_takes_them_along() -> None:
    """Who asks meanwhile whether all is durable hears so when it is."""
    node = Node()
    node.disk.fail(errno.EIO, name=f"{STATE_FILE}*")
    node.log.is_paused = True
    failed = node.node.commit([UpdateTopic(node.log.row())])
    node.jobs.run_all()
    assert failed.error
    publish(node, b"a")
    committed = node.node.committed()
    assert committed is not None
    was_done = committed.is_done
    node.jobs.run_all()
    assert not was_done
    assert committed.is_done
    assert committed.error is None
    assert start(node.disk.after_power_loss())[1].is_paused


def publish(node: Node, *bodies: bytes) -> Round:
    pending = node.topic.publish(ListBodies(list(bodies)), NOW_NS)
    assert pending is not None
    return pending


def test_what_was_acknowledged_survives_a_kill_while_it_is_written_again() -> None:
    """Two writes fail, and the process is killed at any operation of the third attempt."""
    at = 0
    while True:
        at += 1
        node = Node("interval")
        publish(node, b"a")
        node.jobs.run_all()
        node.disk.fail(errno.EIO, only=["write"])
        node.disk.fail(errno.EIO, at=2, only=["write"])
        refused = publish(node, b"b")
        node.jobs.run_all()
        assert refused.error
        node.disk.crash_at(at)
        try:
            publish(node, b"c")
            node.jobs.run_all()
        except Crashed:
            assert b"a" in bodies_after(node.disk.after_kill())
        else:
            break
    assert at > 5


def test_what_counts_and_is_in_no_segment_is_waited_for() -> None:
    """Two writes have failed, and the cache has let go: who reads it waits for the next write."""
    node = Node("interval")
    log = node.log
    publish(node, b"a")
    node.jobs.run_all()
    node.disk.fail(errno.EIO, only=["write"])
    node.disk.fail(errno.EIO, at=2, only=["write"])
    assert publish(node, b"b") is not None
    node.jobs.run_all()
    log.cache.clear()
    reads: list[RangesRead] = []
    log.read_ranges([MessageRange(0, 1, 0)], reads.append)
    for _ in range(3):
        assert log.read(10, 1000) is None
        node.jobs.run_all()
    assert (log.depth, log.dropped.total(), reads) == (1, 0, [])
    node.node.retry()
    node.jobs.run_all()
    node.node.retry()  # the reads, which began before the write had ended
    node.jobs.run_all()
    segment = log.read(10, 1000)
    assert segment is not None
    assert segment.batch.bodies.slice(0, 1) == [b"a"]
    assert [(len(read.segments), read.lost) for read in reads] == [(1, 0)]


def test_a_kill_and_then_a_power_cut_take_nothing() -> None:
    """What a kill leaves in the page cache only, the next start makes durable."""
    node = Node("interval")
    publish(node, b"a")
    node.jobs.run_all()
    disk = node.disk.after_kill()
    assert bodies_after(disk) == [b"a"]
    for _ in range(20):
        assert bodies_after(disk.after_power_loss()) == [b"a"]


def test_what_a_failed_fsync_left_is_written_again_by_a_start() -> None:
    """It is in the page cache, taken for durable: a later fsync of it proves nothing."""
    at, was_found = 0, False
    while not was_found:
        at += 1
        node = Node()
        publish(node, b"a")
        node.jobs.run_all()
        node.disk.fail(errno.EIO, only=["sync"], name="t.log.*")
        node.disk.crash_at(at)
        with suppress(Crashed):
            publish(node, b"b")
            node.jobs.run_all()
        disk = node.disk.after_kill()
        was_found = node.disk.faults["sync"] > 0 and b"b" in bodies_after(disk)
    for _ in range(20):
        assert bodies_after(disk.after_power_loss()) == [b"a", b"b"]


def test_deferred_messages_that_a_gap_took_are_in_no_depth_twice() -> None:
    """What the state knows as skipped may be a gap by the start."""
    node = Node()
    publish(node, b"a", b"b")
    node.jobs.run_all()
    node.log.read(10, 1000)
    cursor = node.node.new_cursor(node.log, "c", 0)
    assert cursor.depth == 2
    cursor.load([MessageRange(0, 1, 1)], skipped=5)
    assert (cursor.depth, cursor.check()) == (1, None)


def test_a_deferred_message_that_a_power_cut_took_costs_no_other_one() -> None:
    """Also if the next start could not commit that it is gone, and publishes stand behind it."""
    node = Node("interval")
    channel = ChannelState("c", 0, node.node.new_cursor(node.log, "c", 0), Random(1))
    node.topic.add_channel(channel)
    publish(node, b"a")
    node.jobs.run_all()
    node.log.sync()
    node.jobs.run_all()
    node.topic.publish(ListBodies([b"deferred"]), NOW_NS, 60_000)
    node.jobs.run_all()
    while node.topic.pump(0.0, NOW_NS):
        pass
    snapshots = Snapshots()
    list(snapshots.add_channel(channel, node.log.number))
    snapshots.commit(node.node)
    node.jobs.run_all()
    disk = node.disk.after_power_loss()
    while any(b"deferred" in content for content in disk.files().values()):
        disk = node.disk.after_power_loss()

    disk.fail(errno.EIO, forever=True, only=["sync"], name=WAL_FILE)
    second, log = start(disk)
    TopicState("t", 0, log, IdSource(2)).publish(ListBodies([b"c"]), NOW_NS)
    run_jobs(second)
    assert second.folder.faults
    for _ in range(8):  # the commit that failed may be there all the same
        _, log = start(disk.after_kill())
        [cursor] = log.cursors.values()
        assert (cursor.next, cursor.frontier, cursor.depth) == (0, 3, 2)


def bodies_after(disk: SimulatedDisk) -> list[bytes]:
    """Start on a disk; return what the topic has."""
    return read_all(*start(disk))


def test_a_deleted_topic_leaves_no_file_of_a_round_that_was_under_way() -> None:
    """The round begins a segment after the command came, and before its files go."""
    node = Node()
    publish(node, b"a")
    node.log.delete()
    node.jobs.run_all()
    assert not [name for name in node.disk.files() if name.startswith("t.log.")]


def test_files_of_a_deleted_topic_do_not_come_back() -> None:
    """A kill at any operation of the deletion, a start, and a power cut: its number keeps them."""
    at, has_ended = 0, False
    while not has_ended:
        at += 1
        node = Node()
        publish(node, b"a")
        node.jobs.run_all()
        node.disk.crash_at(at)
        try:
            node.log.delete()
            node.jobs.run_all()
            has_ended = True
        except Crashed:
            pass
        disk = node.disk.after_kill()
        topics = topics_after(disk)
        for _ in range(5):
            cut = disk.after_power_loss()
            assert topics_after(cut) == topics
            assert topics or not [name for name in cut.files() if name.startswith("t.log.")]
    assert at > 3


def topics_after(disk: SimulatedDisk) -> list[str]:
    """Start on a disk; return which topics there are."""
    state = MemoryState(disk)
    content, jobs = state.load(), HeldBackground()
    node = LogNode(DataFolder(disk, jobs), state, next_number=content.next_number)
    names = [found.log.name for found in open_logs(node, content)]
    jobs.run_all()
    return names


def test_what_was_emptied_at_the_topic_comes_to_no_channel() -> None:
    """A channel that stands before it gets what is published after it, and that alone."""
    node = Node()
    cursor = node.node.new_cursor(node.log, "c")
    publish(node, b"a")
    node.jobs.run_all()
    assert node.log.empty() == 1
    publish(node, b"b")
    node.jobs.run_all()
    segment = node.log.read(100, 1 << 20)
    assert segment is not None
    cursor.append(segment)
    got = cursor.read(100, 1 << 20)
    assert got is not None
    assert got.batch.bodies.slice(got.first, got.last) == [b"b"]
    assert cursor.read(100, 1 << 20) is None
    assert cursor.depth == 0


class _OneMessage:
    """A log whose messages are all in memory."""

    def cached_segment(self, one: MessageRange) -> Segment:
        ids = ListColumn([b"%016x" % one.sequence])
        batch = MessageBatch(ListBodies([b"a"]), ids, NOW_NS, sequences=[one.sequence])
        return Segment(batch, 0, 1, one.attempts)

    def cached_batch(self, sequence: int) -> MessageBatch:
        return self.cached_segment(MessageRange(sequence, 1, 0)).batch

    def read_ranges(self, ranges: list[MessageRange], done: Callable[[RangesRead], None]) -> None:
        raise AssertionError("all is in memory")

    def release_block(self, nbytes: int) -> None:
        assert not nbytes

    def is_for(self, sequence: int, channel: str) -> bool:
        return True


def test_a_deferred_message_that_comes_late_brings_back_none_that_have_left() -> None:
    """What the state knows as left stays so when one is entered that was due before."""
    held = HeldMessages(_OneMessage(), lambda one: None, lambda count: None, lambda at_s: None)
    held.add_range(HeldRange(10, 0, 1, 0))
    held.add_range(HeldRange(30, 1, 1, 0))
    assert len(list(held.pop_due(20))) == 1
    held.add_range(HeldRange(5, 2, 1, 0))
    assert held.fired_ns == 10
    assert len(list(held.pop_due(20))) == 1


def test_the_newest_messages_in_memory_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that is published only so many bytes stay there, and all of it can be read."""
    monkeypatch.setattr(budgets, "_CACHE_BYTES", 10_000)
    node = Node()
    wanted = [b"%01000d" % number for number in range(40)]
    for body in wanted:
        publish(node, body)
        node.jobs.run_all()
    assert 0 < len(node.log.cache) <= 10
    assert bodies_after(node.disk.after_kill()) == wanted
    publish(node, b"%020000d" % 0)
    node.jobs.run_all()
    assert len(node.log.cache) == 0
    publish(node, b"small again")
    node.jobs.run_all()
    assert len(node.log.cache) == 1


def test_a_log_without_publishers_finds_out_that_the_disk_is_well() -> None:
    """/ping is OK again after the next try, though nobody publishes; before it, it is not."""
    node = Node()
    node.disk.fail(errno.EIO, forever=True, only=("write", "sync"))
    assert publish(node, b"a").error is None
    node.jobs.run_all()
    for _ in range(2):
        assert list(node.node.folder.faults) == ["log of t"]
        node.node.retry()
        node.jobs.run_all()
    node.disk.heal()
    node.node.retry()
    node.jobs.run_all()
    assert not node.node.folder.faults


def test_the_cache_holds_nothing_of_what_has_left() -> None:
    """Neither batches nor places, however many have come and gone."""
    cache = TailCache()
    for sequence in range(10_000):
        cache.add_batch(
            MessageBatch(ListBodies([b"a"]), ListColumn([b"0" * 16]), NOW_NS, sequences=[sequence])
        )
        if sequence >= 10:
            cache.evict_batch()
    assert len(cache) == 10
    assert len(cache._batches) == len(cache._firsts) < 200
    assert cache.first_from(20_000) == 9_990
    found = cache.batch_at(9_995)
    assert found is not None
    assert found.sequences == [9_995]
    assert cache.batch_at(9_989) is None


def test_what_a_deleted_channel_did_not_take_comes_to_the_next() -> None:
    """Once: the messages go back to the log, and not into memory as well."""
    node = Node()
    publish(node, b"a", b"b")
    node.jobs.run_all()
    node.topic.add_channel(ChannelState("c", 0, MemoryBackend(refuses=True), Random(1)))
    assert node.topic.pump(0.0, NOW_NS) == 0
    assert node.topic.error is not None
    node.topic.remove_channel("c")
    assert node.topic.depth == 2
    assert node.topic.check() is None
    assert node.topic.store.memory.depth == 0
    assert read_all(node.node, node.log) == [b"a", b"b"]


def test_a_kill_gives_a_channel_nothing_that_was_handed_on_before_it() -> None:
    """The topic stood still until its first channel, and the state still says where."""
    node = Node()
    first = node.node.new_cursor(node.log, "first")
    publish(node, b"a")
    node.jobs.run_all()
    segment = node.log.read(10, 1 << 20)
    assert segment is not None
    first.append(segment)
    node.node.new_cursor(node.log, "second")
    node.jobs.run_all()
    _, log = start(node.disk.after_kill())
    assert log.depth == 0
    assert {one.name: one.depth for one in log.cursors.values()} == {"first": 1, "second": 0}


@pytest.mark.parametrize("has_channel", [True, False])
def test_nothing_is_safe_for_a_channel_that_the_state_refused(has_channel: bool) -> None:
    """After a crash that channel would not get it; a topic without a new channel goes on."""
    node = Node()
    node.disk.fail(errno.EIO, forever=True, name=f"{STATE_FILE}*")
    if has_channel:
        node.node.new_cursor(node.log, "c")
    else:
        node.node.commit([UpdateTopic(node.log.row())])
    pending = publish(node, b"a")
    node.jobs.run_all()
    assert pending.is_done
    assert (pending.error is not None) == has_channel


def test_the_age_of_a_topic_is_that_of_its_next_message() -> None:
    """None without a message, and while the next one is on the disk alone."""
    node = Node()
    assert node.log.oldest_ns() is None
    publish(node, b"a")
    node.jobs.run_all()
    assert node.log.oldest_ns() == NOW_NS
    _, log = start(node.disk.after_kill())
    assert log.depth == 1
    assert log.oldest_ns() is None


@pytest.mark.parametrize(
    ("how", "lost"), [("body", (4, 5)), ("head", (5, 6)), ("cut", (4, 6)), ("cut after", (5, 6))]
)
def test_damage_that_is_read_is_named_and_costs_what_it_hit(
    how: str, lost: tuple[int, int]
) -> None:
    """The operator hears of the file and of the messages; all others come, also when a file has
    become shorter."""
    node = Node(segment_bytes=700)
    wanted = [b"%0200d" % number for number in range(9)]
    for body in wanted:
        publish(node, body)
        node.jobs.run_all()
    disk = node.disk.after_kill()
    restarted, log = start(disk)
    name = log.segments[1].name
    content = disk.files()[name][: log.segments[1].end]
    record = (len(content) - SEGMENT_HEADER_BYTES) // 3
    at = {"body": -record - 100, "head": -record + 20, "cut": -record - 100, "cut after": -record}
    rest = b"" if how.startswith("cut") else b"x" + content[at[how] + 1 :]
    disk.write_file(name, content[: at[how]] + rest)
    assert read_all(restarted, log) == wanted[: lost[0]] + wanted[lost[1] :]
    [fault] = restarted.folder.faults.values()
    assert fault.startswith(f"{name}: bytes ")
    count = lost[1] - lost[0]
    told = f"message {lost[0]} is" if count == 1 else f"messages {lost[0]} to {lost[1] - 1} are"
    assert fault.endswith(f" are damaged: {told} lost")


def test_what_a_start_hands_out_outlives_a_power_failure() -> None:
    """After a kill at any operation while messages are written again, also at that of its name."""
    at, has_ended = 0, False
    while not has_ended:
        at += 1
        node = Node("interval")
        publish(node, b"a")
        node.jobs.run_all()
        node.disk.fail(errno.EIO, only=["write"], name="t.*")
        node.disk.crash_at(at)
        try:
            publish(node, b"b")
            node.jobs.run_all()
            has_ended = True
        except Crashed:
            pass
        killed = node.disk.after_kill()
        bodies = read_all(*start(killed))
        assert bodies[:1] == [b"a"]
        for _ in range(6):
            assert read_all(*start(killed.after_power_loss())) == bodies
    assert at > 6


def start(disk: SimulatedDisk) -> tuple[LogNode, TopicLog]:
    """The node of a disk, and its topic's log."""
    state = MemoryState(disk)
    content = state.load()
    folder = DataFolder(disk, HeldBackground())
    node = LogNode(folder, state, next_number=content.next_number)
    [found] = open_logs(node, content)
    run_jobs(node)
    return node, found.log


def run_jobs(node: LogNode) -> None:
    """Run what its background has."""
    jobs = node.folder.background
    assert isinstance(jobs, HeldBackground)
    jobs.run_all()


def read_all(node: LogNode, log: TopicLog) -> list[bytes]:
    """The bodies that the topic hands on, until five reads in turn bring nothing."""
    bodies: list[bytes] = []
    misses = 0
    while misses < 5:
        segment = log.read(100, 1 << 20)
        run_jobs(node)
        misses = misses + 1 if segment is None else 0
        if segment is not None:
            bodies += map(bytes, segment.batch.bodies.slice(segment.first, segment.last))
    return bodies
