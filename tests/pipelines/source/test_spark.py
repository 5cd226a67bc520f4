"""The source in a real Spark, with a real nsqd."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.pipelines.source.driver import begin
from tests.pipelines.source.publishing import channel_at_rest, publish, wait_until
from tests.soak import in_short_soak
from trionsq.testing import OpenBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LIMIT_S = 180


@contextmanager
def stopped(query: StreamingQuery) -> Iterator[StreamingQuery]:
    try:
        yield query
    finally:
        query.stop()


def bodies_in(spark: SparkSession, folder: Path) -> list[bytes]:
    rows = spark.read.parquet(f"{folder}/table").select("body").collect()
    return sorted(bytes(row.body) for row in rows)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def test_available_now_reads_what_there_is_and_ends(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path
) -> None:
    """Microbatches keep the limit, progress has the metrics, a second run reads new messages."""
    publish(nsqd.http_address, "t", numbered(5000))
    options = {"maxMessagesPerTrigger": "2000", "minPartitions": "2"}
    with stopped(begin(spark, nsqd.tcp_address, str(tmp_path), options, now=True)) as query:
        assert query.awaitTermination(LIMIT_S)
        progress = [one for one in query.recentProgress if one.numInputRows]
    assert all(one.numInputRows <= 2000 for one in progress)
    assert sum(one.numInputRows for one in progress) == 5000
    told: dict[str, Any] = json.loads(progress[-1].sources[0].latestOffset)
    assert (told["backlog"], told["received"], told["duplicatesDropped"]) == (0, 5000, 0)
    assert told["walBytes"] > 0
    # Spark does not wait for the reader's process.
    channel = channel_at_rest(nsqd.http_address, "t", "c")
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)

    publish(nsqd.http_address, "t", numbered(1000, first=5000))
    with stopped(begin(spark, nsqd.tcp_address, str(tmp_path), {}, now=True)) as query:
        assert query.awaitTermination(LIMIT_S)
    assert bodies_in(spark, tmp_path) == numbered(6000)
    log = spark.read.format("nsq").option("walPath", f"{tmp_path}/wal").load()
    assert log.groupBy("topic", "channel", "nsqd").count().collect() == [
        ("t", "c", nsqd.tcp_address, 6000)
    ]


@in_short_soak
def test_a_stream_is_stopped_cleanly_and_goes_on_from_its_checkpoint(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path
) -> None:
    """After stop() no message is in flight; two runs read each message once."""
    published = 0
    # Fewer are waited for longer than this takes.
    options = {"minMessagesPerTrigger": "1500", "maxTriggerDelay": "1h"}
    for _ in range(2):
        publish(nsqd.http_address, "t", numbered(2000, first=published))
        published += 2000
        with stopped(begin(spark, nsqd.tcp_address, str(tmp_path), options)) as query:
            wait_until(lambda: any(p.numInputRows for p in query.recentProgress), LIMIT_S)
            assert not any(0 < p.numInputRows < 1500 for p in query.recentProgress)
            assert query.exception() is None
        assert channel_at_rest(nsqd.http_address, "t", "c")["in_flight_count"] == 0
    with stopped(begin(spark, nsqd.tcp_address, str(tmp_path), {}, now=True)) as query:
        assert query.awaitTermination(LIMIT_S)
    assert bodies_in(spark, tmp_path) == numbered(published)


def test_a_wrong_option_is_refused_with_the_valid_ones(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path
) -> None:
    """A misspelt option and an invalid combination are errors at load()."""
    with pytest.raises(PySparkException, match=r"is maxInFlight meant(.|\n)*valid options"):
        spark.readStream.format("nsq").option("maxInFlights", "5").load()
    wrong = {"minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "4"}
    with pytest.raises(PySparkException, match="minMessagesPerTrigger is above"):
        begin(spark, nsqd.tcp_address, str(tmp_path), wrong)


def test_a_url_for_the_log_is_refused_at_load(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message is received, and no folder with the URL's name is made."""
    monkeypatch.chdir(tmp_path)
    for reader in (spark.readStream, spark.read):
        source = reader.format("nsq").option("walPath", "hdfs://name/wal")
        with pytest.raises(PySparkException, match="walPath: hdfs://name/wal: a log can't be in"):
            source.load()
    assert not list(tmp_path.iterdir())


@in_short_soak
def test_two_queries_read_a_topic_by_their_checkpoints_alone(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path
) -> None:
    """Neither channel nor walPath is set; both get all messages, and go on with their own."""
    publish(nsqd.http_address, "t", [b"first"])
    for name in ("a", "b"):
        # Both channels begin before the messages below.
        assert _read_once(spark, nsqd, tmp_path / name) == ([b"first"] if name == "a" else [])
    publish(nsqd.http_address, "t", numbered(500))
    assert _read_once(spark, nsqd, tmp_path / "a") == [*numbered(500), b"first"]
    assert _read_once(spark, nsqd, tmp_path / "b") == numbered(500)


def _read_once(spark: SparkSession, nsqd: OpenBroker, folder: Path) -> list[bytes]:
    """The table after one more run of the query, whose checkpoint is in the folder."""
    source = spark.readStream.format("nsq").option("topic", "t")
    source = source.option("nsqd.tcp.addresses", nsqd.tcp_address)
    source = source.option("checkpointLocation", f"{folder}/checkpoint")
    writer = source.load().writeStream.format("parquet").option("path", f"{folder}/table")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    with stopped(writer.start()) as query:
        assert query.awaitTermination(LIMIT_S)
    return bodies_in(spark, folder) if any((folder / "table").glob("*.parquet")) else []


@in_short_soak
def test_the_recipe_against_late_redeliveries(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path
) -> None:
    """docs/pipelines.md: messages that come twice, from two logs, are in the table once."""
    publish(nsqd.http_address, "t", [b"first"])
    for name in ("a", "b"):
        _read_once(spark, nsqd, tmp_path / name)
    publish(nsqd.http_address, "t", numbered(300))
    frames = [
        spark.readStream.format("nsq")
        .option("topic", "t")
        .option("nsqd.tcp.addresses", nsqd.tcp_address)
        .option("checkpointLocation", f"{tmp_path}/{name}/checkpoint")
        .load()
        for name in ("a", "b")
    ]
    recipe = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(once = .*?)```", recipe, re.DOTALL)
    names = {"messages": frames[0].unionAll(frames[1])}
    exec(block, names)
    writer = names["once"].writeStream.format("parquet").option("path", f"{tmp_path}/table")
    writer = writer.option("checkpointLocation", f"{tmp_path}/c").trigger(availableNow=True)
    with stopped(writer.start()) as query:
        assert query.awaitTermination(LIMIT_S)
        rows = sum(one.numInputRows for one in query.recentProgress)
    assert rows == 600
    assert bodies_in(spark, tmp_path) == numbered(300)


@in_short_soak
def test_an_nsqd_that_is_not_there_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """The query fails with the receiver's reason."""
    options = {"connectTimeout": "500ms"}
    with (
        stopped(begin(spark, "127.0.0.1:1", str(tmp_path), options)) as query,
        pytest.raises(PySparkException, match="the receiver failed"),
    ):
        query.awaitTermination(LIMIT_S)
