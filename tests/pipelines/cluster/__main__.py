"""``python -m tests.pipelines.cluster``: how several receivers scale, and that the driver does not.

For 1, 2 and 4 receivers: so many messages of 100 bytes wait at two nsqds; then the receivers write
their logs, and a query on a standalone cluster of two workers reads these to a noop sink. All on
this machine. CPU is that of the processes, in microseconds a message: it says more than the rate
where all share the cores. A driver's bytes are those that it and its source's process read and
write, files and sockets.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.session import spark_session
from pipelines.wal import open_logs
from tests.pipelines.cluster.standalone import CLUSTER_SETTINGS, Cluster, standalone_cluster
from tests.pipelines.drill.processes import Nsqd, command_of, descendants
from tests.pipelines.receiver.detached import ReceiverProcess
from tests.pipelines.receiver.drive import post
from tests.pipelines.settings import SETTINGS
from tests.pipelines.source.publishing import publish, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BODY: Final = bytes(100)
NSQDS: Final = 2
_POLL_S: Final = 0.5
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.pipelines.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="receivers-"))
    print(f"{options.messages:,} messages, load average {os.getloadavg()[0]:.1f} before")
    with standalone_cluster(folder / "cluster") as cluster:
        spark = spark_session("measure", cluster.url, **SETTINGS, **CLUSTER_SETTINGS)
        for count in (1, *options.receivers):
            # The first one warms the JVMs.
            line = measure(spark, cluster, folder / f"run{time.time_ns()}", count, options.messages)
            print(line, flush=True)
        spark.stop()
    shutil.rmtree(folder)
    return 0


def measure(
    spark: SparkSession, cluster: Cluster, folder: Path, receivers: int, messages: int
) -> str:
    """One run, in a new folder; its line."""
    with ExitStack() as stack:
        nsqds = [_started_nsqd(folder / f"nsqd{number}", stack) for number in range(NSQDS)]
        for nsqd in nsqds:
            publish(nsqd.http_address, "t", [BODY] * (messages // NSQDS))
            _channel(nsqd, "pause")
        processes = [_started_receiver(folder, number, nsqds, stack) for number in range(receivers)]
        for process in processes:
            process.await_line("receiving into")
        wait_until(lambda: len(open_logs(folder / "logs")) == receivers)
        query = _started_query(spark, folder)
        stack.callback(query.stop)
        wait_until(lambda: query.status["message"].startswith("Waiting for"))
        java = next(pid for pid in descendants(os.getpid()) if "pyspark-shell" in command_of(pid))
        trees: dict[str, Callable[[], Iterable[int]]] = {
            "receivers": lambda: [process.process.pid for process in processes],
            "driver": lambda: [java, *descendants(java)],
            "executors": lambda: [pid for one in cluster.workers for pid in descendants(one.pid)],
        }
        before = {name: _cpu_s(pids()) for name, pids in trees.items()}
        bytes_before = _bytes(trees["driver"]())
        began_s = time.monotonic()
        for nsqd in nsqds:
            _channel(nsqd, "unpause")
        rows = _await_rows(query, messages)
        seconds = time.monotonic() - began_s
        parts = [
            f"{name} {(_cpu_s(pids()) - before[name]) / messages * 1e6:.2f} us"
            for name, pids in trees.items()
        ]
        driver_bytes = (_bytes(trees["driver"]()) - bytes_before) / messages
        assert rows == messages, "some are there twice"
    return (
        f"{receivers} receivers: {messages / seconds:,.0f} rows/s; CPU a message: "
        f"{', '.join(parts)}; the driver's bytes a message: {driver_bytes:.1f}"
    )


def _started_nsqd(folder: Path, stack: ExitStack) -> Nsqd:
    folder.mkdir(parents=True)
    nsqd = Nsqd(folder, memory_queue=10_000_000)
    stack.callback(nsqd.kill)
    nsqd.start()
    post(nsqd.http_address, "topic/create?topic=t")
    post(nsqd.http_address, "channel/create?topic=t&channel=c")
    return nsqd


def _channel(nsqd: Nsqd, command: str) -> None:
    post(nsqd.http_address, f"channel/{command}?topic=t&channel=c")


def _started_receiver(
    folder: Path, number: int, nsqds: Sequence[Nsqd], stack: ExitStack
) -> ReceiverProcess:
    first, *others = (nsqd.tcp_address for nsqd in nsqds)
    flags = [f"--nsqd-tcp-address={address}" for address in others]
    return stack.enter_context(ReceiverProcess(folder / "logs", f"r{number}", first, *flags))


def _started_query(spark: SparkSession, folder: Path) -> StreamingQuery:
    frame = spark.readStream.format("nsq").option("walPath", f"{folder}/logs/*")
    writer = frame.option("minPartitions", "2").load().writeStream.format("noop")
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()


def _await_rows(query: StreamingQuery, messages: int) -> int:
    """Wait until the query has read so many; how many it has."""
    rows: dict[int, int] = {}
    while sum(rows.values()) < messages:
        # Seldom, because the answer costs the driver's CPU.
        time.sleep(_POLL_S)
        assert query.isActive, query.exception()
        rows |= {one.batchId: one.numInputRows for one in query.recentProgress}
    return sum(rows.values())


def _cpu_s(pids: Iterable[int]) -> float:
    """CPU time of processes, with that of their children that have ended."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks * _TICK_S


def _bytes(pids: Iterable[int]) -> int:
    """What processes have read and written by system calls."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
        total += sum(int(line.split()[1]) for line in lines[:2])
    return total


if __name__ == "__main__":
    sys.exit(main())
