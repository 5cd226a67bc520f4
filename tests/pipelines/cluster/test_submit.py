"""Jobs by spark-submit on a standalone cluster, with the commands of docs/pipelines.md."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds

import pipelines.__main__ as job
from pipelines.wal import open_logs
from tests.pipelines.cluster.standalone import (
    CLUSTER_SETTINGS,
    standalone_cluster,
    started,
)
from tests.pipelines.drill.processes import command_of, descendants
from tests.pipelines.receiver.detached import stored_below
from tests.pipelines.settings import SETTINGS
from tests.pipelines.source.publishing import channel_at_rest, publish, wait_until
from tests.soak import in_soak
from trionsq.testing import OpenBroker

MESSAGES = 5000
LIMIT_S = 300.0


@contextmanager
def submitted(master: str, folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A job; what it says is in ``folder/log``."""
    command = ["spark-submit", "--master", master]
    for name, value in (SETTINGS | CLUSTER_SETTINGS).items():
        command += ["--conf", f"{name}={value}"]
    environment = {"PYSPARK_PYTHON": sys.executable}
    with started(folder, [*command, job.__file__, *words], environment) as process:
        yield process


def said_in(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")[-8000:]


@in_soak
def test_receivers_and_an_archive_of_their_logs(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Two receivers as tasks end with spark-submit; a second job makes a table of their logs."""
    bodies = [b"%06d" % number for number in range(MESSAGES)]
    logs = tmp_path / "logs"
    with standalone_cluster(tmp_path / "cluster") as cluster:
        receive = ["receive", "--receivers=2", "--topic=t", "--channel=c", "--name=s"]
        receive += [f"--nsqd-tcp-address={nsqd.tcp_address}", f"--wal={logs}"]
        place = tmp_path / "receive"
        with submitted(cluster.url, place, *receive) as process:
            publish(nsqd.http_address, "t", bodies)

            def are_stored() -> bool:
                assert process.poll() is None, said_in(place)
                return sum(view.end for view in open_logs(logs).values()) >= MESSAGES

            wait_until(are_stored, LIMIT_S)
            started_by_it = [*descendants(process.pid)]
            assert any("__main__.py receive" in command_of(pid) for pid in started_by_it)
            process.terminate()
            process.wait(LIMIT_S)
            wait_until(lambda: not any(map(command_of, started_by_it)), LIMIT_S)
        channel = channel_at_rest(nsqd.http_address, "t", "c")
        assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
        assert sorted(map(int, stored_below(logs))) == list(range(MESSAGES))

        archive = ["archive", f"--wal={logs}/*", "--source-option=startingOffsets=earliest"]
        archive += ["--once", f"--checkpoint={tmp_path}/state", f"--output={tmp_path}/table"]
        place = tmp_path / "archive"
        with submitted(cluster.url, place, *archive) as process:
            assert process.wait(LIMIT_S) == 0, said_in(place)
    table = ds.dataset(tmp_path / "table", partitioning="hive").to_table(["body"])
    assert sorted(table["body"].to_pylist()) == bodies
