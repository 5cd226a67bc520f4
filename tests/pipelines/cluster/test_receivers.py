"""Receivers as tasks of an application in a standalone cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.wal import open_logs
from tests.pipelines.cluster.standalone import CLUSTER_SETTINGS, standalone_cluster
from tests.pipelines.drill.processes import kill_executor
from tests.pipelines.receiver.detached import stored_below
from tests.pipelines.settings import SETTINGS
from tests.pipelines.source.publishing import channel_at_rest, publish, wait_until
from tests.soak import in_soak
from trionsq.testing import OpenBroker, broker_in_thread

PART = 5000
LIMIT_S = 180.0


class Application:
    """``receive --receivers=2``, its JVM and all: one group of processes."""

    def __init__(self, master: str, folder: Path, *nsqds: str) -> None:
        self.log = folder / "application.log"
        self._offset = self.log.stat().st_size if self.log.exists() else 0
        flags = ["--topic=t", "--channel=c", "--receivers=2", "--name=s", "--exclusive"]
        flags += [f"--wal={folder}/logs", f"--master={master}"]
        flags += ["--source-option=msgTimeoutMs=3000"]
        flags += [f"--nsqd-tcp-address={nsqd}" for nsqd in nsqds]
        conf = SETTINGS | CLUSTER_SETTINGS
        flags += [f"--conf={name}={value}" for name, value in conf.items()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipelines", "receive", *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def lines(self) -> str:
        """What this application's driver has written."""
        return self.log.read_bytes()[self._offset :].decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL the driver with its JVM; executors are the workers'."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def applied(master: str, folder: Path, *nsqds: str) -> Iterator[Application]:
    """A running application, killed at the end."""
    application = Application(master, folder, *nsqds)
    try:
        yield application
    finally:
        application.kill()


def await_stored(application: Application, folder: Path, messages: int) -> None:
    """Wait until the logs have so many."""

    def are_stored() -> bool:
        assert application.process.poll() is None, application.lines[-5000:]
        return sum(view.end for view in open_logs(folder).values()) >= messages

    wait_until(are_stored, LIMIT_S)


@in_soak
def test_tasks_that_die_are_started_again_and_so_is_the_application(tmp_path: Path) -> None:
    """Killed: an executor, then the driver. Each message is stored once; SIGTERM drains."""
    with (
        broker_in_thread() as first,
        broker_in_thread() as second,
        standalone_cluster(tmp_path / "cluster") as cluster,
    ):
        nsqds: list[OpenBroker] = [first, second]
        addresses = [nsqd.tcp_address for nsqd in nsqds]
        published = 0

        def publish_part() -> int:
            nonlocal published
            for nsqd in nsqds:
                numbers = range(published, published + PART)
                publish(nsqd.http_address, "t", [b"%d" % number for number in numbers])
                published += PART
            return published

        logs = tmp_path / "logs"
        with applied(cluster.url, tmp_path, *addresses) as application:
            await_stored(application, logs, publish_part())
            assert sorted(open_logs(logs)) == ["s-0", "s-1"]
            assert kill_executor(cluster.workers[0].pid)
            wait_until(lambda: "starting it again" in application.lines, LIMIT_S)
            await_stored(application, logs, publish_part())
            application.kill()
        with applied(cluster.url, tmp_path, *addresses) as application:
            await_stored(application, logs, publish_part())
            application.process.send_signal(signal.SIGTERM)
            assert application.process.wait(LIMIT_S) == 0, application.lines[-5000:]
        for nsqd in nsqds:
            channel = channel_at_rest(nsqd.http_address, "t", "c")
            assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
    assert sorted(map(int, stored_below(logs))) == list(range(published))
