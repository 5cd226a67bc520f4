"""The files of a topic, as nsq_to_file writes them, without a broker or a clock."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trionsq.tools import nsq_to_file_options as names
from trionsq.tools.nsq_to_file_log import Now, TopicArchive
from trionsq.tools.nsq_to_file_options import LogSettings

BEGIN = datetime(2026, 11, 21, 23, 59, 0, tzinfo=UTC)


def at(seconds: float) -> Now:
    """The time so long after the start of the tests."""
    return Now(BEGIN + timedelta(seconds=seconds), seconds)


def make(folder: Path, **changes: Any) -> TopicArchive:
    """A log in the folder, by default of plain files without revisions."""
    given = {
        "name_format": "t.host<REV>.<DATETIME>.log",
        "datetime_format": "%Y-%m-%d_%H",
        "output_dir": str(folder),
        "work_dir": str(folder),
    }
    return TopicArchive(LogSettings(**(given | changes)))


def contents(folder: Path) -> dict[str, bytes]:
    """The contents of the folder's files, by name; gzip files are unpacked completely."""
    return {
        str(path.relative_to(folder)): unpacked(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def unpacked(path: Path) -> bytes:
    """The records of a file."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.name.endswith(".gz") else data


# Names


def test_datetime_directives_are_those_of_the_original() -> None:
    """The documented directives are replaced; other characters stay."""
    now = datetime(2026, 1, 2, 15, 4, 5, tzinfo=UTC)
    shown = names.format_datetime("%B %b %m %A %a %d %H %I %M %S %Y %y %p %Z %z %% %j %", now)
    assert shown == ("January Jan 01 Friday Fri 02 15 03 04 05 2026 26 PM UTC +0000 % %j %")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "web"), ("<SHORT_HOST>-a", "web-a"), ("<HOSTNAME>", "web.example.org"), ("x", "x")],
)
def test_host_identifier(text: str, expected: str) -> None:
    """The short name by default; a format may contain both forms of the name."""
    assert names.host_identifier(text, "web.example.org") == expected


def test_revision_is_removed_where_none_is_needed() -> None:
    """Plain, unrotated files in one folder have no revision."""
    text = "<TOPIC>.<HOST><REV>.<PID>.<DATETIME>.log"
    plain = names.name_format(text, "t", "h", 7, gzip=False, needs_revision=False)
    assert plain == "t.h.7.<DATETIME>.log"
    packed = names.name_format(text, "t", "h", 7, gzip=True, needs_revision=True)
    assert packed == "t.h<REV>.7.<DATETIME>.log.gz"
    with pytest.raises(names.MissingRevisionError, match="missing <REV> in --filename-format"):
        names.name_format("<TOPIC>.log", "t", "h", 7, gzip=True, needs_revision=True)


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.datetimes())
def test_any_datetime_format_is_taken(text: str, now: datetime) -> None:
    """No format is refused; one without directives is used as it is."""
    shown = names.format_datetime(text, now)
    if "%" not in text:
        assert shown == text


# Files


def test_plain_files_are_continued(tmp_path: Path) -> None:
    """A second run appends to the file of the first."""
    for body in (b"one", b"two"):
        log = make(tmp_path, name_format="t.<DATETIME>.log")
        log.write([body], at(0))
        log.close()
    assert contents(tmp_path) == {"t.2026-11-21_23.log": b"one\ntwo\n"}


@pytest.mark.parametrize("changes", [{"gzip_level": 6}, {"rotate_interval_s": 60.0}])
def test_exclusive_files_take_the_next_revision(tmp_path: Path, changes: dict[str, Any]) -> None:
    """gzip files and files with an interval are never continued."""
    suffix = ".gz" if "gzip_level" in changes else ""
    for body in (b"one", b"two"):
        log = make(tmp_path, name_format=f"t<REV>.log{suffix}", **changes)
        log.write([body], at(0))
        log.close()
    assert contents(tmp_path) == {
        f"t-000000.log{suffix}": b"one\n",
        f"t-000001.log{suffix}": b"two\n",
    }


def test_name_changes_with_the_time(tmp_path: Path) -> None:
    """Records of the next hour are in the next hour's file, revision 0."""
    log = make(tmp_path)
    assert not log.write([b"old"], at(0))
    assert log.write([b"new"], at(60))
    log.close()
    assert contents(tmp_path) == {
        "t.host-000000.2026-11-21_23.log": b"old\n",
        "t.host-000000.2026-11-22_00.log": b"new\n",
    }


def test_size_is_checked_for_each_record(tmp_path: Path) -> None:
    """A file that exceeds the size gets no further record, also in the middle of a batch."""
    log = make(tmp_path, rotate_size=7)
    assert log.write([b"abc", b"def", b"ghi", b"jkl"], at(0))
    log.close()
    assert list(contents(tmp_path).values()) == [b"abc\ndef\n", b"ghi\njkl\n"]


def test_size_found_at_open_counts(tmp_path: Path) -> None:
    """A file that is already too large is not continued."""
    (tmp_path / "t-000000.log").write_bytes(b"x" * 8)
    log = make(tmp_path, name_format="t<REV>.log", rotate_size=7)
    log.write([b"a"], at(0))
    log.close()
    assert contents(tmp_path) == {"t-000000.log": b"x" * 8, "t-000001.log": b"a\n"}


def test_interval(tmp_path: Path) -> None:
    """A file older than the interval is closed, whatever its name."""
    log = make(tmp_path, name_format="t<REV>.log", rotate_interval_s=10.0)
    log.write([b"a"], at(0))
    log.write([b"b"], at(10))
    log.write([b"c"], at(10.5))
    log.close()
    assert contents(tmp_path) == {"t-000000.log": b"a\nb\n", "t-000001.log": b"c\n"}


def test_ticks_make_empty_files_unless_told_otherwise(tmp_path: Path) -> None:
    """Before the first tick there is no file; then one for each interval, even if empty."""
    log = make(tmp_path, name_format="t<REV>.log.gz", rotate_interval_s=10.0, gzip_level=1)
    assert not contents(tmp_path)
    for seconds in (0, 5, 11):
        log.rotate_if_due(at(seconds))
    log.close()
    assert contents(tmp_path) == {"t-000000.log.gz": b"", "t-000001.log.gz": b""}


def test_skip_empty_files(tmp_path: Path) -> None:
    """A tick closes the finished file and opens none."""
    log = make(tmp_path, name_format="t<REV>.log", rotate_interval_s=10.0, skip_empty_files=True)
    log.rotate_if_due(at(0))
    log.write([b"a"], at(1))
    log.rotate_if_due(at(12))
    assert log.path is None
    log.rotate_if_due(at(24))
    log.close()
    assert contents(tmp_path) == {"t-000000.log": b"a\n"}


def test_each_sync_ends_a_gzip_member(tmp_path: Path) -> None:
    """After a sync every reader can unpack the file, although it is still being written."""
    log = make(tmp_path, name_format="t<REV>.log.gz", gzip_level=9)
    for count in (1, 2):
        log.write([b"record"], at(0))
        log.sync()
        data = (tmp_path / "t-000000.log.gz").read_bytes()
        assert gzip.decompress(data) == b"record\n" * count
    first = zlib.decompressobj(wbits=31)
    assert first.decompress(data) == b"record\n"
    assert first.unused_data
    log.close()


def test_work_dir(tmp_path: Path) -> None:
    """Files in progress are in the work dir, finished ones in the same subfolders of the output
    dir.
    """
    work, output = tmp_path / "work", tmp_path / "output"
    log = make(
        output, work_dir=str(work), name_format="<DATETIME>/t<REV>.log", datetime_format="%Y/%m"
    )
    log.write([b"a"], at(0))
    log.sync()
    assert contents(work) == {"2026/11/t-000000.log": b"a\n"}
    assert not contents(output)
    log.close()
    assert not contents(work)
    assert contents(output) == {"2026/11/t-000000.log": b"a\n"}
    assert (output / "2026").stat().st_mode & 0o027 == 0o770 & ~umask() & 0o027


def umask() -> int:
    """This process's umask."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def test_a_move_never_replaces_a_file(tmp_path: Path) -> None:
    """Names that exist in the output dir are skipped, at opening and at moving."""
    work, output = tmp_path / "work", tmp_path / "output"
    output.mkdir()
    (output / "t-000000.log").write_bytes(b"theirs")
    log = make(output, work_dir=str(work), name_format="t<REV>.log")
    log.write([b"ours"], at(0))
    assert list(contents(work)) == ["t-000001.log"]
    (output / "t-000001.log").write_bytes(b"theirs too")
    log.close()
    assert not contents(work)
    assert contents(output) == {
        "t-000000.log": b"theirs",
        "t-000001.log": b"theirs too",
        "t-000002.log": b"ours\n",
    }


def test_an_error_leaves_records_unsynced(tmp_path: Path) -> None:
    """A failed fsync raises, and no record counts as durable."""

    def fail(fd: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(5, "Input/output error")

    log = TopicArchive(
        LogSettings(
            name_format="t.log",
            datetime_format="",
            output_dir=str(tmp_path),
            work_dir=str(tmp_path),
        ),
        fsync=fail,
    )
    log.write([b"a"], at(0))
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    assert log.unsynced == 1
    log.abandon()


class Life(RuleBasedStateMachine):
    """Any sequence of calls: every record is in exactly one file, in order, and durable in time."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="nsq_to_file-"))
        self.durable: dict[int, int] = {}
        self.expected: list[bytes] = []
        self.now_s = 0.0

    def teardown(self) -> None:
        self.log.close()
        self.check_all()
        shutil.rmtree(self.root)

    @initialize(
        level=st.sampled_from([None, 1]),
        size=st.sampled_from([0, 1, 20]),
        interval_s=st.sampled_from([0.0, 5.0]),
        skip=st.booleans(),
        moves=st.booleans(),
        moment=st.sampled_from(["", "%H", "%H/%M%S"]),
    )
    def begin(
        self,
        level: int | None,
        size: int,
        interval_s: float,
        skip: bool,
        moves: bool,
        moment: str,
    ) -> None:
        """Any settings."""
        self.suffix = ".gz" if level else ""
        self.settings = LogSettings(
            name_format=f"<DATETIME>t<REV>.log{self.suffix}",
            datetime_format=moment,
            output_dir=str(self.root / "output"),
            work_dir=str(self.root / ("work" if moves else "output")),
            gzip_level=level,
            rotate_size=size,
            rotate_interval_s=interval_s,
            skip_empty_files=skip,
        )
        self.log = TopicArchive(self.settings, self.fsync)

    def fsync(self, fd: int) -> None:
        """Record the durable content, by inode."""
        status = os.fstat(fd)
        self.durable[status.st_ino] = status.st_size

    @rule(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8))
    def write(self, lengths: list[int]) -> None:
        """Write a batch. Earlier records in a closed file are durable."""
        bodies = [b"%d:%s" % (len(self.expected) + i, b"x" * n) for i, n in enumerate(lengths)]
        files = self.log.files
        had_path = self.log.path is not None
        has_rotated = self.log.write(bodies, at(self.now_s))
        self.expected += bodies
        assert has_rotated == (self.log.files - files > (0 if had_path else 1))

    @rule()
    def sync(self) -> None:
        """Sync. Everything is durable and readable."""
        self.log.sync()
        self.check_all()

    @rule(seconds=st.sampled_from([0.5, 6.0, 3600.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds

    @rule()
    def tick(self) -> None:
        """Rotate if due."""
        self.log.rotate_if_due(at(self.now_s))

    @rule()
    def close(self) -> None:
        """Close the file, as SIGHUP does."""
        self.log.close()
        assert self.log.path is None
        self.check_all()

    @rule()
    def restart(self) -> None:
        """Stop as SIGTERM does, and start a new process over the same folders."""
        self.log.close()
        self.log = TopicArchive(self.settings, self.fsync)

    @precondition(lambda self: self.settings.has_work_dir)
    @rule()
    def steal_a_name(self) -> None:
        """Another process takes the name for which the file in progress is meant."""
        if self.log.path is not None:
            taken = Path(self.log.path.replace("/work/", "/output/"))
            if not taken.exists():
                empty = zlib.compressobj(wbits=31).flush() if self.suffix else b""
                taken.write_bytes(empty)
                self.durable[taken.stat().st_ino] = len(empty)

    @invariant()
    def unsynced_is_what_may_be_lost(self) -> None:
        """Without unsynced records, all records are durable."""
        if hasattr(self, "log") and not self.log.unsynced:
            self.check_all()

    def check_all(self) -> None:
        """Each record exists once, complete and durable; no file exceeds its size."""
        found: list[bytes] = []
        for path in self.root.rglob("*"):
            if path.is_file():
                assert self.durable.get(path.stat().st_ino, 0) == path.stat().st_size
                if path.stat().st_size or str(path) != self.log.path:
                    records = unpacked(path)
                    assert not records or records.endswith(b"\n")
                    lines = records.split(b"\n")[:-1]
                    # In order within a file.
                    numbers = [int(line.partition(b":")[0]) for line in lines]
                    assert numbers == sorted(numbers)
                    found += lines
                    limit = self.settings.rotate_size
                    assert not limit or len(records) - len(lines[-1] if lines else b"") <= limit + 1
        assert sorted(found) == sorted(self.expected)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
