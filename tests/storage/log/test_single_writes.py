"""Rounds of a log that are one write, which the background does without a job of ours."""

from __future__ import annotations

import errno

import pytest

from trionsq.core.batch import Segment
from trionsq.core.ids import IdSource
from trionsq.core.round import Round
from trionsq.core.topic import TopicState
from trionsq.disk import DiskFile
from trionsq.storage.folder import DataFolder, JobDone
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.opening import open_logs
from trionsq.storage.log.rows import UpdateTopic
from trionsq.storage.log.runs import read_run
from trionsq.storage.log.segmentfile import open_segment
from trionsq.storage.log.topiclog import TopicLog
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import Crashed, SimulatedDisk
from trionsq.testing.logstate import MemoryState
from trionsq.wire.bodies import ListBodies

NOW_NS = 1_700_000_000_000_000_000


class WatchedBackground(HeldBackground):
    """Counts what the system writes by itself.

    Attributes:
        writes: the sizes in bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[int] = []

    def submit_write(
        self, file: DiskFile, data: bytes, offset: int, room: int, done: JobDone
    ) -> None:
        self.writes.append(len(data) + room)
        super().submit_write(file, data, offset, room, done)


class Node:
    """A node whose first round has made room for small ones."""

    def __init__(self, disk: SimulatedDisk, topics: int = 1, segment_bytes: int = 1 << 20) -> None:
        self.disk = disk
        self.jobs = WatchedBackground()
        state = MemoryState(disk)
        content = state.load()
        self.node = LogNode(
            DataFolder(disk, self.jobs),
            state,
            durability="always",
            segment_bytes=segment_bytes,
            journal_bytes=2_000,
            next_number=content.next_number,
        )
        found = [one.log for one in open_logs(self.node, content)]
        logs = found or [self.node.new_topic(f"t{number}") for number in range(topics)]
        self.topics = [TopicState(log.name, 0, log, IdSource(1)) for log in logs]
        self.jobs.run_all()
        for number in range(len(self.topics)):
            self.publish(b"x" * 2_000, number)
        self.jobs.writes.clear()

    def publish(self, body: bytes, topic: int = 0) -> Round:
        """Publish in a job of its own, and run all jobs."""
        round_ = self.topics[topic].publish(ListBodies([body]), NOW_NS)
        assert round_ is not None
        self.jobs.run_all()
        return round_

    def close(self) -> None:
        for topic in self.topics:
            assert topic.check() is None


def stored(disk: SimulatedDisk) -> set[bytes]:
    """Start on a disk; return what the topics have."""
    jobs = HeldBackground()
    state = MemoryState(disk)
    content = state.load()
    node = LogNode(DataFolder(disk, jobs), state, next_number=content.next_number)
    bodies: set[bytes] = set()
    for one in open_logs(node, content):
        topic = TopicState(one.log.name, 0, one.log, IdSource(1))
        jobs.run_all()
        for _ in range(2 * topic.depth + 2):
            segment = topic.store.backend.read(100, 1 << 20)
            jobs.run_all()
            if segment is not None:
                bodies.update(map(bytes, segment.batch.bodies.slice(segment.first, segment.last)))
    return bodies


def test_a_small_round_is_one_write_and_no_job() -> None:
    """Where the segment has room, nothing but that write happens before the answer."""
    node = Node(SimulatedDisk(logged=True))
    at, jobs = len(node.disk.log), node.jobs.submitted
    assert node.publish(b"a").error is None
    assert node.jobs.writes
    assert node.jobs.submitted == jobs + 1
    assert [operation for operation, _ in node.disk.log[at:]] == ["write", "sync"]
    assert b"a" in stored(node.disk.after_power_loss())
    node.close()


def test_where_threads_are_as_good_there_are_none() -> None:
    """Without a system that writes by itself, a round is a job like any other."""
    node = Node(SimulatedDisk())
    node.jobs.writes_directly = False
    assert node.publish(b"a").error is None
    assert node.jobs.writes == []
    assert b"a" in stored(node.disk.after_power_loss())


def test_what_comes_meanwhile_is_the_next_write() -> None:
    """There is one at a time; all that was published during it shares the next."""
    node = Node(SimulatedDisk())
    rounds = [node.topics[0].publish(ListBodies([b"%d" % at]), NOW_NS) for at in range(5)]
    assert len(node.jobs) == 1
    node.jobs.run_all()
    assert [one and one.error for one in rounds] == [None] * 5
    assert len(node.jobs.writes) == 2
    assert {b"%d" % at for at in range(5)} <= stored(node.disk.after_power_loss())


def test_a_large_round_needs_no_room() -> None:
    """It is one write even where it makes the file longer; one that is too large is a job."""
    node = Node(SimulatedDisk())
    assert node.publish(b"m" * 200_000).error is None
    assert len(node.jobs.writes) == 1
    assert node.publish(b"l" * 300_000).error is None
    assert len(node.jobs.writes) == 1
    assert {b"m" * 200_000, b"l" * 300_000} <= stored(node.disk.after_power_loss())


def test_changes_of_the_state_are_committed_before() -> None:
    """A round that is published together with changes is a job: the commit comes first."""
    node = Node(SimulatedDisk())
    blocker = node.node.commit([])
    log = node.node.logs[1]
    log.is_paused = True
    committed = node.node.commit([UpdateTopic(log.row())])
    node.publish(b"a")
    assert node.jobs.writes == []
    assert blocker.is_done
    assert committed.is_done
    assert committed.error is None


def test_a_segment_that_is_full_is_followed_by_a_job() -> None:
    """The next segment is begun as ever."""
    node = Node(SimulatedDisk(), segment_bytes=3_000)
    for at in range(100):
        assert node.publish(b"%03d" % at).error is None
    assert len(node.node.logs[1].segments) > 1
    assert len(node.jobs.writes) > 10
    assert {b"%03d" % at for at in range(100)} <= stored(node.disk.after_power_loss())


def test_what_only_a_journal_has_is_synced_first() -> None:
    """A single write makes nothing durable but itself: behind a shared round it goes to the
    journal, too, and when that goes nothing is lost."""
    node = Node(SimulatedDisk(), topics=4)
    node.node.commit([])
    for number, topic in enumerate(node.topics):
        topic.publish(ListBodies([b"shared%d" % number]), NOW_NS)
    node.jobs.run_all()
    assert node.node.logs[1].has_unsynced
    node.publish(b"single")
    assert len(node.jobs.writes) == 1
    assert node.node.logs[1].has_unsynced
    assert unwritten(node.node.logs[1])
    for at in range(40):
        node.publish(b"%d" % at + b"y" * 200)
    assert len(node.jobs.writes) > 30
    published = {b"shared%d" % number for number in range(4)} | {b"single"}
    assert published <= stored(node.disk.after_power_loss())


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_write_that_fails_costs_nobody_an_answer(operation: str) -> None:
    """The round goes to a new segment, and the log goes on there."""
    node = Node(SimulatedDisk())
    node.disk.fail(errno.EIO, only={operation})
    assert node.publish(b"a").error is None
    assert node.jobs.writes == [node.jobs.writes[0]]
    assert len(node.node.logs[1].segments) == 2
    assert node.publish(b"b").error is None
    assert {b"a", b"b"} <= stored(node.disk.after_power_loss())
    node.close()


def test_a_round_that_no_file_takes_is_refused() -> None:
    """The publisher hears why; later rounds are taken when the disk works again."""
    node = Node(SimulatedDisk())
    node.disk.fail(errno.EIO, forever=True, only={"write", "create"})
    refused = node.publish(b"a")
    assert refused.error is not None
    assert "Input/output error" in refused.error
    assert "log of t0" in node.node.folder.faults
    node.disk.heal()
    node.node.retry()
    node.jobs.run_all()
    assert node.publish(b"b").error is None
    assert node.node.folder.faults == {}
    found = stored(node.disk.after_power_loss())
    assert b"b" in found
    assert b"a" not in found
    node.close()


@pytest.mark.parametrize("has_lost_power", [False, True])
def test_a_crash_at_any_operation_takes_nothing_that_was_acknowledged(
    *, has_lost_power: bool
) -> None:
    """Neither in a write, nor between it and its answer."""
    for at in range(1, 30):
        node = Node(SimulatedDisk())
        node.disk.crash_at(at)
        safe: set[bytes] = set()
        try:
            for number in range(10):
                body = b"%d" % number
                if node.publish(body).error is None:
                    safe.add(body)
        except Crashed:
            pass
        disk = node.disk.after_power_loss() if has_lost_power else node.disk.after_kill()
        assert safe <= stored(disk)


# Rounds of several topics


class SharedNode(Node):
    """A node with a journal, and with five topics of which each has a segment."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk, topics=5)
        self.share(b"first")  # begins the journal

    def share(self, body: bytes) -> list[Round]:
        """Publish to all topics but the first in one job; it begins when that has had its own."""
        rounds = [topic.publish(ListBodies([body + topic.name.encode()]), NOW_NS)
                  for topic in self.topics]  # fmt: skip
        self.jobs.writes.clear()
        self.jobs.run_all()
        return [one for one in rounds[1:] if one is not None]


def shared(body: bytes) -> set[bytes]:
    return {b"%st%d" % (body, number) for number in range(1, 5)}


def test_a_small_round_of_several_topics_is_one_write_to_the_journal() -> None:
    """Segments get it later, in one write for many rounds; no crash takes what was answered."""
    node = SharedNode(SimulatedDisk(logged=True))
    at = len(node.disk.log)
    assert [one.error for one in node.share(b"a")] == [None] * 4
    assert [one.error for one in node.share(b"b")] == [None] * 4
    assert len(node.jobs.writes) == 1
    written = [name for operation, name in node.disk.log[at:] if operation == "write"]
    assert not [name for name in written if name[:3] in ("t1.", "t2.", "t3.")][3:]
    for _ in range(10):
        for disk in (node.disk.after_power_loss(), node.disk.after_kill()):
            assert shared(b"first") | shared(b"a") | shared(b"b") <= stored(disk)
    node.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_journal_that_fails_costs_nobody_an_answer(operation: str) -> None:
    """Each topic is synced for itself, and what the journal had before stays safe."""
    node = SharedNode(SimulatedDisk())
    node.disk.fail(errno.EIO, only=[operation], name="trionsq.journal*")
    assert [one.error for one in node.share(b"a")] == [None] * 4
    assert node.disk.faults[operation] == 1
    assert [one.error for one in node.share(b"b")] == [None] * 4
    for _ in range(10):
        disk = node.disk.after_power_loss()
        assert shared(b"first") | shared(b"a") | shared(b"b") <= stored(disk)
    node.close()


def log_bodies(node: Node, number: int) -> list[bytes]:
    """What a reader of a log finds in its segments."""
    log = node.node.logs[number]
    bodies: list[bytes] = []
    at = 0
    while at < log.safe_end:
        run = read_run(log.part, at, log.safe_end, 1 << 20)
        at = run.next
        for one in run.parts:
            assert isinstance(one, Segment)
            bodies += map(bytes, one.batch.bodies.slice(one.first, one.last))
    return bodies


def unwritten(log: TopicLog) -> int:
    """How many bytes are in the journal alone."""
    found = log.segments[-1].unwritten
    return 0 if found is None else len(b"".join(found[1]))


def test_who_reads_a_log_finds_what_only_the_journal_has() -> None:
    """From any place on, and also when it was written meanwhile."""
    node = SharedNode(SimulatedDisk())
    node.share(b"a")
    expected = [b"x" * 2_000, b"firstt3", b"at3"]
    log = node.node.logs[4]
    assert unwritten(log)
    assert log_bodies(node, 4) == expected
    file = open_segment(node.disk, log.segments[-1])
    end = log.segments[-1].end
    before = [file.read(count, end - count) for count in range(1, end, 7)]
    assert file.size() >= end
    node.node.commit([])
    node.jobs.run_all()
    assert not unwritten(log)
    assert [file.read(count, end - count) for count in range(1, end, 7)] == before
    assert log_bodies(node, 4) == expected
    node.close()


def test_a_job_in_a_thread_writes_what_only_the_journal_has() -> None:
    """Also of topics that have no round in it; so does much of it."""
    node = SharedNode(SimulatedDisk())
    logs = list(node.node.logs.values())[1:]
    node.share(b"a")
    assert all(map(unwritten, logs))
    node.node.commit([])
    node.jobs.run_all()
    assert not any(map(unwritten, logs))
    for _ in range(30):
        node.share(bytes(50_000))
        assert sum(map(unwritten, logs)) < 1_300_000
    node.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_segment_that_fails_later_is_followed_by_another(operation: str) -> None:
    """What the journal has for it is written again; the other topics know nothing of it."""
    node = SharedNode(SimulatedDisk())
    assert [one.error for one in node.share(b"a")] == [None] * 4
    node.disk.fail(errno.EIO, only=[operation], name="t2.log.*")
    for log in node.node.logs.values():
        log.sync()
    node.jobs.run_all()
    assert [len(log.segments) for log in node.node.logs.values()] == [1, 1, 2, 1, 1]
    assert log_bodies(node, 3)[-1] == b"at2"
    assert [one.error for one in node.share(b"b")] == [None] * 4
    for _ in range(10):
        disk = node.disk.after_power_loss()
        assert shared(b"first") | shared(b"a") | shared(b"b") <= stored(disk)
    node.close()


def test_a_segment_that_cannot_be_followed_costs_nothing_that_was_answered() -> None:
    """The journal keeps it; its topic refuses new ones until the disk works again."""
    node = SharedNode(SimulatedDisk())
    assert [one.error for one in node.share(b"a")] == [None] * 4
    node.disk.fail(errno.EIO, forever=True, only=["write"], name="t2.log.*")
    node.node.commit([])
    node.jobs.run_all()
    assert [bool(one.error) for one in node.share(b"b")] == [False, True, False, False]
    for _ in range(10):
        assert shared(b"first") | shared(b"a") <= stored(node.disk.after_power_loss())
    node.disk.heal()
    node.node.retry()
    node.jobs.run_all()
    assert [one.error for one in node.share(b"c")] == [None] * 4
    for _ in range(10):
        found = stored(node.disk.after_power_loss())
        assert shared(b"first") | shared(b"a") | shared(b"b") - {b"bt2"} | shared(b"c") <= found
    node.close()


def test_the_next_writes_begin_before_the_answers() -> None:
    """The disk does not wait for the event loop; what is published in an answer comes later."""
    node = Node(SimulatedDisk())
    first, second = (node.topics[0].publish(ListBodies([body]), NOW_NS) for body in (b"a", b"b"))
    assert first is not None
    assert second is not None
    writes: list[int] = []
    first.when_done(lambda: writes.append(len(node.jobs.writes)))
    node.jobs.run_one()
    assert writes == [2]
    assert not second.is_done
    node.jobs.run_all()
    assert second.error is None
    assert {b"a", b"b"} <= stored(node.disk.after_power_loss())


def test_a_round_makes_room_without_a_job() -> None:
    """It is one write with zeros behind it; the rounds that follow change no size."""
    node = Node(SimulatedDisk(logged=True))
    sizes: set[int] = set()
    jobs = node.jobs.submitted
    for at in range(100):
        node.publish(b"%03d" % at + bytes(200))
        sizes.add(max(len(data) for name, data in node.disk.files().items() if ".log." in name))
    assert node.jobs.submitted == jobs + 100
    assert len(node.jobs.writes) == 100
    assert 3 <= len(sizes) <= 6
    assert {b"%03d" % at + bytes(200) for at in range(100)} <= stored(node.disk.after_power_loss())
    node.close()


def test_a_disk_without_space_for_room_takes_what_counts() -> None:
    """The round is written once more without it, at the same place."""
    node = Node(SimulatedDisk())
    used = sum(map(len, node.disk.files().values()))
    node.disk.capacity = used + 4_000
    bodies = [b"%d" % at + bytes(1_500) for at in range(6)]
    assert [node.publish(body).error for body in bodies] == [None] * 6
    assert node.disk.faults["write"]
    assert len(node.node.logs[1].segments) == 1
    assert set(bodies) <= stored(node.disk.after_power_loss())
    node.close()
