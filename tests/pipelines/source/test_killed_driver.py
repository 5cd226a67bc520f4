"""The driver's JVM is killed in mid-stream; tests/pipelines/drill kills the whole driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipelines.source.driver import begin
from tests.pipelines.source.publishing import channel_at_rest, publish, wait_until
from tests.soak import in_soak
from trionsq.testing import OpenBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 30_000
LIMIT_S = 180


@contextmanager
def running_driver(nsqd_address: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The user's program, its JVM and the reader's process, killed together at the end."""
    program = "tests.pipelines.source.driver"
    with (folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", program, nsqd_address, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield driver
    finally:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def children_of(pid: int) -> list[int]:
    """The processes with this parent."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in found.split()]


def batches_in(folder: Path) -> int:
    """The number of complete microbatches in the table."""
    names = [path.name for path in folder.glob("table/_spark_metadata/*")]
    return max((int(name.split(".")[0]) + 1 for name in names if name[0].isdigit()), default=0)


def run_and_kill(nsqd: OpenBroker, folder: Path) -> None:
    """Let it finish two microbatches, then SIGKILL its JVM alone."""
    with running_driver(nsqd.tcp_address, folder) as driver:

        def has_gone_on() -> bool:
            assert driver.poll() is None, (folder / "driver.log").read_text(encoding="utf-8")[
                -4000:
            ]
            return batches_in(folder) >= 2

        wait_until(has_gone_on, LIMIT_S)
        # The reader's process lives on: it has to see that, and let go of the log.
        for child in children_of(driver.pid):
            os.kill(child, signal.SIGKILL)
        driver.wait(LIMIT_S)
        channel_at_rest(nsqd.http_address, "t", "c")


@in_soak
def test_a_killed_jvm_loses_nothing_and_doubles_nothing(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path
) -> None:
    """The table has each message once, by nsqd and id, although they arrive meanwhile."""
    bodies = [b"%06d" % number for number in range(MESSAGES)]
    publish(nsqd.http_address, "t", bodies[: MESSAGES // 2])
    more = bodies[MESSAGES // 2 :]
    publisher = threading.Thread(target=publish, args=(nsqd.http_address, "t", more))
    publisher.start()
    run_and_kill(nsqd, tmp_path)
    publisher.join()
    query = begin(spark, nsqd.tcp_address, str(tmp_path), {}, now=True)
    try:
        assert query.awaitTermination(LIMIT_S)
    finally:
        query.stop()
    table = spark.read.parquet(f"{tmp_path}/table")
    found = sorted(bytes(row.body) for row in table.select("body").collect())
    assert found == bodies
    assert table.select("nsqd", "id").distinct().count() == MESSAGES
