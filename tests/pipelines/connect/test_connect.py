"""``format("nsq")`` by Spark Connect: a real server, and a program with nothing but its session."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import pytest

from pipelines.scripts import worker_python
from tests.pipelines.cluster.standalone import await_listener, started
from tests.pipelines.settings import MASTER, SETTINGS
from tests.pipelines.topiclog.reading import LOG, post
from tests.processes import free_address, split_address
from tests.soak import in_soak
from trionsq.testing import OpenBroker

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = ROOT / "build" / "connect"
SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
MESSAGES = 5000
PIP_LIMIT_S = 600
LIMIT_S = 900


@pytest.fixture(scope="module")
def packages() -> Path:
    """What ``pyspark[connect]`` needs besides; apart, for the other tests are to do without.

    The first run needs a package registry.
    """
    if not PACKAGES.exists():
        PACKAGES.parent.mkdir(exist_ok=True)
        draft = mkdtemp(prefix="connect-", dir=PACKAGES.parent)
        wanted = [one.partition(";")[0] for one in requires("pyspark") or () if _is_of_connect(one)]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", draft, *wanted]
        subprocess.run(command, check=True, timeout=PIP_LIMIT_S)
        Path(draft).rename(PACKAGES)
    return PACKAGES


def _is_of_connect(requirement: str) -> bool:
    is_here = requirement.startswith("pyarrow")
    return not is_here and re.search(r"""extra == ['"]connect['"]""", requirement) is not None


@contextmanager
def connect_server(folder: Path, packages: Path) -> Iterator[str]:
    """A server with the tests' Spark; its URL."""
    address = free_address()
    host, port = split_address(address)
    settings = SETTINGS | {
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    command = ["spark-submit", "--master", MASTER, "--class", SERVER]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {
        "PYTHONPATH": str(packages),
        "PYSPARK_PYTHON": worker_python(),
    }
    with started(folder, command, environment) as process:
        await_listener(address, process, folder / "log")
        yield f"sc://{address}"


@in_soak
@pytest.mark.nsqd(**LOG)
def test_both_sources_and_the_sink_work_by_connect(
    nsqd: OpenBroker, packages: Path, tmp_path: Path
) -> None:
    """Batch and stream, foreachBatch, metrics, errors; our own session says what it is not for."""
    post(nsqd.http_address, "/topic/create", topic="t")
    # A channel gets what is published after it was made.
    post(nsqd.http_address, "/channel/create", topic="t", channel="received")
    with connect_server(tmp_path / "server", packages) as url:
        command = [sys.executable, "-m", "tests.pipelines.connect.program", url]
        command += [nsqd.tcp_address, nsqd.http_address, str(tmp_path), str(MESSAGES)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        server_log = (tmp_path / "server" / "log").read_text(errors="replace")
    assert done.returncode == 0, f"{done.stderr[-5000:]}\n{server_log[-5000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kind"].startswith("pyspark.sql.connect")
    assert found["history"] == found["batches"] == MESSAGES
    assert found["log"] == found["receiver"] == list(range(MESSAGES))
    assert found["metrics"]
    assert "is startingTimestamp meant" in found["wrong option"]
    assert "SparkSession.builder.remote" in found["spark_session"]
