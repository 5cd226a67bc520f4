"""A job from start to end: signals, the session, a query watched and stopped in order."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final

from pipelines.errors import ReceiverKilledError, SetupError
from pipelines.jobs.arguments import local_folder, pairs
from pipelines.jobs.restarts import Restarts, was_receiver_killed
from pipelines.jobs.table import Table
from pipelines.jobs.terminal import Progress, print_line
from pipelines.session import is_submitted, spark_session
from trionsq.hostport import format_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "BATCH_LIMIT_S",
    "Job",
    "persisted",
    "publish_rows",
    "read_messages",
    "run_query",
    "stop_on_signals",
]

BATCH_LIMIT_S: Final = 30.0
"""How long a stop waits for the current microbatch; after that, the next start repeats it."""

_POLL_S: Final = 0.25
# A failure is printed in one line; --conf=spark.log.level=WARN shows Spark's log as well.
_QUIET: Final = {"spark.log.level": "FATAL"}
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class Job:
    """A job's flags, its Spark session (started at first use), and its stop event.

    Attributes:
        name: as on the command line.
        stopping: set by SIGTERM and SIGINT, and when spark-submit is gone.
        is_orphaned: whether spark-submit, with its Java, is gone.
    """

    def __init__(
        self, name: str, arguments: argparse.Namespace, session: SparkSession | None = None
    ) -> None:
        """*session*: a running one, which `close` leaves running."""
        self.name = name
        self.arguments = arguments
        self.stopping = threading.Event()
        self.is_orphaned = False
        # spark-submit's Java has started this process.
        self._parent = os.getppid() if is_submitted() else None
        self._session = session
        self._owns_session = session is None

    def spark(self, settings: Mapping[str, str] | None = None) -> SparkSession:
        """The session; the first call starts it, with these settings unless --conf has others.

        Raises SetupError, UsageError.
        """
        if self._session is None:
            conf = pairs("--conf", self.arguments.conf)
            # Spark takes over SIGINT when it starts.
            with stop_on_signals(self.stopping):
                self._session = spark_session(
                    f"nsq {self.name}",
                    self.arguments.master,
                    **(_QUIET | dict(settings or {}) | conf),
                )
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)
        return self._session

    def wait(self, seconds: float) -> bool:
        """Wait for so long, or until the job is to stop; whether it is."""
        if self._parent is not None and os.getppid() != self._parent:
            self.is_orphaned = True
            self.stopping.set()
        return self.stopping.wait(seconds)

    def checkpoint(self) -> Path:
        """The folder of --checkpoint. Raises FolderError."""
        return local_folder(self.arguments.checkpoint, "--checkpoint")

    def close(self) -> None:
        """Stop Spark if this job started it."""
        if self._session is not None and self._owns_session and not self.is_orphaned:
            # A SIGTERM to the process group may have ended Java already.
            with contextlib.suppress(Exception):
                self._session.stop()
            self._session = None


@contextlib.contextmanager
def stop_on_signals(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set the event; a second one ends the process. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: object) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL)

    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# Frames


def read_messages(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The stream of messages."""
    return spark.readStream.format("nsq").options(**options).load()


@contextlib.contextmanager
def persisted(frame: DataFrame) -> Iterator[None]:
    """Compute a microbatch once for several uses."""
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


def publish_rows(frame: DataFrame, options: Mapping[str, str]) -> None:
    """Publish the rows of a microbatch."""
    frame.write.format("nsq").mode("append").options(**options).save()


# A query


def run_query(
    job: Job,
    writer: DataStreamWriter,
    *,
    table: Table | None = None,
    on_poll: Callable[[], None] | None = None,
) -> None:
    """Start a query and watch it until it ends (--once), fails, or a signal comes.

    After a failure that passes (`Restarts`) the query is started again.

    Args:
        job: its flags have the checkpoint and the trigger.
        writer: with a sink.
        table: the table that the query writes to.
        on_poll: called while the query runs, four times a second, and once after its end.

    Raises:
        StreamingQueryException: the query failed.
        ReceiverKilledError: the process of its receiver was killed too often.
        SetupError: --metrics-address can't be listened on.
    """
    arguments = job.arguments
    writer = writer.option("checkpointLocation", str(job.checkpoint() / "spark"))
    if arguments.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(arguments.trigger * 1000)} milliseconds")
    if arguments.metrics_address is not None:
        # The label of the metrics, in place of the query's id.
        writer = writer.queryName(job.name)
    progress = Progress(job.name)
    restarts = Restarts(job.name, _folders_of(job), job.stopping)
    try:
        with _metrics_served(job):
            while not job.stopping.is_set():
                failure = _run_once(job, writer, progress, table, on_poll)
                if failure is None:
                    break
                restarts.wait(failure, progress.batches)
                # Started again, the query has the same id.
                table = None
    finally:
        progress.finish()
    if on_poll is not None:
        on_poll()


@contextlib.contextmanager
def _metrics_served(job: Job) -> Iterator[None]:
    """Serve /metrics at --metrics-address, if it is given. Raises SetupError."""
    if job.arguments.metrics_address is None:
        yield
        return
    from pipelines.metrics import serve_metrics

    host, port = job.arguments.metrics_address
    with contextlib.ExitStack() as stack:
        try:
            port = stack.enter_context(serve_metrics(job.spark(), port, host))
        except OSError as error:
            address = format_address(host, port)
            raise SetupError(f"--metrics-address: {address}: {error.strerror}") from error
        print_line(job.name, f"metrics: http://{format_address(host, port)}/metrics")
        yield


def _run_once(
    job: Job,
    writer: DataStreamWriter,
    progress: Progress,
    table: Table | None,
    on_poll: Callable[[], None] | None,
) -> Exception | None:
    """Run the query until it ends or a signal comes; its failure."""
    try:
        query = writer.start()
    except Exception as error:
        # A full disk fails the start, too. `Restarts` raises what it does not know.
        return error
    try:
        if table is not None:
            table.set_query_id(query.id)
        while query.isActive and not job.wait(_POLL_S):
            progress.add_reports(_reports(query))
            progress.show()
            if on_poll is not None:
                on_poll()
        if job.stopping.is_set():
            _wait_for_batch(query)
    finally:
        _stop_query(job, query, progress)
    return ReceiverKilledError() if was_receiver_killed(query) else query.exception()


def _folders_of(job: Job) -> dict[str, str]:
    """The folders that a query writes to, by their flags."""
    arguments = job.arguments
    folders = {"--checkpoint": str(job.checkpoint())}
    if arguments.wal and "://" not in arguments.wal:
        folders["--wal"] = arguments.wal
    output = getattr(arguments, "output", None)
    if output and "://" not in output:
        folders["--output"] = str(Path(output).absolute())
    folders["spark.local.dir"] = job.spark().conf.get("spark.local.dir", None) or gettempdir()
    return folders


def _reports(query: StreamingQuery) -> list[dict[str, Any]]:
    return [json.loads(report.json) for report in query.recentProgress]


def _wait_for_batch(query: StreamingQuery) -> None:
    """Wait for the current microbatch: if interrupted, its messages would be published again."""
    deadline_s = time.monotonic() + BATCH_LIMIT_S
    first = query.lastProgress
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
        newest = query.lastProgress
        if newest is not None and (first is None or newest.batchId != first.batchId):
            return
        time.sleep(_POLL_S / 10)


def _stop_query(job: Job, query: StreamingQuery, progress: Progress) -> None:
    from py4j.protocol import Py4JError

    try:
        query.stop()
        progress.add_reports(_reports(query))
    except (Py4JError, OSError) as error:
        if not job.stopping.is_set():
            raise
        print_line(job.name, f"Java had stopped before the query: {type(error).__name__}")
