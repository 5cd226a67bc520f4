"""Each microbatch appears once in a Delta table, and readers see whole transactions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from pipelines.errors import FolderError, StoreError
from pipelines.jobs.delta import DeltaTable, parse_location
from pipelines.jobs.deltafiles import DeltaFile, read_files, write_files
from pipelines.jobs.deltasource import read_table, write_batch
from tests.pipelines.jobs.running import FIRST
from tests.soak import in_short_soak

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_BY = ("date", "topic")


def frame_of(spark: SparkSession, numbers: Iterable[int], topic: str = "t") -> DataFrame:
    """Messages, one a second from a minute before midnight on."""
    rows = [(FIRST + timedelta(seconds=number), b"%d" % number, topic) for number in numbers]
    frame = spark.createDataFrame(rows, "timestamp timestamp, body binary, topic string")
    return frame.selectExpr("*", "to_date(timestamp) AS date")


def write(path: Path, frame: DataFrame, batch: int, query_id: str = "q") -> None:
    write_batch(DeltaTable(str(path), {}, partition_by=PARTITION_BY), frame, query_id, batch)


def foreign_rows(path: Path) -> pa.Table:
    """What deltalake's own reader sees."""
    return deltalake.DeltaTable(path).to_pyarrow_table().sort_by("timestamp")


def numbers_of(table: DeltaTable, files: Sequence[DeltaFile]) -> list[int]:
    batches = read_files(files, table.location, {}, table.schema())
    return sorted(number for batch in batches for number in batch.column("body").to_pylist())


def numbers_in(path: Path) -> list[int]:
    return sorted(int(body) for body in foreign_rows(path)["body"].to_pylist())


@in_short_soak
def test_a_batch_is_one_transaction_and_is_not_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A repeated microbatch adds nothing; another query's batch of that number does."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    write(tmp_path, frame_of(spark, range(100)), 0)
    write(tmp_path, frame_of(spark, range(100)), 0)
    write(tmp_path, frame_of(spark, range(100, 110), "odd.name#ephemeral"), 1)
    write(tmp_path, frame_of(spark, []), 2)
    write(tmp_path, frame_of(spark, range(110, 120)), 0, "other")
    assert numbers_in(tmp_path) == [*range(120)]
    rows = foreign_rows(tmp_path)
    assert set(rows["topic"].to_pylist()) == {"t", "odd.name#ephemeral"}
    assert rows["timestamp"].to_pylist()[0] == FIRST
    assert {str(day) for day in rows["date"].to_pylist()} == {"2026-11-20", "2026-11-21"}
    # The one that creates it, and one for each microbatch with rows.
    assert deltalake.DeltaTable(tmp_path).version() == 3

    found = read_table(spark, DeltaTable(str(tmp_path), {}))
    assert found.columns == ["timestamp", "body", "topic", "date"]
    ours = found.toArrow().sort_by("timestamp")
    assert ours["body"].to_pylist() == rows["body"].to_pylist()
    assert ours["date"].to_pylist() == rows["date"].to_pylist()
    odd = read_table(
        spark, DeltaTable(str(tmp_path), {}), [("topic", "in", ["odd.name#ephemeral"])]
    )
    assert odd.count() == 10
    late = read_table(spark, DeltaTable(str(tmp_path), {}), [("date", ">=", "2026-11-21")])
    assert late.count() == 60


def test_joining_leaves_readers_whole_and_removes_files_later(tmp_path: Path) -> None:
    """Who listed the files before can read them until they are vacuumed; no row is moved."""
    table = DeltaTable(str(tmp_path), {}, partition_by=["topic"])
    table.create(pa.schema([("topic", pa.string()), ("body", pa.int64())]))
    for batch in range(5):
        rows = pa.record_batch({"topic": ["t"] * 10, "body": [*range(10 * batch, 10 * batch + 10)]})
        table.add_files([*write_files([rows], table.location, {}, ["topic"])], "q", batch)
    before = table.files()
    # Of a task that is at work: no transaction has it yet.
    stray = tmp_path / "topic=t" / "stray.parquet"
    stray.write_bytes(b"?")
    done = table.compact(1 << 20, retention_s=7200)
    assert (done.old_files, done.new_files) == (5, 1)
    assert numbers_of(table, before) == numbers_of(table, table.files()) == [*range(50)]
    assert stray.exists()
    assert table.compact(1 << 20, retention_s=7200).old_files == 0

    long_ago = time.time() - 3 * 3600
    os.utime(stray, (long_ago, long_ago))
    table.compact(1 << 20, retention_s=7200)
    assert not stray.exists()
    assert len(list(tmp_path.rglob("*.parquet"))) == 6
    table.compact(1 << 20, retention_s=0)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    assert numbers_of(table, table.files()) == [*range(50)]
    assert DeltaTable(str(tmp_path), {}).files() == table.files()


def test_a_stop_ends_joining_between_partitions(tmp_path: Path) -> None:
    """What is joined by then stays joined."""
    table = DeltaTable(str(tmp_path), {}, partition_by=["topic"])
    table.create(pa.schema([("topic", pa.string()), ("body", pa.int64())]))
    for batch in range(5):
        rows = pa.record_batch({"topic": ["a", "b"], "body": [1, 2]})
        table.add_files([*write_files([rows], table.location, {}, ["topic"])], "q", batch)
    asked = iter([False, True, True])
    done = table.compact(1 << 20, 0, lambda: next(asked))
    assert (done.old_files, done.new_files) == (5, 1)
    assert len(table.files()) == 6


def test_files_without_their_transaction_are_no_rows(tmp_path: Path) -> None:
    """After a crash between the files and the transaction, and after one behind it."""
    table = DeltaTable(str(tmp_path), {})
    table.create(pa.schema([("n", pa.int64())]))
    rows = [pa.record_batch({"n": pa.array([1, 2])}), pa.record_batch({"n": pa.array([3])})]
    crashed = [*write_files(rows, table.location, {}, ())]
    assert [(file.rows, dict(file.values)) for file in crashed] == [(3, {})]
    assert table.files() == []
    files = [*write_files(rows, table.location, {}, ())]
    table.add_files(files, "q", 7)
    # A repeated microbatch has files of its own.
    table.add_files(crashed, "q", 7)
    assert table.files() == files
    found = [*read_files(files, table.location, {}, table.schema())]
    assert pa.Table.from_batches(found)["n"].to_pylist() == [1, 2, 3]


def test_of_two_drivers_one_adds_the_microbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that sleeps between its look at the table and its transaction adds nothing, if
    another one has repeated the microbatch meanwhile."""
    sleeper, other = DeltaTable(str(tmp_path), {}), DeltaTable(str(tmp_path), {})
    other.create(pa.schema([("n", pa.int64())]))
    rows = pa.record_batch({"n": pa.array([1])})
    mine, theirs = ([*write_files([rows], str(tmp_path), {}, ())] for _ in range(2))
    seen = deltalake.DeltaTable(tmp_path)
    monkeypatch.setattr(sleeper, "_existing", lambda: seen)
    other.add_files(theirs, "q", 7)
    with pytest.raises(StoreError, match="Concurrent transaction"):
        sleeper.add_files(mine, "q", 7)
    assert other.files() == theirs


def test_a_file_ends_where_the_partition_changes(tmp_path: Path) -> None:
    """Sorted rows become one file for each partition; a null and odd names have folders, too."""
    batches = [
        pa.record_batch({"topic": pa.array(part, pa.string()), "n": pa.array([1] * len(part))})
        for part in ([None, "a", "a"], ["a", "x#e"], ["x#e"])
    ]
    files = [*write_files(batches, str(tmp_path), {}, ["topic"])]
    assert [(file.rows, file.values["topic"]) for file in files] == [
        (1, None),
        (3, "a"),
        (2, "x#e"),
    ]
    assert [file.path.partition("/")[0] for file in files] == [
        "topic=__HIVE_DEFAULT_PARTITION__", "topic=a", "topic=x%23e",
    ]  # fmt: skip


@in_short_soak
def test_another_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A table of other columns or partitions, and a folder of plain Parquet files."""
    write(tmp_path / "delta", frame_of(spark, [1]), 0)
    with pytest.raises(FolderError, match="has the columns timestamp, body"):
        write(tmp_path / "delta", frame_of(spark, [2]).withColumnRenamed("body", "b"), 1)
    with pytest.raises(FolderError, match="is partitioned by date, topic, not by topic"):
        DeltaTable(str(tmp_path / "delta"), {}, partition_by=["topic"]).check()
    frame_of(spark, [1]).write.parquet(str(tmp_path / "plain"))
    with pytest.raises(FolderError, match="convert_to_deltalake"):
        DeltaTable(str(tmp_path / "plain"), {}).check()
    with pytest.raises(FolderError, match="has no Delta table"):
        read_table(spark, DeltaTable(str(tmp_path / "none"), {}))


def test_locations() -> None:
    """URLs of stores stay; a path becomes absolute, also of file:///."""
    assert parse_location("s3://bucket/table/", "--output") == "s3://bucket/table"
    assert parse_location("file:///data/table", "--output") == "/data/table"
    assert parse_location("table", "--output") == str(Path("table").absolute())
    with pytest.raises(Exception, match=r"--output: hdfs://n/t .* s3://, gs://"):
        parse_location("hdfs://n/t", "--output")
