"""A stream in a standalone cluster: executors of two workers read the log by its path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipelines.cluster.standalone import standalone_cluster
from tests.pipelines.drill.processes import Driver, batches_in, rows_in
from tests.pipelines.source.publishing import publish
from tests.soak import in_soak
from trionsq.testing import OpenBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 20_000
BATCH = 1000


@in_soak
def test_a_worker_that_dies_with_its_executor_costs_no_row(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path
) -> None:
    """Both executors take part; after the loss of one the other reads the rest, each row once."""
    bodies = [b"%06d" % number for number in range(MESSAGES)]
    publish(nsqd.http_address, "t", bodies[: MESSAGES // 2])
    with (
        standalone_cluster(tmp_path / "cluster") as cluster,
        Driver(cluster.url, nsqd.tcp_address, tmp_path, BATCH) as driver,
    ):
        driver.await_that(lambda: batches_in(tmp_path) >= 2)
        executors = {path.name for path in tmp_path.glob("cluster/worker*/app-*/*")}
        assert executors == {"0", "1"}
        cluster.kill_worker(0)
        publish(nsqd.http_address, "t", bodies[MESSAGES // 2 :])
        driver.await_that(lambda: rows_in(tmp_path) >= MESSAGES)
    table = spark.read.parquet(f"{tmp_path}/table")
    assert sorted(bytes(row.body) for row in table.select("body").collect()) == bodies
    assert table.select("nsqd", "id").distinct().count() == MESSAGES
