"""replay: an archive back into a topic, in the order of publishing, at a rate.

First Spark writes the selected messages, sorted, below --checkpoint, which needs room for them.
Then the job's own process publishes them, because one process has to keep the rate. It saves the
number of confirmed messages after each chunk, and a restart continues there. A crash publishes one
chunk again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.errors import FolderError, UsageError
from pipelines.jobs.arguments import (
    add_addresses,
    add_producer,
    add_session,
    require_one_kind,
    sink_options,
    split,
)
from pipelines.jobs.compaction import batches_of, read_lock
from pipelines.jobs.delta import Condition, DeltaTable, parse_location
from pipelines.jobs.job import Job
from pipelines.jobs.parquet import (
    complete,
    is_complete,
    parquet_files,
    partition_folders,
    replace_file,
)
from pipelines.jobs.table import add_store_options, existing_table
from pipelines.jobs.terminal import Progress, print_line
from pipelines.sink.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["ORDER", "PacedChunks", "RateLimit", "ReplayPosition"]

NAME: Final = "replay"
HELP: Final = "an archive back into a topic: a time range, at a rate"
EXAMPLE: Final = """\
python -m pipelines replay --input=run/archive/table --topic=orders \\
    --since=2020-01-01 --rate=5000 --destination-topic=orders_again \\
    --nsqd-tcp-address=127.0.0.1:4150 --checkpoint=run/replay/state
"""
# A crash repeats at most a second's messages.
_CHUNK_S: Final = 1.0
_CHUNK_MESSAGES: Final = 50_000
_SORTED_BYTES: Final = 64 << 20
_SCHEMA: Final = (
    "channel STRING, nsqd STRING, id STRING, timestamp TIMESTAMP, attempts INT, body BINARY, "
    "date DATE, topic STRING"
)
ORDER: Final = ("timestamp", "topic", "nsqd", "id")
_POSITION: Final = "replay.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("archive")
    group.add_argument(
        "--input", metavar="DIR", required=True, help="archive's table: a folder, or its URL"
    )
    add_store_options(group)
    group.add_argument("--topic", action="append", required=True, help="one or several")
    group.add_argument(
        "--since",
        metavar="TIME",
        type=parse_time,
        help="first time of publishing, such as 2026-11-21T10:30",
    )
    group.add_argument(
        "--until",
        metavar="TIME",
        type=parse_time,
        help="messages published before this time; UTC unless +01:00 or the like is added",
    )
    group = parser.add_argument_group("destination")
    group.add_argument("--destination-topic", metavar="TOPIC", help="default: each message's own")
    add_addresses(group, "")
    add_producer(group)
    group = parser.add_argument_group("running")
    group.add_argument(
        "--rate",
        type=int,
        default=1000,
        help="messages a second, 0: no limit (default: %(default)s)",
    )
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        required=True,
        help="state for the next start; one folder for each replay",
    )
    add_session(parser)


def parse_time(text: str) -> datetime:
    """A time as ISO 8601 writes it; without an offset it is UTC."""
    try:
        time_ = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time such as 2026-11-21T10:30"
        ) from error
    return time_ if time_.tzinfo else time_.replace(tzinfo=UTC)


def run(job: Job) -> None:
    """Publish all messages, or those before a signal.

    Raises:
        UsageError, FolderError: flags or a folder can't be used.
        SinkError: nsqd took no more.
        Exception: Spark's.
    """
    arguments = job.arguments
    if arguments.rate < 0:
        raise UsageError("--rate must be at least 0")
    table = existing_table(arguments, "--input", arguments.input)
    sink = SinkOptions.read(_sink_options(arguments))
    checkpoint = job.checkpoint()
    position = ReplayPosition(checkpoint / _POSITION, _request_of(arguments))
    if position.is_done:
        print_line(job.name, "this replay is complete: use a new --checkpoint for another one")
        return
    ordered = checkpoint / "sorted"
    if not is_complete(ordered):
        if isinstance(table, DeltaTable):
            from pipelines.jobs.deltasource import read_table

            only = _partitions_of(arguments)
            nbytes = sum(file.nbytes for file in table.files(only))
            frame = select_messages(read_table(job.spark(), table, only), arguments)
            write_sorted(frame, ordered, nbytes)
        else:
            with read_lock(table):
                archive = job.spark().read.schema(_SCHEMA).parquet(str(table))
                write_sorted(select_messages(archive, arguments), ordered, _parquet_bytes(table))
        complete(ordered)
    job.close()
    if _publish_all(job, sorted_batches(ordered, position.rows), sink, position):
        shutil.rmtree(ordered)


def _sink_options(arguments: argparse.Namespace) -> dict[str, str]:
    require_one_kind(arguments.nsqd_tcp_address, arguments.lookupd_http_address)
    arguments.destination_nsqd_tcp_address = arguments.destination_lookupd_http_address = []
    return sink_options(arguments, arguments.destination_topic)


def _request_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The flags that have to be equal for a replay to resume."""
    return {
        "input": parse_location(arguments.input, "--input"),
        "topic": split(arguments.topic),
        "since": arguments.since and arguments.since.isoformat(),
        "until": arguments.until and arguments.until.isoformat(),
        "destination": arguments.destination_topic,
    }


class ReplayPosition:
    """Progress of a replay, in a file of its checkpoint.

    Attributes:
        rows: how many of the sorted rows are confirmed.
        is_done: whether all of them are.
    """

    def __init__(self, path: Path, request: dict[str, Any]) -> None:
        """Raises FolderError: the checkpoint is of another replay, or damaged."""
        self._path = path
        self._request = request
        self.rows = 0
        self.is_done = False
        try:
            content = json.loads(path.read_bytes())
            previous = content["request"]
            self.rows, self.is_done = int(content["rows"]), bool(content["is_done"])
        except FileNotFoundError:
            # Saved before Spark sorts: the sorted rows belong to this request.
            self.save(0)
            return
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(f"--checkpoint: {path} is damaged: {error}") from error
        changed = [name for name in request if previous.get(name) != request[name]]
        if changed:
            raise FolderError(
                f"--checkpoint is of a replay with another {', '.join(changed)}: use a new one"
            )

    def save(self, rows: int, *, is_done: bool = False) -> None:
        """Durable when this returns. Raises OSError."""
        self.rows, self.is_done = rows, is_done
        content = {"request": self._request, "rows": rows, "is_done": is_done}
        replace_file(self._path, json.dumps(content).encode())


# Selecting and sorting


def select_messages(frame: DataFrame, arguments: argparse.Namespace) -> DataFrame:
    """The messages of the topics and the time range: the columns of `ORDER`, and ``body``."""
    from pyspark.sql import functions as f

    frame = frame.where(f.col("topic").isin(split(arguments.topic).split(",")))
    if arguments.since is not None:
        frame = frame.where(f.col("date") >= f.lit(_date(arguments.since)))
        frame = frame.where(f.col("timestamp") >= f.timestamp_micros(_micros(arguments.since)))
    if arguments.until is not None:
        frame = frame.where(f.col("date") <= f.lit(_date(arguments.until)))
        frame = frame.where(f.col("timestamp") < f.timestamp_micros(_micros(arguments.until)))
    return frame.select(*ORDER, "body")


def _partitions_of(arguments: argparse.Namespace) -> list[Condition]:
    """The partitions of a Delta table with messages of the topics and the time range."""
    only: list[Condition] = [("topic", "in", split(arguments.topic).split(","))]
    if arguments.since is not None:
        only.append(("date", ">=", str(_date(arguments.since))))
    if arguments.until is not None:
        only.append(("date", "<=", str(_date(arguments.until))))
    return only


def _micros(time_: datetime) -> Column:
    from pyspark.sql import functions as f

    return f.lit((time_ - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))


def _date(time_: datetime) -> date:
    return time_.astimezone(UTC).date()


def _parquet_bytes(table: Path) -> int:
    folders = partition_folders(table)
    return sum(path.stat().st_size for folder in folders for path in parquet_files(folder))


def write_sorted(frame: DataFrame, folder: Path, nbytes: int) -> None:
    """Write the rows in `ORDER`: within each file, and from file to file.

    Args:
        frame: made by `select_messages`.
        folder: is overwritten.
        nbytes: size of the Parquet files that are read.
    """
    # A task sorts about 64 MiB in memory; rows take about four times their Parquet files.
    parts = max(2, 4 * nbytes // _SORTED_BYTES)
    ordered = frame.repartitionByRange(parts, *ORDER).sortWithinPartitions(*ORDER)
    ordered.select("topic", "body").write.mode("overwrite").parquet(str(folder))


def sorted_batches(folder: Path, skip: int) -> Iterator[pa.RecordBatch]:
    """The sorted rows after the first ``skip``, in record batches of about 16 MiB."""
    import pyarrow.parquet as pq

    for path in sorted(folder.glob("*.parquet")):
        rows = pq.read_metadata(path).num_rows
        if rows <= skip:
            skip -= rows
            continue
        for batch in batches_of(path):
            if skip < len(batch):
                yield batch.slice(skip)
            skip = max(0, skip - len(batch))


# Publishing


def _publish_all(
    job: Job, batches: Iterator[pa.RecordBatch], sink: SinkOptions, position: ReplayPosition
) -> bool:
    """Publish chunk after chunk; whether all are published now, rather than stopped."""
    from pipelines.sink.writers import publish

    progress = Progress(job.name)
    limit = RateLimit(job.arguments.rate, time.monotonic())
    chunks = PacedChunks(batches, limit, job.stopping)
    columns = ["body"] if job.arguments.destination_topic else ["topic", "body"]
    first_row = position.rows
    try:
        while chunks.has_more() and not job.stopping.is_set():
            publish(chunks.next_chunk(_CHUNK_MESSAGES, _CHUNK_S, columns), sink)
            position.save(first_row + chunks.rows)
            progress.add_batch(chunks.rows)
            progress.show()
        is_done = not chunks.has_more()
        if is_done:
            position.save(first_row + chunks.rows, is_done=True)
        return is_done
    finally:
        progress.finish()


class RateLimit:
    """At most ``rate`` messages a second, in steps of at most a tenth of a second. No clock."""

    def __init__(self, rate: float, now_s: float) -> None:
        """*rate*: 0 for no limit."""
        self.rate = rate
        self._next_s = now_s

    @property
    def max_step(self) -> int | None:
        """The most messages to publish at once; None: any number."""
        return max(1, int(self.rate / 10)) if self.rate else None

    def wait_s(self, messages: int, now_s: float) -> float:
        """Seconds until ``messages`` may be published; they count as published then.

        Time without messages is not made up for.
        """
        if not self.rate:
            return 0.0
        self._next_s = max(self._next_s, now_s)
        wait = self._next_s - now_s
        self._next_s += messages / self.rate
        return wait


class PacedChunks:
    """Splits record batches into chunks, each published and confirmed as a whole, at a rate.

    Attributes:
        rows: messages yielded so far.
    """

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        limit: RateLimit,
        stopping: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*stopping*: ends a chunk early once it is set."""
        self.rows = 0
        self._batches = batches
        self._limit = limit
        self._stopping = stopping
        self._clock = clock
        self._rest: pa.RecordBatch | None = None

    def has_more(self) -> bool:
        """Whether there are rows left; reads the next batch if necessary."""
        while self._rest is None or not self._rest.num_rows:
            self._rest = next(self._batches, None)
            if self._rest is None:
                return False
        return True

    def next_chunk(
        self, messages: int, limit_s: float, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Up to ``messages`` messages, or those that the rate allows in ``limit_s`` seconds."""
        start_s, left = self._clock(), messages
        while left > 0 and self._clock() - start_s < limit_s and self.has_more():
            assert self._rest is not None
            count = min(left, self._limit.max_step or left, self._rest.num_rows)
            if self._stopping.wait(self._limit.wait_s(count, self._clock())):
                return
            part, self._rest = self._rest.slice(0, count), self._rest.slice(count)
            yield part.select(columns)
            self.rows += count
            left -= count
