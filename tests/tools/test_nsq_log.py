"""The tool nsq_log, on real files."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from struct import pack, pack_into
from zlib import crc32

import pytest

from tests.storage.log.log_samples import HEADER, NS, simple_batch
from tests.tools.support import Ended, command, run_here
from trionsq.core.batch import ListColumn, MessageBatch
from trionsq.disk import FolderLock, RealDisk
from trionsq.storage.log.batches import encode_record
from trionsq.storage.log.format import SegmentHeader
from trionsq.storage.log.journal import (
    JournalPiece,
    encode_journal_header,
    encode_piece,
    journal_name,
)
from trionsq.storage.log.names import segment_name
from trionsq.storage.log.ranges import (
    HeldRange,
    MessageRange,
    held_to_bytes,
    pack_held,
    pack_open,
)
from trionsq.storage.log.rows import (
    AddChannel,
    AddTopic,
    Change,
    DropTopic,
    PutHeld,
    StoredChannel,
    StoredHeld,
    StoredTopic,
    UpdateTopic,
)
from trionsq.storage.log.state import SqliteState
from trionsq.wire.bodies import ListBodies

NSQ_LOG = Callable[..., Ended]


class Written:
    """A segment of topic t in a folder, and where its records begin and end."""

    def __init__(self, folder: Path, header: SegmentHeader, batches: list[MessageBatch]) -> None:
        self.path = folder / segment_name("t", header.incarnation, header.first_sequence)
        self.name = self.path.name
        self.header = header
        self.offsets = [128]
        data, sequence = header.to_bytes(), header.first_sequence
        for batch in batches:
            data += b"".join(encode_record(batch, sequence, header))
            sequence += batch.count
            self.offsets.append(len(data))
        self.path.write_bytes(data)

    def flip(self, offset: int) -> None:
        """Damage a bit."""
        data = bytearray(self.path.read_bytes())
        data[offset] ^= 4
        self.path.write_bytes(data)


FIVE = [simple_batch([b"%d-%d" % (record, place) for place in range(4)]) for record in range(5)]
SECOND = dataclasses.replace(HEADER, first_sequence=1020, salt=99, previous_first=1000)


@pytest.fixture
def nsq_log(capsys: pytest.CaptureFixture[str]) -> NSQ_LOG:
    """Return what runs the tool in this process."""

    def run(*words: object) -> Ended:
        return run_here("nsq_log", [str(word) for word in words], capsys)

    return run


def lines(ended: Ended) -> list[str]:
    return ended.out.decode().splitlines()


def put_state(folder: Path, *changes: Change) -> None:
    """Write the state of a data path."""
    state = SqliteState(RealDisk(folder), reserve_bytes=0)
    state.apply(changes)
    state.close()


TOPIC = StoredTopic(7, "t", "always", False, None, 1000, 1040)


# verify


def test_verify_is_content_with_what_is_good(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """Two segments, one behind the other, and files of others: sums, and exit code 0."""
    first = Written(tmp_path, HEADER, FIVE)
    end = first.offsets[-1]
    first.path.write_bytes(first.path.read_bytes() + b"not of the log")
    Written(tmp_path, dataclasses.replace(SECOND, previous_end=end), FIVE)
    (tmp_path / "nsqd.dat").write_text("{}")
    (tmp_path / "t.diskqueue.000000.dat").write_bytes(b"x")
    put_state(tmp_path, AddTopic(TOPIC))
    ended = nsq_log("verify", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert lines(ended) == ["2 segments, 10 records, 40 messages: 0 damaged"]


@pytest.mark.parametrize("where", ["head", "messages"])
def test_verify_names_damage(where: str, tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """File, offset and sequences of each damaged record; the exit code is 1."""
    one = Written(tmp_path, HEADER, FIVE)
    begin, end = one.offsets[1:3]
    one.flip(begin + 9 if where == "head" else end - 1)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 1
    assert lines(ended) == [
        f"{one.name}: damage at {begin} to {end}: sequences 1004 to 1007",
        "1 segments, 4 records, 16 messages: 1 damaged",
    ]


def test_what_a_power_cut_took_is_read_from_the_journal(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """As the next start will have it; a damaged place of the journal is damage."""
    one = Written(tmp_path, HEADER, FIVE)
    data, begin = one.path.read_bytes(), one.offsets[2]
    one.path.write_bytes(data[: begin + 3])
    assert nsq_log("verify", tmp_path).out.startswith(one.name.encode() + b": torn end")
    journal = tmp_path / journal_name(1)
    pieces = [
        JournalPiece(HEADER.incarnation, HEADER.first_sequence, HEADER.salt, at, data[at:end])
        for at, end in pairwise(one.offsets[2:])
    ]
    parts = [part for at, one in enumerate(pieces, 1) for part in encode_piece(one, 9, at)]
    content = encode_journal_header(9, NS) + b"".join(parts)
    journal.write_bytes(content)
    ended = nsq_log("verify", tmp_path)
    assert (ended.code, lines(ended)) == (0, ["1 segments, 5 records, 20 messages: 0 damaged"])
    assert f"{journal.name}: 3 pieces of 1 segments" in ended.err
    cat = nsq_log("cat", "--topic=t", "--format=raw", tmp_path)
    assert cat.out.splitlines()[-1] == b"4-3"
    assert b" 20 messages" in nsq_log("stat", tmp_path).out
    journal.write_bytes(content[:70] + b"x" + content[71:])
    assert nsq_log("stat", tmp_path).code == 1


def test_verify_tells_a_torn_end_from_damage(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """A cut record at the end of the last segment is shown, and no damage."""
    one = Written(tmp_path, HEADER, FIVE)
    one.path.write_bytes(one.path.read_bytes()[:-1])
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 0
    at, end = one.offsets[4], one.offsets[5] - 1
    assert lines(ended)[0] == f"{one.name}: torn end at {at} to {end}: sequences from 1016"


def test_verify_sees_what_is_missing_before_the_next_segment(
    tmp_path: Path, nsq_log: NSQ_LOG
) -> None:
    """A segment that ends before the next one says so, or whose last record is damaged."""
    one = Written(tmp_path, HEADER, FIVE)
    at, end = one.offsets[4:6]
    Written(tmp_path, dataclasses.replace(SECOND, previous_end=end), FIVE)
    one.flip(at)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 1
    assert lines(ended)[0] == f"{one.name}: damage at {at} to {end}: sequences from 1016"
    one.path.write_bytes(one.path.read_bytes()[:at])
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 1
    assert lines(ended)[0] == f"{one.name}: ends at {at}; the next segment says at {end}"


def test_verify_sees_missing_and_repeated_segments(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """A file that is gone from the middle or the beginning, and sequences that come twice."""
    third = dataclasses.replace(HEADER, first_sequence=1040, previous_first=1020, previous_end=150)
    Written(tmp_path, HEADER, FIVE)
    last = Written(tmp_path, third, FIVE)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 1
    assert lines(ended)[1] == "2 segments, 10 records, 40 messages: 1 damaged"
    assert lines(ended)[0] == (
        f"{last.name}: the segment before it, from sequence 1020 on, is missing"
    )
    (tmp_path / segment_name("t", 7, 1000)).unlink()
    put_state(tmp_path, AddTopic(TOPIC))
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 1
    assert lines(ended)[0] == (
        f"{last.name}: the segment before it, from sequence 1020 on, is missing"
    )
    put_state(tmp_path, UpdateTopic(dataclasses.replace(TOPIC, first=1040)))
    assert nsq_log("verify", tmp_path).code == 0
    last.path.unlink()
    Written(tmp_path, HEADER, FIVE)
    twice = Written(tmp_path, dataclasses.replace(SECOND, first_sequence=1016), FIVE)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 1
    assert lines(ended)[0] == f"{twice.name}: its first sequence 1016 is below 1020"


def test_verify_follows_the_segments_as_nsqd_does(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """A segment that a failed write left, and one that was only begun, hold no message."""
    first = Written(tmp_path, HEADER, FIVE)
    failed = Written(tmp_path, dataclasses.replace(SECOND, first_sequence=1018), FIVE)
    cut = dataclasses.replace(SECOND, previous_end=first.offsets[-1])
    Written(tmp_path, cut, FIVE)
    begun = tmp_path / segment_name("t", 7, 1040)
    begun.write_bytes(b"TRIONSQL")
    text = "not of the log: no later segment names it as the one before it"
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 0
    assert lines(ended) == [
        f"{failed.name}: {text}",
        f"{begun.name}: {text}",
        "2 segments, 10 records, 40 messages: 0 damaged",
    ]
    last = dataclasses.replace(HEADER, first_sequence=1060, previous_first=1040)
    Written(tmp_path, last, FIVE)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 1
    assert lines(ended)[0] == f"{failed.name}: {text}"
    assert f"{begun.name}: unreadable" in lines(ended)[1]
    assert lines(ended)[2] == "4 segments, 15 records, 60 messages: 1 damaged"


def test_verify_shows_gaps_that_the_state_does_not_know(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """Sequences without a message are no damage: refused publishes leave such gaps."""
    Written(tmp_path, HEADER, FIVE)
    second = dataclasses.replace(SECOND, first_sequence=1025)
    later = Written(tmp_path, second, FIVE)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 0
    assert lines(ended)[0] == f"{later.name}: gap at 128: no sequences 1020 to 1024"
    put_state(tmp_path, AddTopic(dataclasses.replace(TOPIC, gaps=((1020, 1025),))))
    assert len(lines(nsq_log("verify", tmp_path))) == 1
    put_state(tmp_path, UpdateTopic(dataclasses.replace(TOPIC, gaps=((1020, 1023),))))
    assert len(lines(nsq_log("verify", tmp_path))) == 2


def test_verify_names_a_record_that_is_there_twice(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """Nothing is lost by it; it is damage nevertheless."""
    one = Written(tmp_path, HEADER, FIVE)
    data = one.path.read_bytes()
    begin, end = one.offsets[3:5]
    again = data[:end] + data[begin:end] + data[end:]
    one.path.write_bytes(again)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 1
    assert lines(ended)[0] == (f"{one.name}: damage at {end} to {end + end - begin}: no sequences")


def test_verify_checks_headers(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """One damaged copy of two is damage, and costs nothing; a wrong header costs the file."""
    one = Written(tmp_path, HEADER, FIVE)
    one.flip(70)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 1
    assert lines(ended) == [
        f"{one.name}: damage at 0 to 128: one of the two copies of the header; the other is good",
        "1 segments, 5 records, 20 messages: 1 damaged",
    ]
    one.flip(7)
    ended = nsq_log("verify", tmp_path)
    assert lines(ended)[0].startswith(f"{one.name}: unreadable: the file does not begin")
    assert (
        ended.code
        == nsq_log("stat", tmp_path).code
        == nsq_log("cat", "--topic=t", tmp_path).code
        == 1
    )
    Written(tmp_path, SECOND, FIVE).path.rename(one.path)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 1
    assert "header is that of incarnation 7, first sequence 1020" in lines(ended)[0]


def test_remainders_are_read_as_nsqd_does(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """They leave out sequences, have the name of the last segment that they were made of, and are
    smaller than that was; what they were made of is not of the log."""
    rest = dataclasses.replace(SECOND, first_sequence=1000, is_remainder=True, previous_first=None)
    one = Written(tmp_path, rest, [FIVE[1]])
    one.path.rename(tmp_path / segment_name("t", 7, 1020))
    third = dataclasses.replace(SECOND, first_sequence=1040, previous_first=1020)
    Written(tmp_path, dataclasses.replace(third, previous_end=5_000), FIVE)
    ended = nsq_log("verify", tmp_path)
    assert lines(ended) == ["2 segments, 6 records, 24 messages: 0 damaged"]
    assert ended.code == nsq_log("stat", tmp_path).code == 0
    assert len(lines(nsq_log("cat", "--topic=t", "--from-sequence=1002", tmp_path))) == 22
    Written(tmp_path, HEADER, FIVE)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 0
    assert "not of the log" in lines(ended)[0]


def test_verify_tells_what_the_state_does_not_know(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """Files of a deleted topic, of one that has another name, of none; a damaged state."""
    one = Written(tmp_path, HEADER, FIVE)
    for changes, text in (
        ((), "the state knows no such topic"),
        ((AddTopic(dataclasses.replace(TOPIC, name="u")),), "the state calls the topic u"),
        ((DropTopic(7),), "the topic is deleted"),
    ):
        put_state(tmp_path, *changes)
        ended = nsq_log("verify", tmp_path)
        assert ended.code == 0
        assert lines(ended)[0].startswith(f"{one.name}: {text}")
    with closing(sqlite3.connect(tmp_path / "trionsq.state.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 2
    assert "trionsq.state.db has schema version 99" in ended.err
    (tmp_path / "trionsq.state.db").write_bytes(b"no database at all" * 100)
    one.flip(200)
    ended = nsq_log("verify", tmp_path)
    assert ended.code == 2
    assert "trionsq.state.db: file is not a database" in ended.err
    assert lines(ended)[1] == "1 segments, 4 records, 16 messages: 1 damaged"


# Refusals


def test_what_cannot_be_read_has_its_own_exit_code(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """No folder, a segment or a record of a later release, wrong words: 2, with a reason."""
    for each in "verify", "stat":
        ended = nsq_log(each, tmp_path / "missing")
        assert ended.code == 2
        assert "missing: No such file or directory" in ended.err
    for words in (), ("check", tmp_path), ("verify",), ("verify", tmp_path, tmp_path):
        assert nsq_log(*words).code == 2
    ended = nsq_log("cat", tmp_path)
    assert (ended.code, ended.err.splitlines()[0]) == (2, "cat needs --topic")
    assert nsq_log("cat", "--topic=t", tmp_path).code == 2
    ended = nsq_log("cat", "--topic=t", "--count=-1", tmp_path)
    assert (ended.code, ended.err.splitlines()[0]) == (2, "--count should not be negative")
    assert nsq_log("--version").out.startswith(b"nsq_log v")
    assert nsq_log("verify", "--help").code == 0
    one = Written(tmp_path, HEADER, FIVE)
    data = bytearray(one.path.read_bytes())
    pack_into(">H", data, 128 + 36, 0x44)
    data[132:136] = pack(">I", crc32(data[136 : 128 + 56 + 15], HEADER.salt))
    one.path.write_bytes(data)
    for each in "verify", "stat", "cat":
        ended = nsq_log(each, "--topic=t", tmp_path)
        assert (ended.code, ended.err) == (
            2,
            f"nsq_log: {one.name}: the record at offset 128 has unknown flags: 0x44\n",
        )
    fields = bytearray(data[:60])
    pack_into(">H", fields, 8, 2)
    one.path.write_bytes(fields + pack(">I", crc32(fields)))
    ended = nsq_log("verify", tmp_path)
    assert (ended.code, ended.err) == (
        2,
        f"nsq_log: {one.name}: the segment has version 2, not 1\n",
    )


def test_beside_an_nsqd_closed_segments_are_read(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """The last segment is being written, and the state is open there: both are left alone."""
    first = Written(tmp_path, HEADER, FIVE)
    last = Written(tmp_path, dataclasses.replace(SECOND, previous_end=first.offsets[-1]), FIVE)
    last.flip(200)
    (tmp_path / "trionsq.state.db").write_bytes(b"damaged")
    (tmp_path / segment_name("t", 7, 1040)).write_bytes(b"TRIONSQL")
    with FolderLock(str(tmp_path)):
        ended = nsq_log("verify", tmp_path)
        assert ended.code == 0
        assert lines(ended) == ["1 segments, 5 records, 20 messages: 0 damaged"]
        assert "nsqd runs: the last segment" in ended.err
        assert len(lines(nsq_log("cat", "--topic=t", tmp_path))) == 20
    assert nsq_log("verify", tmp_path).code == 2


def test_the_tool_changes_nothing(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """Neither a file of the data path nor its time changes, whatever is damaged."""
    Written(tmp_path, HEADER, FIVE).flip(150)
    put_state(tmp_path, AddTopic(TOPIC))

    def seen() -> dict[str, tuple[bytes, int]]:
        return {it.name: (it.read_bytes(), it.stat().st_mtime_ns) for it in tmp_path.iterdir()}

    before = seen()
    for words in ("verify",), ("stat",), ("cat", "--topic=t"):
        nsq_log(*words, tmp_path)
    assert seen() == before


# stat


def test_stat_counts_by_topic_and_channel(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """Segments, bytes, messages, sequences and times; of each channel where it is."""
    first = Written(tmp_path, HEADER, FIVE)
    second = Written(tmp_path, SECOND, FIVE)
    other = dataclasses.replace(HEADER, incarnation=9, first_sequence=0)
    open_ = [MessageRange(1001, 2, 1), MessageRange(1005, 1, 3)]
    held = [HeldRange(99, 1006, 3, 1), HeldRange(100, 1011, 4, 0), HeldRange(200, 1030, 2, 0)]
    Written(tmp_path, other, [simple_batch([b"x"])])
    put_state(
        tmp_path,
        AddTopic(TOPIC),
        AddChannel(StoredChannel(8, 7, "c", True, 1010, 1040, pack_open(open_, 6), 99)),
        AddChannel(StoredChannel(10, 9, "d", False, 0, 1)),
        PutHeld(StoredHeld(8, 0, 7, 200, held_to_bytes(pack_held(held)))),
    )
    nbytes = first.offsets[-1] + second.offsets[-1]
    ended = nsq_log("stat", tmp_path)
    assert ended.code == 0
    moment = "2026-11-21T12:11:03.880Z"
    assert lines(ended) == [
        f"t incarnation 7: 2 segments, {nbytes} bytes, 40 messages, sequences 1000 to 1039,"
        f" {moment} to {moment}, durability always",
        "  channel c: next 1010, lag 24, open 3, held 6, paused",
        "t incarnation 9: 1 segments, 200 bytes, 1 messages, sequences 0 to 0,"
        f" {moment} to {moment}",
    ]
    assert lines(nsq_log("stat", "--topic=u", tmp_path)) == []


def test_stat_names_damage(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """A damaged head is seen, for the counts lack its messages."""
    one = Written(tmp_path, HEADER, FIVE)
    one.flip(130)
    ended = nsq_log("stat", tmp_path)
    assert ended.code == 1
    assert "damage at 128 to" in ended.err
    assert " 16 messages" in lines(ended)[0]


def test_stat_sees_what_the_last_commit_said(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """After kill -9 the last commits are in the WAL alone; they count."""
    Written(tmp_path, HEADER, FIVE)
    state = SqliteState(RealDisk(tmp_path), reserve_bytes=0)
    state.apply([AddTopic(dataclasses.replace(TOPIC, paused=True))])
    assert lines(nsq_log("stat", tmp_path))[0].endswith("durability always, paused")
    state.close()


# cat


def test_cat_prints_messages_from_a_sequence_on(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """JSON lines over the ends of records and segments; raw bodies; of the last incarnation."""
    first = Written(tmp_path, HEADER, FIVE)
    Written(tmp_path, SECOND, FIVE)
    found = list(map(json.loads, lines(nsq_log("cat", "--topic=t", tmp_path))))
    assert [one["sequence"] for one in found] == list(range(1000, 1040))
    assert found[0] == {
        "sequence": 1000,
        "id": "123456789abcd000",
        "timestamp": NS,
        "body": "0-0",
        "body_encoding": "utf-8",
    }
    some = ("cat", tmp_path, "--topic=t", "--from-sequence=1018", "--count", "3", "--format=raw")
    assert nsq_log(*some).out == b"4-2\n4-3\n0-0\n"
    first.flip(300)
    ended = nsq_log("cat", tmp_path, "--topic=t", "--from-sequence=1039")
    assert (ended.code, ended.err, len(lines(ended))) == (0, "", 1)
    first.flip(300)
    assert lines(nsq_log("cat", tmp_path, "--topic=t", "--from-sequence=1040")) == []
    other = dataclasses.replace(HEADER, incarnation=9)
    stamps = ListColumn([pack(">q", NS + 5)])
    binary = MessageBatch(ListBodies([b"\xff"]), ListColumn([b"A" * 16]), NS, 250, stamps)
    Written(tmp_path, other, [binary])
    assert list(map(json.loads, lines(nsq_log("cat", "--topic=t", tmp_path)))) == [
        {
            "sequence": 1000,
            "id": "A" * 16,
            "timestamp": NS + 5,
            "body": "/w==",
            "body_encoding": "base64",
            "defer_ms": 250,
        }
    ]
    assert len(lines(nsq_log("cat", "--topic=t", "--incarnation=7", tmp_path))) == 40


def test_cat_goes_on_behind_damage(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """What is good is printed, what is not is named on stderr, and the exit code is 1."""
    one = Written(tmp_path, HEADER, FIVE)
    one.flip(one.offsets[1])
    one.flip(one.offsets[4] - 1)
    one.flip(one.offsets[5] - 1)
    ended = nsq_log("cat", "--topic=t", "--format=raw", tmp_path)
    assert ended.out.split() == [b"%d-%d" % (record, it) for record in (0, 2) for it in range(4)]
    begin, end = one.offsets[1:3]
    assert f"{one.name}: damage at {begin} to {end}: sequences 1004 to 1007" in ended.err
    assert f"{one.name}: torn end at {one.offsets[3]}" in ended.err
    assert ended.code == 1


def test_cat_ends_with_its_reader(tmp_path: Path) -> None:
    """As in ``nsq_log cat ... | head -1``: no trace, exit code 0."""
    Written(tmp_path, HEADER, [simple_batch([b"x" * 10_000] * 50)])
    words = command("nsq_log", "cat", "--topic=t", str(tmp_path))
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(20).startswith(b'{"sequence": 1000')
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0
