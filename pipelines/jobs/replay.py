"""replay: an archive back into a topic, in the order of publishing, at a rate.

Spark reads and sorts; the sorted messages come to the driver in pieces, which publishes them: one
place keeps the rate. The position (time, nsqd and id of the last confirmed message) is written
after each portion; a restart goes on after it. A crash publishes a portion again.
"""

from __future__ import annotations

import argparse
import json
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
    from pyspark.sql import DataFrame, SparkSession

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
_ARROW_ROWS: Final = 5000
_ARROW_NBYTES: Final = 16 << 20
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
    position = Position(job.checkpoint() / _POSITION, _request_of(arguments))
    if position.is_done:
        tell(job.name, "this replay is complete: use a new --checkpoint for another one")
        return
    with reading(table):
        frame = chosen(job.spark(), table, arguments, position.last)
        _publish_all(job, pieces(frame, _nbytes_of(table)), sink, position)


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
        last: ``(timestamp in us, topic, nsqd, id)`` of the last confirmed message, or None.
        is_done: all were published.
    """

    def __init__(self, path: Path, request: dict[str, Any]) -> None:
        """Raises FolderError: the checkpoint is of another replay, or damaged."""
        self._path = path
        self._request = request
        self.last: tuple[int, str, str, str] | None = None
        self.is_done = False
        try:
            told = json.loads(path.read_bytes())
            if told["request"] != request:
                changed = [name for name in request if told["request"].get(name) != request[name]]
                raise FolderError(
                    f"--checkpoint is of a replay with another {', '.join(changed)}: use a new one"
                )
            self.last = told["last"] and tuple(told["last"])
            self.is_done = told["is_done"]
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(f"--checkpoint: {path} is damaged: {error}") from error

    def save(self, last: tuple[int, str, str, str] | None, *, is_done: bool = False) -> None:
        """Durable when it returns. Raises OSError."""
        self.last, self.is_done = last, is_done
        told = {"request": self._request, "last": last, "is_done": is_done}
        replace_file(self._path, json.dumps(told).encode())


def chosen(
    spark: SparkSession,
    table: Path,
    arguments: argparse.Namespace,
    last: tuple[int, str, str, str] | None,
) -> DataFrame:
    """The messages that are still to be published: columns of `ORDER`, and ``body``."""
    from pyspark.sql import functions as f

    frame = spark.read.schema(_SCHEMA).parquet(str(table))
    frame = frame.where(f.col("topic").isin(split(arguments.topic).split(",")))
    time_us = f.unix_micros("timestamp")
    since, until = arguments.since, arguments.until
    if last is not None:
        begun = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=last[0])
        since = begun if since is None else max(since, begun)
        ours = f.struct(time_us, "topic", "nsqd", "id")
        frame = frame.where(ours > f.struct(*map(f.lit, last)))
    if since is not None:
        frame = frame.where(f.col("date") >= f.lit(_date(since)))
        frame = frame.where(time_us >= _micros(since))
    if until is not None:
        frame = frame.where(f.col("date") <= f.lit(_date(until)))
        frame = frame.where(time_us < _micros(until))
    return frame.select(time_us.alias("timestamp"), *ORDER[1:], "body")


def _micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _date(moment: datetime) -> date:
    return moment.astimezone(UTC).date()


def _nbytes_of(table: Path) -> int:
    return sum(path.stat().st_size for path in table.rglob("*.parquet"))


def pieces(frame: DataFrame, nbytes: int) -> Iterator[pa.Table]:
    """The rows in order, in pieces; one part of the sorted whole is in memory at a time."""
    import pyarrow as pa

    session = frame.sparkSession
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_ARROW_ROWS))
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(_ARROW_NBYTES))
    # Parquet is smaller than its rows.
    parts = max(2, 4 * nbytes // _SORTED_NBYTES)
    ordered = frame.repartitionByRange(parts, *ORDER).sortWithinPartitions(*ORDER)
    for row in ordered.mapInArrow(_packed, "piece BINARY").toLocalIterator():
        with pa.ipc.open_stream(row.piece) as reader:
            yield reader.read_all()


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On a worker: each batch as one row, which is cheap to bring over."""
    import pyarrow as pa

    for batch in batches:
        if batch.num_rows:
            output = pa.BufferOutputStream()
            with pa.ipc.new_stream(output, batch.schema) as writer:
                writer.write_batch(batch)
            piece = pa.array([output.getvalue().to_pybytes()], pa.binary())
            yield pa.RecordBatch.from_arrays([piece], ["piece"])


def _publish_all(
    job: Job, tables: Iterator[pa.Table], sink: SinkOptions, position: Position
) -> None:
    from pipelines.jobs.portions import Portions
    from pipelines.sink.writer import publish

    progress = Progress(job.name)
    portions = Portions(tables, Pace(job.arguments.rate, time.monotonic()), job.stopping)
    columns = ["body"] if job.arguments.destination_topic else ["topic", "body"]
    try:
        while portions.has_more() and not job.stopping.is_set():
            publish(portions.next(_PORTION_MESSAGES, _PORTION_S, columns), sink)
            if portions.last is not None:
                position.save(portions.last)
            progress.count(portions.given)
            progress.show()
        if not portions.has_more() and not job.stopping.is_set():
            position.save(portions.last or position.last, is_done=True)
    finally:
        progress.end()
