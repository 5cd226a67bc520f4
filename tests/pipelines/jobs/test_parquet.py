"""Each microbatch appears once in a table, whatever crashes; without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pipelines.jobs import parquet as files
from pipelines.jobs.parquet import (
    ParquetTable,
    last_published,
    parquet_files,
    partition_folders,
    publish_batch,
)

QUERY = "0123456789abcdef"


class Frame:
    """The part of a DataFrame that `ParquetTable` uses: one file for each part, as Spark does."""

    def __init__(self, parts: Sequence[Sequence[int]]) -> None:
        self._parts = parts
        self.writes = 0

    @property
    def write(self) -> Frame:
        return self

    def option(self, _name: str, _value: str) -> Frame:
        return self

    def partitionBy(self, *_columns: str) -> Frame:
        return self

    def parquet(self, path: str) -> None:
        self.writes += 1
        for number, part in enumerate(self._parts):
            folder = Path(path) / f"date=2026-11-2{number}"
            folder.mkdir(parents=True)
            name = f"part-{number:05}-{self.writes:036}-c000.zstd.parquet"
            pq.write_table(pa.table({"body": list(part)}), folder / name)
        (Path(path) / "_SUCCESS").touch()


def rows_of(path: Path) -> list[int]:
    found = ds.dataset(path, format="parquet", partitioning="hive").to_table()
    return sorted(found["body"].to_pylist()) if found.num_columns else []


def write(path: Path, frame: Frame, batch: int) -> None:
    ParquetTable(path).write(frame, QUERY, batch)  # type: ignore[arg-type]


def test_a_batch_that_comes_again_is_not_written_again(tmp_path: Path) -> None:
    """A repeated microbatch, after a crash before Spark's commit log, is not written again."""
    frame = Frame([[1, 2], [3]])
    write(tmp_path, frame, 0)
    write(tmp_path, frame, 0)
    assert (rows_of(tmp_path), frame.writes) == ([1, 2, 3], 1)
    write(tmp_path, Frame([[4]]), 1)
    assert rows_of(tmp_path) == [1, 2, 3, 4]
    assert last_published(tmp_path, QUERY) == 1


def test_two_queries_share_a_table(tmp_path: Path) -> None:
    """Microbatches of two queries with equal numbers do not replace each other."""
    write(tmp_path, Frame([[1]]), 0)
    ParquetTable(tmp_path).write(Frame([[2]]), "f" * 16, 0)  # type: ignore[arg-type]
    assert rows_of(tmp_path) == [1, 2]


@pytest.mark.parametrize("failing", range(14))
def test_a_crash_in_the_middle_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """After a crash at each fsync the repeated microbatch resumes, and each row is there once."""
    real, calls = files.sync, 0

    def sync(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == failing + 1:
            raise KeyboardInterrupt
        real(path)

    frame = Frame([[1, 2], [3]])
    monkeypatch.setattr("pipelines.jobs.parquet.sync", sync)
    try:
        write(tmp_path, frame, 0)
    except KeyboardInterrupt:
        assert set(rows_of(tmp_path)) <= {1, 2, 3}
        write(tmp_path, frame, 0)
    else:
        assert calls <= failing, "it should have crashed"
        assert failing > 6, "too few crashes to tell anything"
    assert rows_of(tmp_path) == [1, 2, 3]
    # Two files, three folders, and their mark are synced before the microbatch is complete.
    assert frame.writes == (2 if failing < 6 else 1)
    assert last_published(tmp_path, QUERY) == 0


def test_files_that_are_in_place_already_are_not_missed(tmp_path: Path) -> None:
    """After a crash between two renames the other files are renamed."""
    stage = tmp_path / "_staging" / QUERY / "5"
    Frame([[1], [2]]).parquet(str(stage))
    moved = next(stage.rglob("part-00000*"))
    target = tmp_path / "date=2026-11-20" / f"{QUERY[:8]}-00000005-00000-c000.parquet"
    target.parent.mkdir()
    moved.rename(target)
    publish_batch(tmp_path, QUERY, 5)
    assert rows_of(tmp_path) == [1, 2]
    assert not stage.exists()


def test_a_batch_that_was_not_complete_is_written_anew(tmp_path: Path) -> None:
    """A microbatch of which Spark's _SUCCESS alone survived a power cut is written again."""
    stage = tmp_path / "_staging" / QUERY / "0"
    Frame([[9]]).parquet(str(stage))
    next(stage.rglob("*.parquet")).write_bytes(b"")
    write(tmp_path, Frame([[1]]), 0)
    assert rows_of(tmp_path) == [1]


def test_the_folders_of_an_unfinished_batch_are_not_listed(tmp_path: Path) -> None:
    """What a job writes meanwhile may be gone at the next look; it is not part of the table."""
    write(tmp_path, Frame([[1], [2]]), 0)
    Frame([[3]]).parquet(str(tmp_path / "_staging" / QUERY / "1"))
    dates = [tmp_path / "date=2026-11-20", tmp_path / "date=2026-11-21"]
    (dates[0] / ".draft.parquet").touch()
    assert [*partition_folders(tmp_path)] == [tmp_path, *dates]
    names = {path.name for folder in dates for path in parquet_files(folder)}
    assert names == {f"{QUERY[:8]}-00000000-0000{number}-c000.parquet" for number in (0, 1)}
