"""``mode=log`` in a real Spark, with real nsqds."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.pipelines.source.publishing import publish, wait_until
from tests.pipelines.topiclog.reading import (
    LOG,
    count_of,
    depth_of,
    numbered,
    options,
    post,
    published,
)
from tests.processes import free_address, nsqd_command
from tests.soak import by_level, in_short_soak
from trionsq.testing import OpenBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LIMIT_S = 180


@contextmanager
def running(
    spark: SparkSession, folder: Path, values: dict[str, str], *, now: bool = False
) -> Iterator[StreamingQuery]:
    """A stream to Parquet, stopped at the end."""
    frame = spark.readStream.format("nsq").options(**values).load()
    writer = frame.writeStream.format("parquet").option("path", f"{folder}/table")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    query = (writer.trigger(availableNow=True) if now else writer).start()
    try:
        yield query
    finally:
        query.stop()


def bodies_in(spark: SparkSession, folder: Path) -> list[bytes]:
    rows = spark.read.parquet(f"{folder}/table").select("body").collect()
    return sorted(bytes(row.body) for row in rows)


@pytest.mark.nsqd(**LOG)
def test_a_stream_and_a_batch_read_what_was_published(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path
) -> None:
    """Limits, metrics and the channel's depth are kept; a second run goes on; history is there."""
    published(nsqd.http_address, numbered(5000))
    values = options(nsqd.http_address, channel="c", maxMessagesPerTrigger="2000")
    with running(spark, tmp_path, values | {"minPartitions": "2"}, now=True) as query:
        assert query.awaitTermination(LIMIT_S)
        counts = [one.numInputRows for one in query.recentProgress if one.numInputRows]
        told = json.loads(query.recentProgress[-1].sources[0].latestOffset)
    assert counts == [2000, 2000, 1000]
    assert (told["backlog"], told["lagSeconds"]) == (0, 0)
    assert depth_of(nsqd.http_address) == 0
    published(nsqd.http_address, numbered(1000, first=5000))
    with running(spark, tmp_path, values, now=True) as query:
        assert query.awaitTermination(LIMIT_S)
    assert bodies_in(spark, tmp_path) == numbered(6000)

    history = spark.read.format("nsq").options(**options(nsqd.http_address)).load()
    assert history.groupBy("topic", "channel", "nsqd", "attempts").count().collect() == [
        ("t", "", nsqd.http_address, 1, 6000)
    ]


def test_a_topic_without_log_fails_the_query(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path
) -> None:
    """The error names the mode that can read it; a wrong option is one at load()."""
    post(nsqd.http_address, "/topic/create", topic="t")
    with (
        running(spark, tmp_path, options(nsqd.http_address)) as query,
        pytest.raises(PySparkException, match="mode=receiver"),
    ):
        query.awaitTermination(LIMIT_S)
    wrong = options(nsqd.http_address, startingTimestam="5")
    source = spark.read.format("nsq").options(**wrong)
    with pytest.raises(PySparkException, match="is startingTimestamp meant"):
        source.load()


@in_short_soak
def test_nsqd_is_killed_again_and_again(spark: SparkSession, tmp_path: Path) -> None:
    """Of what nsqd has accepted the table has each message once: none lost, none twice."""
    kills = by_level(test=1, short=2, full=20)
    part = 3000
    http = free_address()
    command = [*nsqd_command(), f"--data-path={tmp_path}/nsqd", "--tcp-address=127.0.0.1:0"]
    command += [f"--http-address={http}", "--storage=log", "--durability=always"]
    (tmp_path / "nsqd").mkdir()
    values = options(http, channel="c", maxMessagesPerTrigger="500", maxRecordsPerPartition="100")
    accepted = 0
    rows: dict[int, int] = {}

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_until(lambda: is_up(http))
        return process

    process = start()
    try:
        publish(http, "t", numbered(part))
        accepted += part
        with running(spark, tmp_path, values) as query:
            for kill in range(kills):
                # Within a microbatch or between two of them, as it happens.
                wait_until(lambda kill=kill: count_rows(query, rows) > kill * part)  # type: ignore[misc]
                process.kill()
                process.wait()
                process = start()
                publish(http, "t", numbered(part, first=accepted))
                accepted += part
            wait_until(lambda: count_rows(query, rows) >= accepted)
            assert query.exception() is None
        wait_until(lambda: count_of(http) == accepted)
    finally:
        process.kill()
        process.wait()
    doubled = [body for body, count in Counter(bodies_in(spark, tmp_path)).items() if count > 1]
    assert not doubled
    assert bodies_in(spark, tmp_path) == numbered(accepted)


def is_up(http_address: str) -> bool:
    try:
        count_of(http_address)
    except OSError:
        return False
    return True


def count_rows(query: StreamingQuery, rows: dict[int, int]) -> int:
    """All rows so far; ``rows`` keeps those of each microbatch, which Spark forgets."""
    assert query.exception() is None, query.exception()
    rows |= {one.batchId: one.numInputRows for one in query.recentProgress if one.numInputRows}
    return sum(rows.values())
