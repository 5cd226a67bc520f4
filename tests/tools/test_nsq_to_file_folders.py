"""Files that crashed processes of nsq_to_file left: incomplete lines, files in the work dir."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.test_nsq_to_file_log import at, contents, make
from trionsq.tools import nsq_to_file_options as names
from trionsq.tools.nsq_to_file_log import TopicArchive

FORMAT = "<TOPIC>.<HOST>.<PID><REV>.<DATETIME>.log"
DATETIME_FORMAT = "%Y/%m-%d_%b_%%"


def test_a_cut_off_record_is_given_a_line_of_its_own(tmp_path: Path) -> None:
    """After an incomplete record a plain file continues on the next line."""
    (tmp_path / "t.log").write_bytes(b"one\ntw")
    log = make(tmp_path, name_format="t.log")
    log.write([b"two"], at(0))
    log.close()
    log = make(tmp_path, name_format="t.log")
    log.write([b"three"], at(0))
    log.close()
    assert contents(tmp_path) == {"t.log": b"one\ntw\ntwo\nthree\n"}


def left(folder: Path, pid: int, *, gzip: bool) -> TopicArchive:
    """A log with a work dir, for topic t and a process id."""

    def name(of: int | str) -> str:
        return names.name_format(FORMAT, "t", "host", of, gzip=gzip, needs_revision=True)

    return make(
        folder / "out",
        name_format=name(pid),
        datetime_format=DATETIME_FORMAT,
        work_dir=str(folder / "work"),
        gzip_level=6 if gzip else None,
        unfinished=names.unfinished_pattern(name(names.PID), DATETIME_FORMAT),
    )


@pytest.mark.parametrize("gzip", [False, True])
def test_what_a_crash_left_is_moved_at_the_next_start(tmp_path: Path, gzip: bool) -> None:
    """All synced records are in the output dir; an incomplete record has its own line, or was
    removed from a gzip file.
    """
    crashed = left(tmp_path, 7, gzip=gzip)
    crashed.write([b"one", b"two"], at(0))
    crashed.sync()
    assert crashed.path is not None
    crashed.abandon()
    path = Path(crashed.path)
    with path.open("ab") as file:
        file.write(b"\x1f\x8b\x08" if gzip else b"thr")
    suffix = ".gz" if gzip else ""
    taken = tmp_path / "out" / f"t.host.7-000000.2026/11-21_Nov_%.log{suffix}"
    taken.write_bytes(b"")
    strange = tmp_path / "work" / "u.host.7-000000.2026" / path.name
    strange.parent.mkdir()
    strange.write_bytes(b"")  # of another topic
    left(tmp_path, 8, gzip=gzip).move_unfinished_files()
    cut_off = b"" if gzip else b"thr\n"
    taken.unlink()
    assert contents(tmp_path / "out") == {
        f"t.host.7-000001.2026/11-21_Nov_%.log{suffix}": b"one\ntwo\n" + cut_off
    }
    assert list(contents(tmp_path / "work")) == [str(strange.relative_to(tmp_path / "work"))]


def test_a_gzip_file_without_any_sync_is_left_empty(tmp_path: Path) -> None:
    """The moved file is still a valid gzip file."""
    crashed = left(tmp_path, 7, gzip=True)
    crashed.write([b"one"], at(0))
    crashed.abandon()
    left(tmp_path, 8, gzip=True).move_unfinished_files()
    assert list(contents(tmp_path / "out").values()) == [b""]
    assert not contents(tmp_path / "work")


def test_a_file_that_another_process_writes_is_left_alone(tmp_path: Path) -> None:
    """Only files that no process has locked are moved."""
    living = left(tmp_path, 7, gzip=False)
    living.write([b"one"], at(0))
    left(tmp_path, 8, gzip=False).move_unfinished_files()
    living.write([b"two"], at(1))
    living.close()
    assert list(contents(tmp_path / "out").values()) == [b"one\ntwo\n"]
    left(tmp_path, 8, gzip=False).move_unfinished_files()  # nor is there anything left


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    st.datetimes(min_value=datetime(1000, 1, 1), timezones=st.just(UTC)),
    st.integers(0, 10_000_000),
)
def test_every_name_that_is_made_is_known_again(text: str, now: datetime, revision: int) -> None:
    """Whatever the formats, the pattern matches a file in progress and finds its revision."""
    for datetime_format in (text, "%Y-%m-%d_%H", "%a%A%b%B%p%z%Z%y%M%S%I" + text):
        name = names.name_format(
            f"<TOPIC><REV>.<DATETIME>{text}", "t", "h", names.PID, gzip=False, needs_revision=True
        )
        pattern = names.unfinished_pattern(name, datetime_format)
        moment = names.format_datetime(datetime_format, now)
        made = name.replace(names.PID, "12").replace(names.DATETIME, moment)
        path = names.path_of("/work", names.with_revision(made, revision))
        found = pattern.fullmatch(os.path.relpath(path, "/work"))
        assert found is not None
        assert int(found["rev"][1:]) == revision
