"""counts: rates and sizes of messages in windows of time, by topic."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from pipelines.jobs.arguments import UsageError, add_destination, add_session, add_source, window
from pipelines.jobs.files import local_folder
from pipelines.jobs.running import Job, run_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAME: Final = "counts"
HELP: Final = "rates and sizes in windows, by topic, to the console, Parquet or a topic"
EXAMPLE: Final = """\
python -m pipelines counts --topic=orders --nsqd-tcp-address=127.0.0.1:4150 \\
    --checkpoint=run/counts/state --window=10s --once
"""
# Of one batch; a first run over a long backlog has many windows.
_LINES_MAX: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_source(parser, NAME, "1s")
    group = parser.add_argument_group("windows")
    group.add_argument(
        "--window",
        metavar="TIME",
        type=window(),
        default="10s",
        help="by the time of publishing (default: %(default)s)",
    )
    group.add_argument(
        "--watermark",
        metavar="TIME",
        type=window(),
        default="30s",
        help="later messages than this do not count (default: %(default)s)",
    )
    group.add_argument(
        "--output",
        metavar="DIR",
        help="Parquet files with complete windows; without it and a topic: the console",
    )
    add_destination(
        parser,
        topic_help="topic for complete windows, as JSON",
        addresses_help=" (default: the source's)",
    )
    add_session(parser)


def counted(frame: DataFrame, width: str, watermark: str) -> DataFrame:
    """A row for each window and topic: ``start``, ``end``, ``topic``, and the figures.

    Args:
        frame: messages.
        width: of a window, in Spark's words.
        watermark: how much later than the newest message one may come.
    """
    from pyspark.sql import functions as f

    size = f.octet_length("body").cast("long")
    windows = frame.withWatermark("timestamp", watermark).groupBy(
        f.window("timestamp", width), "topic"
    )
    figures = windows.agg(
        f.count("*").alias("messages"),
        f.sum(size).alias("nbytes"),
        f.max(size).alias("nbytes_max"),
        f.count_if(f.col("attempts") > 1).alias("redelivered"),
    )
    names = ("messages", "nbytes", "nbytes_max", "redelivered")
    return figures.select(
        f.col("window.start").alias("start"), f.col("window.end").alias("end"), "topic", *names
    )


def run(job: Job) -> None:
    """Run until stopped. Raises UsageError, FolderError, and what Spark raises."""
    from pipelines.jobs.frames import messages, sink_options, source_options

    arguments = job.arguments
    if arguments.output and arguments.destination_topic:
        raise UsageError("either --output or --destination-topic, not both")
    options = source_options(arguments, job.checkpoint())
    sink = None
    if arguments.destination_topic:
        sink = sink_options(arguments, arguments.destination_topic)
    frame = counted(messages(job.spark(), options), arguments.window, arguments.watermark)
    run_query(job, _writer(frame, sink, arguments.output))


def _writer(frame: DataFrame, sink: dict[str, str] | None, output: str | None) -> DataStreamWriter:
    from pyspark.sql import functions as f

    if sink is not None:
        rows = frame.select(f.to_json(f.struct("*")).alias("body"))
        return rows.writeStream.outputMode("append").format("nsq").options(**sink)
    if output is not None:
        path = str(local_folder(output, "--output"))
        return frame.writeStream.outputMode("append").format("parquet").option("path", path)
    return frame.writeStream.outputMode("update").foreachBatch(_print)


def _print(frame: DataFrame, _batch: int) -> None:
    from pyspark.sql import functions as f

    # Times as text: in Python they would be of this machine's zone.
    start = f.date_format("start", "yyyy-MM-dd HH:mm:ss").alias("start")
    seconds = (f.unix_millis("end") - f.unix_millis("start")) / 1000
    rows = (
        frame.orderBy("start", "topic")
        .limit(_LINES_MAX)
        .select(start, seconds.alias("seconds"), *frame.columns[2:])
        .collect()
    )
    sys.stdout.write("".join(f"{line_of(**row.asDict())}\n" for row in rows))
    sys.stdout.flush()


def line_of(
    start: str,
    seconds: float,
    topic: str,
    messages: int,
    nbytes: int,
    nbytes_max: int,
    redelivered: int,
) -> str:
    """A window on the console."""
    return (
        f"{start} +{seconds:g}s  {topic:20}  {messages:>10,}  "
        f"{messages / seconds:>10,.1f}/s  {nbytes / seconds:>12,.0f} B/s  "
        f"mean {nbytes / messages:,.0f} B  max {nbytes_max:,} B  again {redelivered:,}"
    )
