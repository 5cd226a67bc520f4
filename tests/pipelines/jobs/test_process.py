"""A job as a process of its own: it starts Spark, and SIGTERM stops it in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds

from pipelines.wal import Wal
from tests.pipelines.settings import SETTINGS
from tests.pipelines.source.publishing import channel_at_rest, publish, wait_until
from tests.soak import in_short_soak
from trionsq.testing import OpenBroker

START_LIMIT_S = 600.0
STOP_LIMIT_S = 180.0


@in_short_soak
def test_sigterm_ends_a_job_in_order(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Exit code 0; each message is in the log or waits at nsqd, the table has what the job says.

    How much that is by then is Spark's pace.
    """
    bodies = [b"%06d" % number for number in range(1000)]
    publish(nsqd.http_address, "orders", bodies)
    flags = ["--topic=orders", f"--nsqd-tcp-address={nsqd.tcp_address}", "--trigger=200ms"]
    flags += ["--checkpoint=state", "--output=table", "--master=local[1]"]
    flags += [f"--conf={name}={value}" for name, value in SETTINGS.items()]
    job = subprocess.Popen(
        [sys.executable, "-m", "pipelines", "archive", *flags],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(
            lambda: job.poll() is not None or any(tmp_path.glob("table/date=*/*/*.parquet")),
            START_LIMIT_S,
        )
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate(timeout=STOP_LIMIT_S)
    finally:
        job.kill()
        job.communicate()
    assert job.returncode == 0, said
    rows = ds.dataset(tmp_path / "table", partitioning="hive").count_rows()
    assert rows > 0
    assert f"archive: {rows:,} rows in " in said.splitlines()[-1]
    channel = channel_at_rest(nsqd.http_address, "orders", "archive")
    assert channel["in_flight_count"] == 0
    with Wal.open(tmp_path / "state" / "wal") as wal:
        assert rows <= wal.end
        assert wal.end + channel["depth"] + channel["deferred_count"] == len(bodies)
    assert not any(tmp_path.glob("table/_staging/*/*"))
