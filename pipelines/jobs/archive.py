"""archive: topics to a table, by date and topic, compacted to files of the target size."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Final

from pipelines.errors import FolderError, StoreError
from pipelines.jobs import compact
from pipelines.jobs.arguments import add_session, add_source, duration, source_options
from pipelines.jobs.job import Job, read_messages, run_query
from pipelines.jobs.table import add_output, existing_table, output_table
from pipelines.jobs.terminal import print_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME: Final = "archive"
HELP: Final = "topics to a table, by date and topic"
EXAMPLE: Final = """\
python -m pipelines archive --topic=orders --nsqd-tcp-address=127.0.0.1:4150 \\
    --checkpoint=run/archive/state --output=run/archive/table --once
"""
PARTITION_BY: Final = ("date", "topic")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_source(parser, NAME, "10s")
    group = parser.add_argument_group("table")
    add_output(group, "folder of the table", required=True)
    compact.add_compaction(group)
    group.add_argument(
        "--compact-every",
        metavar="TIME",
        type=duration(),
        default="10m",
        help="time between compactions, 0: none; with --once after the last batch "
        "(default: %(default)s)",
    )
    add_session(parser)


def with_date(frame: DataFrame) -> DataFrame:
    """Add the date of publishing, in UTC."""
    from pyspark.sql import functions as f

    return frame.withColumn("date", f.to_date("timestamp"))


def run(job: Job) -> None:
    """Run until stopped. Raises UsageError, FolderError, StoreError, and Spark's exceptions."""
    arguments = job.arguments
    compaction = _PeriodicCompaction(job)
    options = source_options(arguments, job.checkpoint())
    table = output_table(arguments, PARTITION_BY)
    assert table is not None
    spark = job.spark()
    tasks = spark.sparkContext.defaultParallelism

    def write(frame: DataFrame, batch: int) -> None:
        # For each date and topic at most one file for each core, rather than for each segment.
        table.write(with_date(frame.coalesce(tasks)), batch)

    run_query(
        job,
        read_messages(spark, options).writeStream.foreachBatch(write),
        table=table,
        on_poll=compaction.run_if_due,
    )
    if arguments.once and arguments.compact_every and not job.stopping.is_set():
        compaction.run_if_due(force=True)


class _PeriodicCompaction:
    """Joins files between two polls of the query, which keeps running."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._last_s = time.monotonic()

    def run_if_due(self, *, force: bool = False) -> None:
        """Compact when it is time. A failure is printed, and retried at the next time."""
        every_s = self._job.arguments.compact_every
        is_due = every_s and time.monotonic() - self._last_s >= every_s
        if self._job.stopping.is_set() or not (is_due or force):
            return
        arguments = self._job.arguments
        try:
            table = existing_table(arguments, "--output", arguments.output)
            compact.compact_job_table(self._job, table)
        except (FolderError, StoreError) as error:
            print_line(self._job.name, str(error))
        self._last_s = time.monotonic()
