"""A job whose receiver is killed starts its query again, within a bound."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from pipelines.__main__ import main
from pipelines.jobs import restarts
from pipelines.jobs.restarts import RestartBound
from tests.pipelines.drill.processes import command_of, descendants, signal_to
from tests.pipelines.jobs.running import rows_in
from tests.pipelines.source.publishing import publish, wait_until
from tests.processes import free_address
from tests.soak import in_short_soak
from trionsq.testing import OpenBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RUNNER = "python_streaming_source_runner"


def test_restarts_are_bounded_within_a_period() -> None:
    """So many restarts are allowed in a period; later ones are counted anew."""
    now = [0.0]
    bound = RestartBound(2, 10.0, lambda: now[0])
    assert [bound.allows_one() for _ in range(3)] == [True, True, False]
    now[0] = 9.9
    assert not bound.allows_one()
    now[0] = 10.0
    assert bound.allows_one()


def metric(address: str, name: str) -> float:
    """A metric of the job's query, as Prometheus gets it."""
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
    values = re.findall(rf'^nsq_query_{name}{{query="archive"}} (.+)$', text, re.MULTILINE)
    return float(values[0])


@in_short_soak
def test_a_killed_receiver_is_named_and_the_query_goes_on(
    spark: SparkSession,
    nsqd: OpenBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table has each message once after a kill; at the last allowed kill the job ends by 1.

    /metrics goes on over the query's restart, and counts it.
    """
    monkeypatch.setattr(restarts, "RestartBound", lambda: RestartBound(1))
    flags = [f"--nsqd-tcp-address={nsqd.tcp_address}", "--topic=t", "--trigger=100ms"]
    flags += [f"--checkpoint={tmp_path}/state", f"--output={tmp_path}/table"]
    flags += ["--source-option=msgTimeoutMs=3000", "--compact-every=0"]
    address = free_address()
    flags += [f"--metrics-address={address}"]
    table = tmp_path / "table"

    def kill_receiver() -> bool:
        found = [pid for pid in descendants(os.getpid()) if _RUNNER in command_of(pid)]
        for pid in found:
            signal_to(pid, signal.SIGKILL)
        return bool(found)

    def disturb() -> float:
        try:
            publish(nsqd.http_address, "t", [b"%d" % number for number in range(1000)])
            wait_until(lambda: rows_in(table) == 1000)
            wait_until(kill_receiver)
            publish(nsqd.http_address, "t", [b"%d" % number for number in range(1000, 2000)])
            wait_until(lambda: rows_in(table) == 2000)
            # A busy machine may have seen to more failures.
            wait_until(lambda: metric(address, "failures_total") >= 1)
            count = metric(address, "rows_total")
            wait_until(kill_receiver)
        except BaseException:
            # Else the job goes on for ever.
            for query in spark.streams.active:
                query.stop()
            raise
        return count

    with ThreadPoolExecutor(1) as pool:
        disturbance = pool.submit(disturb)
        code = main(["archive", *flags], spark)
        assert disturbance.result() >= 1000
    assert code == 1
    lines = capsys.readouterr().err.splitlines()
    killed = [line for line in lines if "the receiver's process was killed" in line]
    assert len(killed) == 2, lines
    assert killed[0].endswith("the query starts again")
    assert "2 times within 10 minutes" in killed[1]
    bodies = ds.dataset(table, partitioning="hive").to_table(columns=["body"])["body"].to_pylist()
    assert sorted(map(int, bodies)) == list(range(2000))
