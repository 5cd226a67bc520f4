"""counts: rates and sizes of messages in time windows, by topic."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from pipelines.errors import UsageError
from pipelines.jobs.arguments import (
    add_destination,
    add_session,
    add_source,
    local_folder,
    sink_options,
    source_options,
    window,
)
from pipelines.jobs.job import Job, read_messages, run_query
from pipelines.jobs.table import Table, add_output, output_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAME: Final = "counts"
HELP: Final = "rates and sizes in windows, by topic, to the console, a table or a topic"
EXAMPLE: Final = """\
python -m pipelines counts --topic=orders --nsqd-tcp-address=127.0.0.1:4150 \\
    --checkpoint=run/counts/state --window=10s --once
"""
# For each microbatch; the first one of a long backlog has many windows.
_MAX_LINES: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_source(parser, NAME, "1s")
    group = parser.add_argument_group("windows")
    group.add_argument(
        "--window",
        metavar="TIME",
        type=window(),
        default="10s",
        help="length of a window, by the time of publishing (default: %(default)s)",
    )
    group.add_argument(
        "--watermark",
        metavar="TIME",
        type=window(),
        default="30s",
        help="messages that arrive later than this are not counted (default: %(default)s)",
    )
    add_output(
        group, "folder of a table for complete windows; without this and a topic: the console"
    )
    add_destination(
        parser,
        topic_help="topic for complete windows, as JSON",
        addresses_help=" (default: the source's)",
    )
    add_session(parser)


def count_windows(frame: DataFrame, width: str, watermark: str) -> DataFrame:
    """A row for each window and topic: ``start``, ``end``, ``topic``, and the metrics.

    Args:
        frame: messages.
        width: of a window, as Spark writes durations.
        watermark: how much later than the newest message a message may arrive.
    """
    from pyspark.sql import functions as f

    size = f.octet_length("body").cast("long")
    windows = frame.withWatermark("timestamp", watermark).groupBy(
        f.window("timestamp", width), "topic"
    )
    metrics = windows.agg(
        f.count("*").alias("messages"),
        f.sum(size).alias("nbytes"),
        f.max(size).alias("nbytes_max"),
        f.count_if(f.col("attempts") > 1).alias("redelivered"),
    )
    names = ("messages", "nbytes", "nbytes_max", "redelivered")
    return metrics.select(
        f.col("window.start").alias("start"), f.col("window.end").alias("end"), "topic", *names
    )


def run(job: Job) -> None:
    """Run until stopped. Raises UsageError, FolderError, and Spark's exceptions."""
    arguments = job.arguments
    if arguments.output and arguments.destination_topic:
        raise UsageError("either --output or --destination-topic, not both")
    options = source_options(arguments, job.checkpoint())
    sink = None
    table = output_table(arguments) if arguments.format == "delta" else None
    if arguments.destination_topic:
        sink = sink_options(arguments, arguments.destination_topic)
    frame = count_windows(
        read_messages(job.spark(), options), arguments.window, arguments.watermark
    )
    run_query(job, _writer(frame, sink, arguments, table), table=table)


def _writer(
    frame: DataFrame,
    sink: dict[str, str] | None,
    arguments: argparse.Namespace,
    table: Table | None,
) -> DataStreamWriter:
    from pyspark.sql import functions as f

    if sink is not None:
        rows = frame.select(f.to_json(f.struct("*")).alias("body"))
        return rows.writeStream.outputMode("append").format("nsq").options(**sink)
    if table is not None:
        return frame.writeStream.outputMode("append").foreachBatch(table.write)
    if arguments.output:
        # Spark's own list of files: tables of earlier versions have it.
        path = str(local_folder(arguments.output, "--output"))
        return frame.writeStream.outputMode("append").format("parquet").option("path", path)
    return frame.writeStream.outputMode("update").foreachBatch(_print)


def _print(frame: DataFrame, _batch: int) -> None:
    from pyspark.sql import functions as f

    # Formatted by Spark: Python would convert times to the local time zone.
    start = f.date_format("start", "yyyy-MM-dd HH:mm:ss").alias("start")
    seconds = (f.unix_millis("end") - f.unix_millis("start")) / 1000
    rows = (
        frame.orderBy("start", "topic")
        .limit(_MAX_LINES)
        .select(start, seconds.alias("seconds"), *frame.columns[2:])
        .collect()
    )
    sys.stdout.write("".join(f"{window_line(**row.asDict())}\n" for row in rows))
    sys.stdout.flush()


def window_line(
    start: str,
    seconds: float,
    topic: str,
    messages: int,
    nbytes: int,
    nbytes_max: int,
    redelivered: int,
) -> str:
    """The console's line for a window."""
    return (
        f"{start} +{seconds:g}s  {topic:20}  {messages:>10,}  "
        f"{messages / seconds:>10,.1f}/s  {nbytes / seconds:>12,.0f} B/s  "
        f"mean {nbytes / messages:,.0f} B  max {nbytes_max:,} B  again {redelivered:,}"
    )
