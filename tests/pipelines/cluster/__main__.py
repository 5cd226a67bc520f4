"""``python -m tests.pipelines.cluster``: how receivers and readers scale, and the driver does not.

With 1, 2 and 4 receivers so many messages of 100 bytes wait at two nsqds; then the receivers write
their logs, and a query on a standalone cluster of two workers reads these to a noop sink. With 1, 2
and 4 readers the messages are in the log of an nsqd, and so many tasks of the query read them from
there (mode=log). All on this machine. CPU is that of the processes, in microseconds a message: it
says more than the rate where all share the cores. A driver's bytes are those that it and its
source's process read and write, files and sockets.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
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
from tests.pipelines.topiclog.reading import count_of

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
    parser.add_argument("--receivers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--readers", type=int, nargs="*", default=[1, 2, 4])
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))
    runs = [
        (name, prepare, count)
        for name, prepare, counts in (
            ("receivers", _receivers, options.receivers),
            ("readers", _readers, options.readers),
        )
        # The first one warms the JVMs.
        for count in (*counts[:1], *counts)
    ]
    with standalone_cluster(folder / "cluster") as cluster:
        spark = spark_session("measure", cluster.url, **SETTINGS, **CLUSTER_SETTINGS)
        for name, prepare, count in runs:
            place = folder / f"run{time.time_ns()}"
            load = os.getloadavg()[0]
            with prepare(spark, place, count, options.messages) as ready:
                figures = measure(ready, cluster, options.messages)
            print(f"{count} {name}: {figures}; load average {load:.1f} before", flush=True)
        spark.stop()
    shutil.rmtree(folder)
    return 0


@dataclass(frozen=True)
class Ready:
    """A query that waits for messages.

    Attributes:
        query: it has read nothing that counts.
        pids: of the processes that belong to neither the driver nor the executors, by name.
        let_go: what makes it read them all.
    """

    query: StreamingQuery
    pids: Mapping[str, Sequence[int]]
    let_go: Callable[[], None]


def measure(ready: Ready, cluster: Cluster, messages: int) -> str:
    """From `Ready.let_go` to the last row."""
    java = next(pid for pid in descendants(os.getpid()) if "pyspark-shell" in command_of(pid))
    trees: dict[str, Callable[[], Iterable[int]]] = {
        name: partial(iter, pids) for name, pids in ready.pids.items()
    }
    trees["driver"] = lambda: [java, *descendants(java)]
    trees["executors"] = lambda: [pid for one in cluster.workers for pid in descendants(one.pid)]
    before = {name: _cpu_s(pids()) for name, pids in trees.items()}
    bytes_before = _bytes(trees["driver"]())
    began_s = time.monotonic()
    ready.let_go()
    rows = _await_rows(ready.query, messages)
    seconds = time.monotonic() - began_s
    parts = [
        f"{name} {(_cpu_s(pids()) - before[name]) / messages * 1e6:.2f} us"
        for name, pids in trees.items()
    ]
    driver_bytes = (_bytes(trees["driver"]()) - bytes_before) / messages
    assert rows == messages, "some are there twice"
    return (
        f"{messages / seconds:,.0f} rows/s; CPU a message: {', '.join(parts)}; the driver's bytes "
        f"a message: {driver_bytes:.1f}"
    )


@contextmanager
def _receivers(spark: SparkSession, folder: Path, count: int, messages: int) -> Iterator[Ready]:
    """Receivers of paused channels, and a query of their logs."""
    with ExitStack() as stack:
        nsqds = [_started_nsqd(stack, folder / f"nsqd{number}") for number in range(NSQDS)]
        for nsqd in nsqds:
            post(nsqd.http_address, "channel/create?topic=t&channel=c")
            publish(nsqd.http_address, "t", [BODY] * (messages // NSQDS))
            _channel(nsqd, "pause")
        processes = [_started_receiver(folder, number, nsqds, stack) for number in range(count)]
        for process in processes:
            process.await_line("receiving into")
        wait_until(lambda: len(open_logs(folder / "logs")) == count)
        options = {"walPath": f"{folder}/logs/*", "minPartitions": "2"}
        query = stack.enter_context(_waiting_query(spark, folder, options))
        pids = {
            "nsqds": [nsqd.pid for nsqd in nsqds],
            "receivers": [process.process.pid for process in processes],
        }

        def let_go() -> None:
            for nsqd in nsqds:
                _channel(nsqd, "unpause")

        yield Ready(query, pids, let_go)


@contextmanager
def _readers(spark: SparkSession, folder: Path, count: int, messages: int) -> Iterator[Ready]:
    """A query with so many tasks, whose microbatch waits for the last message of a log."""
    with ExitStack() as stack:
        nsqd = _started_nsqd(stack, folder / "nsqd", "--storage=log")
        options = {
            "mode": "log",
            "topic": "t",
            "nsqd.http.addresses": nsqd.http_address,
            "startingOffsets": "earliest",
            "minMessagesPerTrigger": str(messages),
            "minPartitions": str(count),
            "maxRecordsPerPartition": str(messages),
        }
        query = stack.enter_context(_waiting_query(spark, folder, options))
        publish(nsqd.http_address, "t", [BODY] * (messages - 1))
        wait_until(lambda: count_of(nsqd.http_address) == messages - 1)
        last = partial(publish, nsqd.http_address, "t", [BODY])
        yield Ready(query, {"nsqd": [nsqd.pid]}, last)


@contextmanager
def _waiting_query(
    spark: SparkSession, folder: Path, options: Mapping[str, str]
) -> Iterator[StreamingQuery]:
    writer = spark.readStream.format("nsq").options(**options).load().writeStream.format("noop")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    try:
        wait_until(lambda: query.status["message"].startswith("Waiting for"))
        yield query
    finally:
        query.stop()


def _started_nsqd(stack: ExitStack, folder: Path, *flags: str) -> Nsqd:
    folder.mkdir(parents=True)
    nsqd = Nsqd(folder, *flags, memory_queue=10_000_000)
    stack.callback(nsqd.kill)
    nsqd.start()
    post(nsqd.http_address, "topic/create?topic=t")
    return nsqd


def _channel(nsqd: Nsqd, command: str) -> None:
    post(nsqd.http_address, f"channel/{command}?topic=t&channel=c")


def _started_receiver(
    folder: Path, number: int, nsqds: Sequence[Nsqd], stack: ExitStack
) -> ReceiverProcess:
    first, *others = (nsqd.tcp_address for nsqd in nsqds)
    flags = [f"--nsqd-tcp-address={address}" for address in others]
    return stack.enter_context(ReceiverProcess(folder / "logs", f"r{number}", first, *flags))


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
