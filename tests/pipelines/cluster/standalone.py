"""Spark's standalone cluster on this machine: a master and workers, each a process of its own.

They are started as docs/pipelines.md describes, by pip's ``spark-class``, with the Java of
`pipelines.java`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipelines.java import java_home
from tests.processes import free_address, split_address

__all__ = [
    "CLUSTER_SETTINGS",
    "Cluster",
    "await_listener",
    "standalone_cluster",
    "started",
]

START_LIMIT_S: Final = 120.0
WORKERS: Final = 2
_DAEMON: Final = {
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

CLUSTER_SETTINGS: Final = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Or the first batch runs where the first executor is.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.cores.max": str(WORKERS),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""For a session: an executor of one core on each worker."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        url: the session's master.
        workers: each the leader of its process group, in which its executors are, too.
    """

    url: str
    workers: tuple[subprocess.Popen[bytes], ...]

    def kill_worker(self, number: int) -> None:
        """SIGKILL a worker with its executors, as if its machine were gone."""
        os.killpg(self.workers[number].pid, signal.SIGKILL)
        self.workers[number].wait()


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """A master and two workers of one core; logs are in the folder. All are killed at the end."""
    address = free_address()
    host, port = split_address(address)
    url = f"spark://{address}"
    with ExitStack() as stack:
        where = ["--host", host, "--webui-port", "0"]
        master = ["org.apache.spark.deploy.master.Master", *where, "--port", str(port)]
        process = stack.enter_context(started(folder / "master", ["spark-class", *master], _DAEMON))
        await_listener(address, process, folder / "master" / "log")
        worker = ["spark-class", "org.apache.spark.deploy.worker.Worker", *where, "--cores", "1"]
        workers = tuple(
            stack.enter_context(
                started(
                    folder / f"worker{number}",
                    [*worker, "--memory", "1g", "--work-dir", f"{folder}/worker{number}", url],
                    _DAEMON,
                )
            )
            for number in range(WORKERS)
        )
        yield Cluster(url, workers)


@contextmanager
def started(
    folder: Path, command: Sequence[str], more_environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A program of pip's Spark, in a process group of its own; what it says is in ``folder/log``.

    All of the group is killed at the end.
    """
    folder.mkdir(parents=True)
    program, *arguments = command
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [Path(sys.executable).parent / program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**_environment(), **more_environment},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment() -> dict[str, str]:
    more = {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_HOSTNAME": "localhost"}
    # What the tests' own session has set would lead spark-class to think it is a part of it.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    # spark-class finds the pyspark of the first python3.
    path = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', os.defpath)}"
    return own | more | {"PATH": path}


def await_listener(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until somebody listens there. AssertionError with the log: the process has ended."""
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            socket.create_connection(split_address(address), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"it does not listen:\n{log.read_text()[-3000:]}")
