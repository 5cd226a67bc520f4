"""The sink as Spark uses it: batch, stream, staged, and what it refuses before any task runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipelines.sink.rows import taken
from tests.soak import in_short_soak, smoke
from trionsq.testing import OpenBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY_LIMIT_S = 240


def test_a_batch_write_publishes_every_row(spark: SparkSession, nsqd: OpenBroker) -> None:
    """From several tasks, to the topics of the column."""
    rows = spark.range(20_000, numPartitions=3).selectExpr(
        "cast(id AS STRING) AS body", "concat('t', id % 2) AS topic"
    )
    rows.write.format("nsq").mode("append").option("nsqd.tcp.addresses", nsqd.tcp_address).save()
    for parity in range(2):
        found = taken(nsqd.tcp_address, 10_000, f"t{parity}")
        assert Counter(found) == Counter(b"%d" % n for n in range(parity, 20_000, 2))


def write(rows: DataFrame, save_mode: str = "append", **options: str) -> None:
    """A batch write to nobody."""
    given = {"nsqd.tcp.addresses": "127.0.0.1:1", "topic": "t"} | options
    rows.write.format("nsq").mode(save_mode).options(**given).save()


def test_what_is_wrong_is_told_before_any_task(spark: SparkSession, tmp_path: Path) -> None:
    """Columns, options and modes, with what is valid."""
    from pyspark.errors import AnalysisException

    right, wrong = spark.sql("SELECT 'a' AS body"), spark.sql("SELECT 1 AS body, 2 AS bodi")
    staged = {"mode": "staged", "stagePath": str(tmp_path)}
    with pytest.raises(AnalysisException, match="body is int, bodi is unknown; valid are body"):
        write(wrong)
    with pytest.raises(AnalysisException, match=r"there is no option 'topik'.*; is topic meant"):
        write(right, topik="t")
    with pytest.raises(AnalysisException, match="a topic can't be overwritten"):
        write(right, save_mode="overwrite")
    with pytest.raises(AnalysisException, match="mode=staged is for writeStream"):
        write(right, **staged)


def run_stream(rows: DataFrame, checkpoint: Path, **options: str) -> Any:
    """All that there is, then the end."""
    query = (
        rows.writeStream.format("nsq")
        .queryName("to nsq")
        .outputMode("append")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(QUERY_LIMIT_S)
    finally:
        query.stop()
    return query


@pytest.mark.parametrize("mode", smoke({"direct": "direct", "staged": "staged"}, "staged"))
def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path, mode: str
) -> None:
    """Three batches, one for each file; a second run publishes only what is new. The query may
    have a name."""
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    files.mkdir()
    options = {"nsqd.tcp.addresses": nsqd.tcp_address, "topic": "t", "mode": mode}
    if mode == "staged":
        options["stagePath"] = str(tmp_path / "stage")

    def put(number: int) -> None:
        lines = "\n".join(str(n) for n in range(100 * number, 100 * number + 100))
        (files / f"{number}.txt").write_text(lines)

    source = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(files))
    rows = source.selectExpr("value AS body")
    put(0)
    put(1)
    run_stream(rows, checkpoint, **options)
    put(2)
    run_stream(rows, checkpoint, **options)
    assert Counter(taken(nsqd.tcp_address, 300)) == Counter(b"%d" % n for n in range(300))
    if mode == "staged":
        left = sorted(path.name for path in (tmp_path / "stage").iterdir())
        assert left == ["LOCK", "PUBLISHED.json"]


@in_short_soak
def test_a_staged_folder_of_another_query_is_refused(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path
) -> None:
    """A new checkpoint counts its batches from 0 again: its rows would be taken for old ones."""
    from pyspark.errors import StreamingQueryException

    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "0.txt").write_text("a\nb\n")
    rows = spark.readStream.format("text").load(str(tmp_path / "files")).selectExpr("value AS body")
    options = {"nsqd.tcp.addresses": nsqd.tcp_address, "topic": "t", "mode": "staged"}
    options["stagePath"] = str(tmp_path / "stage")
    run_stream(rows, tmp_path / "one", **options)
    with pytest.raises(StreamingQueryException, match="belongs to query"):
        run_stream(rows, tmp_path / "other", **options)
    assert sorted(taken(nsqd.tcp_address, 2)) == [b"a", b"b"]
