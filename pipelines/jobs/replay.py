"""replay: an archive back into a topic, in the order of publishing, at a rate.

First Spark writes what is asked for, sorted, below --checkpoint; so there has to be room for it.
The job's own process publishes that, for one place keeps the rate, and writes after each portion
how many are confirmed: a restart goes on there. A crash publishes one portion again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.jobs.arguments import UsageError, add_addresses, add_producer, add_session, split
from pipelines.jobs.files import FolderError, replace_file
from pipelines.jobs.pace import Pace
from pipelines.jobs.progress import Progress
from pipelines.jobs.running import Job, tell

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from pipelines.sink.options import SinkOptions

NAME: Final = "replay"
HELP: Final = "an archive back into a topic: a time range, at a rate"
EXAMPLE: Final = """\
python -m pipelines replay --input=run/archive/table --topic=orders \\
    --since=2020-01-01 --rate=5000 --destination-topic=orders_again \\
    --nsqd-tcp-address=127.0.0.1:4150 --checkpoint=run/replay/state
"""
_PORTION_S: Final = 1.0
_PORTION_MESSAGES: Final = 50_000
_SORTED_NBYTES: Final = 64 << 20
_SCHEMA: Final = (
    "channel STRING, nsqd STRING, id STRING, timestamp TIMESTAMP, attempts INT, body BINARY, "
    "date DATE, topic STRING"
)
ORDER: Final = ("timestamp", "topic", "nsqd", "id")
_POSITION: Final = "replay.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("archive")
    group.add_argument("--input", metavar="DIR", required=True, help="folder of archive's table")
    group.add_argument("--topic", action="append", required=True, help="one or several")
    group.add_argument(
        "--since", metavar="TIME", type=moment, help="published then or later: 2026-11-21T10:30"
    )
    group.add_argument(
        "--until", metavar="TIME", type=moment, help="published earlier; UTC without +01:00"
    )
    group = parser.add_argument_group("destination")
    group.add_argument("--destination-topic", metavar="TOPIC", help="default: a message's own")
    add_addresses(group, "")
    add_producer(group)
    group = parser.add_argument_group("running")
    group.add_argument(
        "--rate", type=int, default=1000, help="messages a second, 0: all (default: %(default)s)"
    )
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        required=True,
        help="where to go on after a restart; one folder for each replay",
    )
    add_session(parser)


def moment(told: str) -> datetime:
    """A time of ISO 8601, in UTC unless it says otherwise."""
    try:
        found = datetime.fromisoformat(told)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{told!r} is no time such as 2026-11-21T10:30") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def run(job: Job) -> None:
    """Publish all, or until stopped. Raises UsageError, FolderError, and what Spark raises."""
    from pipelines.jobs.compaction import reading
    from pipelines.sink.options import SinkOptions

    arguments = job.arguments
    if arguments.rate < 0:
        raise UsageError("--rate must be at least 0")
    table = Path(arguments.input).absolute()
    if not table.is_dir():
        raise FolderError(f"--input: there is no folder {table}")
    sink = SinkOptions.read(_sink_options(arguments))
    checkpoint = job.checkpoint()
    position = Position(checkpoint / _POSITION, _request_of(arguments))
    if position.is_done:
        tell(job.name, "this replay is complete: use a new --checkpoint for another one")
        return
    ordered = checkpoint / "sorted"
    if not (ordered / "_SUCCESS").exists():
        with reading(table):
            write_sorted(chosen(job.spark(), table, arguments), ordered, _nbytes_of(table))
    job.close()
    if _publish_all(job, pieces(ordered, position.rows), sink, position):
        shutil.rmtree(ordered)


def _sink_options(arguments: argparse.Namespace) -> dict[str, str]:
    from pipelines.jobs.arguments import only_one
    from pipelines.jobs.frames import sink_options

    only_one(arguments.nsqd_tcp_address, arguments.lookupd_http_address)
    arguments.destination_nsqd_tcp_address = arguments.destination_lookupd_http_address = []
    return sink_options(arguments, arguments.destination_topic)


def _request_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What makes two replays the same one."""
    return {
        "input": str(Path(arguments.input).absolute()),
        "topic": split(arguments.topic),
        "since": arguments.since and arguments.since.isoformat(),
        "until": arguments.until and arguments.until.isoformat(),
        "destination": arguments.destination_topic,
    }


class Position:
    """How far a replay has come, in its checkpoint.

    Attributes:
        rows: of the sorted ones, those that are confirmed.
        is_done: all were published.
    """

    def __init__(self, path: Path, request: dict[str, Any]) -> None:
        """Raises FolderError: the checkpoint is of another replay, or damaged."""
        self._path = path
        self._request = request
        self.rows = 0
        self.is_done = False
        try:
            told = json.loads(path.read_bytes())
            before = told["request"]
            self.rows, self.is_done = int(told["rows"]), bool(told["is_done"])
        except FileNotFoundError:
            # Before Spark has sorted for it.
            self.save(0)
            return
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(f"--checkpoint: {path} is damaged: {error}") from error
        changed = [name for name in request if before.get(name) != request[name]]
        if changed:
            raise FolderError(
                f"--checkpoint is of a replay with another {', '.join(changed)}: use a new one"
            )

    def save(self, rows: int, *, is_done: bool = False) -> None:
        """Durable when it returns. Raises OSError."""
        self.rows, self.is_done = rows, is_done
        told = {"request": self._request, "rows": rows, "is_done": is_done}
        replace_file(self._path, json.dumps(told).encode())


def chosen(spark: SparkSession, table: Path, arguments: argparse.Namespace) -> DataFrame:
    """The messages of the topics in the range: the columns of `ORDER`, and ``body``."""
    from pyspark.sql import functions as f

    frame = spark.read.schema(_SCHEMA).parquet(str(table))
    frame = frame.where(f.col("topic").isin(split(arguments.topic).split(",")))
    if arguments.since is not None:
        frame = frame.where(f.col("date") >= f.lit(_date(arguments.since)))
        frame = frame.where(f.col("timestamp") >= f.timestamp_micros(_micros(arguments.since)))
    if arguments.until is not None:
        frame = frame.where(f.col("date") <= f.lit(_date(arguments.until)))
        frame = frame.where(f.col("timestamp") < f.timestamp_micros(_micros(arguments.until)))
    return frame.select(*ORDER, "body")


def _micros(moment: datetime) -> Column:
    from pyspark.sql import functions as f

    return f.lit((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))


def _date(moment: datetime) -> date:
    return moment.astimezone(UTC).date()


def _nbytes_of(table: Path) -> int:
    return sum(path.stat().st_size for path in table.rglob("*.parquet"))


def write_sorted(frame: DataFrame, folder: Path, nbytes: int) -> None:
    """Write the rows in `ORDER`: within each file, and from file to file.

    Args:
        frame: see `chosen`.
        folder: is complete when ``_SUCCESS`` is in it.
        nbytes: of the Parquet files that are read.
    """
    # A task sorts about so many in memory; Parquet is smaller than its rows.
    parts = max(2, 4 * nbytes // _SORTED_NBYTES)
    ordered = frame.repartitionByRange(parts, *ORDER).sortWithinPartitions(*ORDER)
    ordered.select("topic", "body").write.mode("overwrite").parquet(str(folder))


def pieces(folder: Path, skip: int) -> Iterator[pa.RecordBatch]:
    """The sorted rows from one on, not too many bytes at a time."""
    import pyarrow.parquet as pq

    from pipelines.jobs.compaction import batches_of

    for path in sorted(folder.glob("*.parquet")):
        rows = pq.read_metadata(path).num_rows
        if rows <= skip:
            skip -= rows
            continue
        for batch in batches_of(path):
            if skip < len(batch):
                yield batch.slice(skip)
            skip = max(0, skip - len(batch))


def _publish_all(
    job: Job, batches: Iterator[pa.RecordBatch], sink: SinkOptions, position: Position
) -> bool:
    """Whether all are published now."""
    from pipelines.jobs.portions import Portions
    from pipelines.sink.writer import publish

    progress = Progress(job.name)
    pace = Pace(job.arguments.rate, time.monotonic())
    portions = Portions(batches, pace, job.stopping)
    columns = ["body"] if job.arguments.destination_topic else ["topic", "body"]
    begun = position.rows
    try:
        while portions.has_more() and not job.stopping.is_set():
            publish(portions.next(_PORTION_MESSAGES, _PORTION_S, columns), sink)
            position.save(begun + portions.given)
            progress.count(portions.given)
            progress.show()
        is_done = not portions.has_more()
        if is_done:
            position.save(begun + portions.given, is_done=True)
        return is_done
    finally:
        progress.end()
