"""A job from its start to its end: signals, a query watched and stopped in order, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.jobs.arguments import pairs
from pipelines.jobs.files import local_folder
from pipelines.jobs.progress import Progress
from pipelines.jobs.table import Table
from pipelines.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["BATCH_LIMIT_S", "Job", "run_query", "stop_on_signals", "tell"]

BATCH_LIMIT_S: Final = 30.0
"""How long a stop waits for the batch that is under way; later it is done anew at the restart."""

_POLL_S: Final = 0.25
# What fails is told in one line; --conf=spark.log.level=WARN has all of it.
_QUIET: Final = {"spark.log.level": "FATAL"}
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class Job:
    """What a job is given: its flags, Spark when it asks for it, and whether it shall stop.

    Attributes:
        name: as on the command line.
        stopping: set by SIGTERM and SIGINT.
    """

    def __init__(
        self, name: str, arguments: argparse.Namespace, session: SparkSession | None = None
    ) -> None:
        """*session*: one that runs already, and stays."""
        self.name = name
        self.arguments = arguments
        self.stopping = threading.Event()
        self._session = session
        self._is_ours = session is None

    def spark(self) -> SparkSession:
        """The session, started when it is asked for first. Raises SetupError, UsageError."""
        if self._session is None:
            conf = pairs("--conf", self.arguments.conf)
            # Starting, Spark takes SIGINT for itself.
            with stop_on_signals(self.stopping):
                self._session = spark_session(
                    f"nsq {self.name}", self.arguments.master, **(_QUIET | conf)
                )
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)
        return self._session

    def checkpoint(self) -> Path:
        """The folder of --checkpoint. Raises FolderError."""
        return local_folder(self.arguments.checkpoint, "--checkpoint")

    def close(self) -> None:
        """Stop Spark, if it was started here."""
        if self._session is not None and self._is_ours:
            # After a SIGTERM to all processes there may be no Java left to tell.
            with contextlib.suppress(Exception):
                self._session.stop()
            self._session = None


def tell(name: str, text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"{name}: {text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def stop_on_signals(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set the event; a second one ends the process. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    _handle(stopping)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(stopping: threading.Event) -> None:
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(number: int, _frame: object) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def run_query(
    job: Job,
    writer: DataStreamWriter,
    *,
    table: Table | None = None,
    each: Callable[[], None] | None = None,
) -> None:
    """Start a query and watch it until it ends (--once), fails, or a signal comes.

    Args:
        job: whose flags tell the checkpoint and the trigger.
        writer: with a sink.
        table: the query writes to it.
        each: called now and then while it runs, and once at the end.

    Raises:
        StreamingQueryException: it failed.
    """
    arguments = job.arguments
    writer = writer.option("checkpointLocation", str(job.checkpoint() / "spark"))
    if arguments.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(arguments.trigger * 1000)} milliseconds")
    if job.stopping.is_set():
        return
    query = writer.start()
    progress = Progress(job.name)
    try:
        if table is not None:
            table.begin(query.id)
        while query.isActive and not job.stopping.wait(_POLL_S):
            progress.saw(_reports(query))
            progress.show()
            if each is not None:
                each()
        if job.stopping.is_set():
            _finish_batch(query)
    finally:
        _stop(job, query, progress)
    if (failure := query.exception()) is not None:
        raise failure
    if each is not None:
        each()


def _reports(query: StreamingQuery) -> list[dict[str, Any]]:
    return [json.loads(one.json) for one in query.recentProgress]


def _finish_batch(query: StreamingQuery) -> None:
    """Wait for the batch under way: what it publishes would be published again."""
    deadline_s = time.monotonic() + BATCH_LIMIT_S
    first = query.lastProgress
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
        newest = query.lastProgress
        if newest is not None and (first is None or newest.batchId != first.batchId):
            return
        time.sleep(_POLL_S / 10)


def _stop(job: Job, query: StreamingQuery, progress: Progress) -> None:
    from py4j.protocol import Py4JError

    try:
        query.stop()
        progress.saw(_reports(query))
    except (Py4JError, OSError) as error:
        if not job.stopping.is_set():
            raise
        tell(job.name, f"Java was stopped, too: {type(error).__name__}")
    progress.end()
