"""Joining small files loses and duplicates no row, whatever crashes or runs meanwhile."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pipelines.__main__ import main
from pipelines.errors import FolderError
from pipelines.jobs import compaction
from pipelines.jobs import parquet as files
from pipelines.jobs.compaction import compact_table, group_files, read_lock
from tests.pipelines.jobs.running import archived

TARGET = 1 << 20


def bodies_of(table: Path) -> list[int]:
    found = ds.dataset(table, format="parquet", partitioning="hive").to_table()
    return sorted(int(body) for body in found["body"].to_pylist())


def files_of(table: Path) -> list[Path]:
    return sorted(table.glob("date=*/topic=*/*.parquet"))


def small_files(table: Path, topic: str = "t", count: int = 6) -> None:
    for first in range(0, 10 * count, 10):
        archived(table, topic, range(first, first + 10))


def test_small_files_become_one(tmp_path: Path) -> None:
    """The small files of each folder become one; a second run changes nothing."""
    small_files(tmp_path)
    small_files(tmp_path, "other")
    done = compact_table(tmp_path, TARGET)
    assert done is not None
    assert (done.old_files, done.new_files) == (12, 2)
    assert bodies_of(tmp_path) == sorted([*range(60)] * 2)
    assert len(files_of(tmp_path)) == 2
    again = compact_table(tmp_path, TARGET)
    assert again is not None
    assert again.old_files == 0


def test_groups() -> None:
    """Files are grouped in order up to the target size; a few small ones wait for more."""
    assert group_files([("b", 60), ("a", 60), ("c", 60), ("d", 10)], 100) == [["a", "b"]]
    assert group_files([("a", 1), ("b", 1), ("c", 1)], 100) == []
    assert group_files([(name, 1) for name in "dcba"], 100) == [["a", "b", "c", "d"]]
    assert group_files([("a", 100)], 100) == []


def test_a_row_group_is_written_when_it_is_large_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded by the size of a row group, not of a file."""
    monkeypatch.setattr(compaction, "_ROW_GROUP_BYTES", 1000)
    small_files(tmp_path)
    compact_table(tmp_path, TARGET)
    (path,) = files_of(tmp_path)
    assert pq.ParquetFile(path).num_row_groups > 1
    assert bodies_of(tmp_path) == [*range(60)]


def test_files_with_other_columns_stay_apart(tmp_path: Path) -> None:
    """Files with other columns, as a newer version may write them, are not joined."""
    small_files(tmp_path, count=4)
    folder = files_of(tmp_path)[0].parent
    for name in ("x1", "x2"):
        pq.write_table(pa.table({"body": [b"100"], "more": [1]}), folder / f"{name}.parquet")
    compact_table(tmp_path, TARGET)
    assert sorted(pq.read_metadata(path).num_rows for path in files_of(tmp_path)) == [2, 40]


@pytest.mark.parametrize("failing", ["draft", "journal", "rename", "remove 1", "remove 3"])
def test_a_crash_is_put_right_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """After a crash at any step no row is lost, and the next run removes duplicates."""
    small_files(tmp_path)
    step, _, count = failing.partition(" ")
    with monkeypatch.context() as patch:
        if step == "remove":
            unlink, left = Path.unlink, [int(count)]

            def limited(path: Path, missing_ok: bool = False) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                unlink(path, missing_ok)

            patch.setattr(Path, "unlink", limited)
        else:
            owner, name = {
                "draft": (compaction, "sync"),
                "journal": (compaction, "replace_file"),
                "rename": (Path, "rename"),
            }[step]

            def crash(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(owner, name, crash)
        with pytest.raises(KeyboardInterrupt):
            compact_table(tmp_path, TARGET)
    assert set(bodies_of(tmp_path)) == set(range(60))
    with read_lock(tmp_path):
        assert bodies_of(tmp_path) == [*range(60)]
    compact_table(tmp_path, TARGET)
    assert bodies_of(tmp_path) == [*range(60)]
    assert len(files_of(tmp_path)) == 1
    assert [path.name for path in (tmp_path / "_compaction").iterdir()] == ["LOCK"]


def test_new_files_of_a_running_job_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files that were read are replaced; files added meanwhile wait for the next run."""
    small_files(tmp_path)
    real = files.replace_file

    def replace_file(path: Path, data: bytes) -> None:
        archived(tmp_path, "t", range(60, 61))
        real(path, data)

    monkeypatch.setattr(compaction, "replace_file", replace_file)
    compact_table(tmp_path, TARGET)
    assert bodies_of(tmp_path) == [*range(61)]


def test_it_stops_when_told_to(tmp_path: Path) -> None:
    """A stop abandons the current file and leaves the table as it was."""
    small_files(tmp_path)
    before = files_of(tmp_path)
    answers = iter([False, False])
    compact_table(tmp_path, TARGET, lambda: next(answers, True))
    assert files_of(tmp_path) == before
    assert not list((tmp_path / "_compaction").glob("*.parquet"))


def test_readers_and_compaction_exclude_each_other(tmp_path: Path) -> None:
    """A reader and a compaction exclude each other; two readers do not."""
    small_files(tmp_path)
    with read_lock(tmp_path), read_lock(tmp_path):
        assert compact_table(tmp_path, TARGET) is None


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job prints its result; a damaged file or a missing folder is one line and exit code 1."""
    small_files(tmp_path)
    assert main(["compact", f"--table={tmp_path}"]) == 0
    assert "compact: joined 6 files to 1" in capsys.readouterr().err
    small_files(tmp_path, "bad")
    path = files_of(tmp_path)[0]
    path.write_bytes(b"no Parquet")
    assert main(["compact", f"--table={tmp_path}"]) == 1
    assert capsys.readouterr().err.startswith(f"compact: {tmp_path} can't be compacted: ")
    assert main(["compact", "--table=/nowhere/at/all"]) == 1
    assert capsys.readouterr().err == "compact: --table: there is no table /nowhere/at/all\n"


def test_reading_says_why_it_can_not(tmp_path: Path) -> None:
    """A reader does not wait for a running compaction, but gets an error that names it."""
    with compaction._locked(tmp_path, fcntl.LOCK_EX) as is_locked:
        assert is_locked
        with pytest.raises(FolderError, match="is being compacted"), read_lock(tmp_path):
            pass
