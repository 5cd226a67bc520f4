"""A job whose log is in S3: Spark's processes find the store by their environment alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds

from pipelines.wal import LogView
from tests.pipelines.jobs.running import rows_in
from tests.pipelines.settings import SETTINGS
from tests.pipelines.source.publishing import channel_at_rest, publish, wait_until
from tests.pipelines.wal.s3 import s3_server
from tests.soak import in_soak
from trionsq.testing import OpenBroker

URL = "s3://bucket/logs/archive"
LIMIT_S = 600.0


@in_soak
def test_an_archive_with_its_log_in_s3(nsqd: OpenBroker, tmp_path: Path) -> None:
    """The store is killed while the job runs, and comes back; each message is once in the table,
    and the secret is in no file and no line that the job writes."""
    bodies = [b"%06d" % number for number in range(6000)]
    flags = ["--topic=orders", f"--nsqd-tcp-address={nsqd.tcp_address}", "--trigger=200ms"]
    flags += ["--checkpoint=state", "--output=table", "--master=local[2]", f"--wal={URL}"]
    flags += [f"--conf={name}={value}" for name, value in SETTINGS.items()]
    flags += ["--conf=spark.log.level=WARN"]
    table = tmp_path / "table"
    with s3_server(tmp_path) as server:
        publish(nsqd.http_address, "orders", bodies[:3000])
        with (tmp_path / "said").open("wb") as said:
            job = subprocess.Popen(
                [sys.executable, "-m", "pipelines", "archive", *flags],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
                stdin=subprocess.DEVNULL,
                stderr=said,
            )
        try:
            wait_until(lambda: job.poll() is not None or rows_in(table) >= 1000, LIMIT_S)
            server.kill()
            publish(nsqd.http_address, "orders", bodies[3000:])
            server.start()
            wait_until(lambda: job.poll() is not None or rows_in(table) >= 6000, LIMIT_S)
            job.terminate()
            job.wait(LIMIT_S)
        finally:
            job.kill()
            job.wait()
        log = (tmp_path / "said").read_text()
        assert job.returncode == 0, log
        view = LogView.open(URL)
        assert view.end == 6000
    rows = ds.dataset(table, partitioning="hive").to_table(columns=["body"])
    assert sorted(rows["body"].to_pylist()) == bodies
    channel = channel_at_rest(nsqd.http_address, "orders", "archive")
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
    assert "geheim" not in log
    for path in (tmp_path / "state").rglob("*"):
        assert not path.is_file() or b"geheim" not in path.read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("s3")]
