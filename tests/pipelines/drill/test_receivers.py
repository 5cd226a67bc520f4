"""Receivers of their own, drilled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipelines.drill.receivers import RECEIVER_FAULTS, run_receivers_drill
from tests.soak import by_level, in_short_soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@in_short_soak
def test_killed_and_frozen_receivers_and_a_killed_driver_cost_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """No message is lost, and none is there twice, for each nsqd has one receiver."""
    messages = by_level(test=10_000, short=10_000, full=200_000)
    counts = run_receivers_drill(messages, tmp_path, lambda: spark)
    assert (counts["lost"], counts["duplicates"], counts["strange"]) == (0, 0, 0), counts
    assert counts["published"] >= messages
    assert [fault for fault in RECEIVER_FAULTS if not counts[fault]] == []
