"""The drill, short, in ``local[2,3]``; `python -m tests.pipelines.drill` is the long one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipelines.drill.__main__ import problems_of
from tests.pipelines.drill.publisher import Publisher, body_of
from tests.pipelines.drill.run import Plan, judged, run_drill
from tests.soak import in_short_soak, in_soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 20_000


@in_soak
def test_nothing_is_lost_or_doubled_whatever_breaks(spark: SparkSession, tmp_path: Path) -> None:
    """No message is lost after kills of the driver and of Python workers, and a full disk."""
    counts = run_drill(Plan(MESSAGES, 1000, is_standalone=False), tmp_path, lambda: spark)
    assert problems_of(counts) == [], counts
    assert counts["published"] >= MESSAGES
    assert counts["drivers_killed"] == 3


@in_short_soak
def test_the_drill_sees_what_is_lost_doubled_or_strange(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The drill reports lost, duplicated and unknown messages, and faults that did not occur."""
    rows = [("t", "n:1", "1", body_of(0)), ("t", "n:1", "2", body_of(0)), ("t", "n:1", "3", b"?")]
    frame = spark.createDataFrame(rows, "topic string, nsqd string, id string, body binary")
    frame.write.parquet(f"{tmp_path}/table")
    publisher = Publisher("t", "127.0.0.1:1")
    publisher.confirmed = {0, 1, 2}
    counts = judged(spark, tmp_path, publisher)
    assert (counts["lost"], counts["duplicates"], counts["strange"]) == (2, 1, 1)
    assert "nsqd_restarted never occurred" in problems_of(Counter())
