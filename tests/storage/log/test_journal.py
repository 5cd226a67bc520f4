"""The journal that makes small rounds of many topics durable with one fsync."""

from __future__ import annotations

import errno
from zlib import crc32

import pytest

from trionsq.core.ids import IdSource
from trionsq.core.round import Round
from trionsq.core.topic import TopicState
from trionsq.storage.folder import DataFolder
from trionsq.storage.log.format import FormatError, SegmentHeader, UnsupportedError
from trionsq.storage.log.journal import (
    JOURNAL_HEADER_BYTES,
    SPARE_JOURNAL,
    JournalDamage,
    JournalPiece,
    encode_journal_header,
    encode_piece,
    journal_name,
    journal_number,
    parse_journal,
)
from trionsq.storage.log.names import segment_name
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.opening import open_logs
from trionsq.storage.log.replay import replay_journals
from trionsq.storage.log.rows import StateError, UpdateTopic
from trionsq.storage.log.state import STATE_FILE
from trionsq.storage.log.topiclog import TopicLog
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import Crashed, SimulatedDisk
from trionsq.testing.logstate import MemoryState
from trionsq.wire.bodies import ListBodies

NOW_NS = 1_700_000_000_000_000_000
SALT = 77


class Node:
    """A node with topics that answer after the fsync; its jobs wait until they are told to run."""

    def __init__(
        self, topics: int, disk: SimulatedDisk | None = None, journal_bytes: int = 4_000
    ) -> None:
        self.disk = disk or SimulatedDisk(logged=True)
        self.jobs = HeldBackground()
        state = MemoryState(self.disk)
        content = state.load()
        self.node = LogNode(
            DataFolder(self.disk, self.jobs),
            state,
            durability="always",
            segment_bytes=1 << 20,
            journal_bytes=journal_bytes,
            next_number=content.next_number,
        )
        found = [one.log for one in open_logs(self.node, content)]
        logs = found or [self.node.new_topic(f"t{number}") for number in range(topics)]
        self.topics = [TopicState(log.name, 0, log, IdSource(1)) for log in logs]
        self.jobs.run_all()

    def publish(self, body: bytes, topics: int | None = None) -> list[Round]:
        """Publish to each topic, in one job."""
        blocker = self.node.commit([])
        rounds = [
            topic.publish(ListBodies([body + topic.name.encode()]), NOW_NS)
            for topic in self.topics[:topics]
        ]
        self.jobs.run_all()
        assert blocker.is_done
        return [one for one in rounds if one is not None]

    def synced(self, since: int) -> list[str]:
        """The files that were synced since an index of the disk's log."""
        return [name for operation, name in self.disk.log[since:] if operation == "sync"]


def journals(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.files() if journal_number(name) is not None]


def stored(disk: SimulatedDisk) -> set[bytes]:
    """Start on a disk; return what the topics have."""
    node = Node(0, disk)
    bodies: set[bytes] = set()
    for topic in node.topics:
        for _ in range(2 * topic.depth + 2):
            segment = topic.store.backend.read(100, 1 << 20)
            node.jobs.run_all()
            if segment is not None:
                bodies.update(map(bytes, segment.batch.bodies.slice(segment.first, segment.last)))
    return bodies


def expected(topics: int, *bodies: bytes) -> set[bytes]:
    return {b"%st%d" % (body, number) for body in bodies for number in range(topics)}


@pytest.mark.parametrize(("topics", "is_shared"), [(2, False), (3, True), (8, True)])
def test_a_round_of_several_topics_costs_one_fsync(topics: int, is_shared: bool) -> None:
    """From three topics on that of the journal, and each power cut leaves all that it made safe."""
    node = Node(topics)
    node.publish(b"a")
    at = len(node.disk.log)
    rounds = node.publish(b"b")
    assert [one.error for one in rounds] == [None] * topics
    names = [name for name in node.synced(at) if "state" not in name]
    assert len(names) == (1 if is_shared else topics)
    assert [name.startswith("trionsq.journal") for name in names] == [is_shared] * len(names)
    for _ in range(10):
        disk = node.disk.after_power_loss()
        assert stored(disk) == expected(topics, b"a", b"b")
        assert journals(disk) == []


def test_a_large_round_goes_to_its_segments_alone() -> None:
    """It would be written twice."""
    node = Node(3)
    node.publish(bytes(1 << 19))
    assert journals(node.disk) == []


def test_a_full_journal_goes_when_its_segments_are_synced() -> None:
    """A few with each job; meanwhile another one is used, and its file is used again."""
    node = Node(4)
    bodies = [b"%03d" % number + bytes(300) for number in range(20)]
    for body in bodies:
        node.publish(body)
        assert len(journals(node.disk)) <= 1
    named = ("rename", f"trionsq.journal.tmp -> {journal_name(1)}")
    assert node.disk.log.count(named) > 3
    assert node.disk.log.count(("create", "trionsq.journal.tmp")) == 1
    for _ in range(5):
        assert stored(node.disk.after_power_loss()) == expected(4, *bodies)


def test_no_two_jobs_of_a_node_run_at_once() -> None:
    """Also when a checkpoint is due and segments are to be synced: SQLite has one thread."""
    node = Node(4, journal_bytes=300)
    operations: list[str] = []
    for number in range(300):
        for topic in node.topics:
            topic.publish(ListBodies([b"%03d" % number + bytes(100)]), NOW_NS)
        node.node.commit([UpdateTopic(log.row()) for log in node.node.logs.values()])
        while node.jobs:
            assert len(node.jobs) == 1
            at = len(node.disk.log)
            node.jobs.run_one()
            operations += [f"{it[0]} {it[1]}" for it in node.disk.log[at:]]
    assert f"sync {STATE_FILE}" in operations


def test_a_power_cut_at_any_operation_of_a_journal_is_no_damage() -> None:
    """Neither while it begins, nor when its file is used again; and what was answered is there."""
    at, has_ended = 0, False
    while not has_ended:
        at += 1
        node = Node(3, journal_bytes=900)
        safe: set[bytes] = set()
        node.disk.crash_at(at)
        try:
            for body in (b"a" + bytes(200), b"b" + bytes(200), b"c" + bytes(200)):
                if not any(one.error for one in node.publish(body)):
                    safe |= expected(3, body)
            has_ended = True
        except Crashed:
            pass
        for _ in range(5):
            disk = node.disk.after_power_loss()
            assert not Node(0, disk).node.folder.faults
            assert stored(disk) >= safe
    assert at > 40


def test_a_journal_is_used_again_when_its_old_name_is_surely_gone() -> None:
    """Else a power cut would bring that back, with half of the new header."""
    node = Node(4, journal_bytes=900)
    gone = ("rename", f"{journal_name(1)} -> {SPARE_JOURNAL}")
    while gone not in node.disk.log:
        node.publish(bytes(200))
    at = node.disk.log.index(gone)
    while ("open", SPARE_JOURNAL) not in node.disk.log[at:]:
        node.publish(bytes(200))
    again = node.disk.log.index(("write", SPARE_JOURNAL), at)
    assert ("sync_folder", "") in node.disk.log[at:again]


def test_a_deleted_topic_whose_deletion_fails_makes_no_work() -> None:
    """A full journal does not wait for it; it goes when the state says that it is deleted."""
    node = Node(4, journal_bytes=900)
    log = node.topics[3].store.backend
    assert isinstance(log, TopicLog)
    for topic in node.topics:
        topic.publish(ListBodies([bytes(300)]), NOW_NS)
    while not journals(node.disk) or not log.has_unsynced:
        node.jobs.run_one()
    node.disk.fail(errno.EIO, forever=True, name=f"{STATE_FILE}*")
    # A backup is made: its file stays open.
    node.node.hold_files()
    log.delete()
    at = node.jobs.submitted
    node.jobs.run_all()
    assert node.jobs.submitted < at + 10
    assert journals(node.disk)
    node.disk.heal()
    for _ in range(3):
        node.publish(b"x", topics=3)
    assert stored(node.disk.after_power_loss()) >= {b"xt0", b"xt1", b"xt2"}
    assert journal_name(1) not in node.disk.files()


def test_a_power_cut_at_any_operation_of_a_start_takes_nothing() -> None:
    """A journal goes when the segments have all of it, durably."""
    at, has_ended = 0, False
    while not has_ended:
        at += 1
        node = Node(3)
        node.publish(b"a" + bytes(500))
        node.publish(b"b")
        disk = node.disk.after_power_loss()
        disk.crash_at(at)
        try:
            Node(0, disk)
            has_ended = True
        except Crashed:
            pass
        for _ in range(5):
            assert stored(disk.after_power_loss()) == expected(3, b"a" + bytes(500), b"b")
    assert at > 20


def test_a_name_that_a_failed_fsync_left_is_given_again_by_a_start() -> None:
    """A segment has replaced the one of the journal: what if a power cut brings that one back?"""
    at, has_ended = 0, False
    while not has_ended:
        at += 1
        node = Node(3)
        node.jobs.writes_directly = False
        node.publish(b"a")
        node.disk.fail(errno.EIO, only=["write"], name="t0.log.*")
        node.disk.fail(errno.EIO, only=["sync_folder"])
        node.disk.crash_at(at)
        try:
            node.publish(b"b", topics=1)
            has_ended = True
        except Crashed:
            pass
        disk = node.disk.after_kill()
        assert stored(disk) >= expected(3, b"a")
        for _ in range(5):
            assert stored(disk.after_power_loss()) >= expected(3, b"a")
    assert at > 10


def test_a_full_disk_leaves_a_segment_as_it_is() -> None:
    """Its name cannot be given again, but the start goes on."""
    disk = SimulatedDisk()
    header, name = SegmentHeader(1, 0, 5, NOW_NS), segment_name("t", 1, 0)
    disk.write_file(name, header.to_bytes())
    disk.write_file(journal_name(1), journal([piece(128, b"old", salt=6)]))
    disk.fail(errno.ENOSPC, forever=True, only=["create", "write"])
    assert replay_journals(disk) == []
    assert disk.files() == {name: header.to_bytes()}


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
def test_a_journal_that_fails_costs_nobody_an_answer(operation: str) -> None:
    """Its round is made durable without it, and what it had before stays safe."""
    node = Node(3)
    if operation in ("write", "sync"):
        node.publish(b"before")
    node.disk.fail(errno.EIO, only=[operation], name="trionsq.journal*")
    assert [one.error for one in node.publish(b"a")] == [None] * 3
    assert [one.error for one in node.publish(b"b")] == [None] * 3
    assert node.disk.faults[operation] == 1
    if operation in ("write", "sync"):  # a file that failed gets nothing more
        assert node.disk.log.count(("create", SPARE_JOURNAL)) == 2
    bodies = [b"before"] * (operation in ("write", "sync")) + [b"a", b"b"]
    for _ in range(10):
        assert stored(node.disk.after_power_loss()) == expected(3, *bodies)


def test_a_round_that_no_file_takes_is_refused() -> None:
    """Neither journal nor segments: the publishers hear it, and what was safe before stays.

    What the journal had is not tried again and again.
    """
    node = Node(3)
    node.publish(b"safe")
    node.disk.fail(errno.EIO, forever=True, only=["sync"])
    assert all(one.error for one in node.publish(b"refused"))
    node.disk.heal()
    assert not any(one.error for one in node.publish(b"new"))
    for _ in range(10):
        found = stored(node.disk.after_power_loss())
        assert found >= expected(3, b"safe", b"new")


def test_a_segment_that_fails_refuses_its_topic_alone() -> None:
    """The other topics of the round have their answers, and what was refused is not there."""
    node = Node(4)
    node.disk.fail(errno.ENOSPC, forever=True, only=["write"], name="t1.log.*")
    assert [bool(one.error) for one in node.publish(b"a")] == [False, True, False, False]
    assert stored(node.disk.after_power_loss()) == {b"at0", b"at2", b"at3"}


def test_a_round_that_no_segment_takes_leaves_the_journal_alone() -> None:
    """There is nothing to make durable."""
    node = Node(3)
    node.jobs.writes_directly = False
    node.publish(b"safe")
    node.disk.fail(errno.ENOSPC, forever=True, only=["write"], name="*.log.*")
    assert all(one.error for one in node.publish(b"refused"))
    node.disk.heal()
    assert node.jobs.defects.count == 0
    assert not any(one.error for one in node.publish(b"new"))
    assert stored(node.disk.after_power_loss()) == expected(3, b"safe", b"new")


def test_a_stop_leaves_no_journal() -> None:
    """When all segments are synced nobody needs it."""
    node = Node(3)
    node.publish(b"a")
    assert len(journals(node.disk)) == 1
    for topic in node.node.logs.values():
        topic.sync()
    node.jobs.run_all()
    node.node.close()
    assert journals(node.disk) == []
    assert stored(node.disk.after_power_loss()) == expected(3, b"a")


# Bytes


def piece(offset: int, data: bytes, salt: int = 5) -> JournalPiece:
    return JournalPiece(1, 0, salt, offset, data)


def journal(*rounds: list[JournalPiece]) -> bytes:
    """A journal with these rounds, and room behind."""
    data = encode_journal_header(SALT, NOW_NS)
    for number, pieces in enumerate(rounds, 1):
        for one in pieces:
            data += b"".join(encode_piece(one, SALT, number))
    return data + bytes(100)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


FIRST, SECOND, THIRD = piece(128, b"first"), piece(133, b"second"), piece(139, b"third")


def test_damage_costs_the_piece_that_it_hit() -> None:
    """The pieces behind it are found, and the place is named."""
    data = journal([FIRST], [SECOND], [THIRD], [FIRST])
    begin = data.index(b"second")
    for at in (begin, begin - 20):
        found = list(parse_journal(flipped(data, at)))
        [damage] = [one for one in found if isinstance(one, JournalDamage)]
        assert damage.offset < at < damage.end
        assert [one for one in found if one is not damage] == [FIRST, THIRD, FIRST]


def test_a_torn_round_is_no_damage() -> None:
    """Of the last round any piece may be missing: nobody was told of it."""
    data = journal([FIRST], [SECOND, THIRD, FIRST])
    torn = flipped(data, data.index(b"second"))
    assert list(parse_journal(torn)) == [FIRST, THIRD, FIRST]


def test_the_header_stands_twice() -> None:
    """One damaged copy costs nothing; without both nothing of the file is taken."""
    data = journal([FIRST])
    assert list(parse_journal(flipped(data, 14))) == [FIRST]
    with pytest.raises(FormatError):
        list(parse_journal(flipped(flipped(data, 14), JOURNAL_HEADER_BYTES - 20)))


def test_pieces_of_another_salt_are_none() -> None:
    """What a file had when it was another journal does not count."""
    old = b"".join(encode_piece(SECOND, SALT + 1, 9))
    assert list(parse_journal(journal([FIRST]) + old)) == [FIRST]


def later(data: bytes) -> bytes:
    """A journal as of a later release."""
    fields = data[:8] + b"\0\2" + data[10:28]
    return 2 * (fields + crc32(fields).to_bytes(4)) + data[JOURNAL_HEADER_BYTES:]


def test_a_journal_of_a_later_release_is_refused() -> None:
    """It stays as it is, and the start says which file it is."""
    disk = SimulatedDisk()
    disk.write_file(journal_name(3), later(journal([FIRST])))
    with pytest.raises(UnsupportedError):
        list(parse_journal(later(journal([FIRST]))))
    with pytest.raises(StateError, match="version 2"):
        replay_journals(disk)
    assert journals(disk) == [journal_name(3)]


def test_a_piece_goes_only_to_the_segment_that_it_was_written_for() -> None:
    """Another file may have got its name, and a deleted topic gets no file."""
    disk = SimulatedDisk()
    header = SegmentHeader(1, 0, 5, NOW_NS)
    name = segment_name("t", 1, 0)
    disk.write_file(name, header.to_bytes())
    pieces = [FIRST, SECOND, piece(128, b"WRONG", salt=6), JournalPiece(2, 0, 5, 128, b"gone")]
    disk.write_file(journal_name(1), journal(pieces))
    assert replay_journals(disk) == []
    assert disk.files() == {name: header.to_bytes() + b"firstsecond"}


def test_all_journals_are_replayed() -> None:
    """Each has what the others lack."""
    disk = SimulatedDisk()
    header, name = SegmentHeader(1, 0, 5, NOW_NS), segment_name("t", 1, 0)
    disk.write_file(name, header.to_bytes())
    for number, one in enumerate((FIRST, SECOND, THIRD), 8):
        disk.write_file(journal_name(number), journal([one]))
    assert replay_journals(disk) == []
    assert disk.files() == {name: header.to_bytes() + b"firstsecondthird"}


def test_a_journal_that_cannot_be_read_stays() -> None:
    """The start tells of it, and new journals have other names."""
    disk = SimulatedDisk(logged=True)
    disk.write_file(journal_name(1), b"not a journal")
    node = Node(3, disk)
    assert list(node.node.folder.faults) == [f"{journal_name(1)} at 0"]
    node.publish(b"a")
    assert journals(disk) == [journal_name(1), journal_name(2)]
