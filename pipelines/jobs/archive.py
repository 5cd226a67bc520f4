"""archive: topics to Parquet, by date and topic, in files of a good size."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Final

from pipelines.jobs import compact
from pipelines.jobs.arguments import add_session, add_source, duration
from pipelines.jobs.files import FolderError, local_folder
from pipelines.jobs.running import Job, run_query, tell

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

NAME: Final = "archive"
HELP: Final = "topics to Parquet, by date and topic"
EXAMPLE: Final = """\
python -m pipelines archive --topic=orders --nsqd-tcp-address=127.0.0.1:4150 \\
    --checkpoint=run/archive/state --output=run/archive/table --once
"""
PARTITION_BY: Final = ("date", "topic")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_source(parser, NAME, "10s")
    group = parser.add_argument_group("table")
    group.add_argument("--output", metavar="DIR", required=True, help="folder of the table")
    compact.add_target_size(group)
    group.add_argument(
        "--compact-every",
        metavar="TIME",
        type=duration(),
        default="10m",
        help="0: never; with --once at the end (default: %(default)s)",
    )
    add_session(parser)


def with_date(frame: DataFrame) -> DataFrame:
    """The messages and their date of publishing, in UTC."""
    from pyspark.sql import functions as f

    return frame.withColumn("date", f.to_date("timestamp"))


def run(job: Job) -> None:
    """Run until stopped. Raises UsageError, FolderError, and what Spark raises."""
    arguments = job.arguments
    output = local_folder(arguments.output, "--output")
    compaction = _Compaction(job, output)
    from pipelines.jobs.frames import messages, source_options
    from pipelines.jobs.table import Table

    options = source_options(arguments, job.checkpoint())
    spark = job.spark()
    table = Table(output, partition_by=PARTITION_BY)
    tasks = spark.sparkContext.defaultParallelism

    def write(frame: DataFrame, batch: int) -> None:
        # As many files as cores, for each date and topic; not as many as segments.
        table.write(with_date(frame.coalesce(tasks)), batch)

    run_query(
        job,
        messages(spark, options).writeStream.foreachBatch(write),
        table=table,
        each=compaction.run_if_due,
    )
    if arguments.once and arguments.compact_every and not job.stopping.is_set():
        compaction.run_if_due(force=True)


class _Compaction:
    """Joins files between two looks at the query: archiving goes on meanwhile."""

    def __init__(self, job: Job, output: Path) -> None:
        self._job = job
        self._output = output
        self._last_s = time.monotonic()

    def run_if_due(self, *, force: bool = False) -> None:
        """What fails is told, and tried again in its time: the archive itself goes on."""
        every_s = self._job.arguments.compact_every
        is_due = every_s and time.monotonic() - self._last_s >= every_s
        if self._job.stopping.is_set() or not (is_due or force):
            return
        try:
            compact.join_files(self._job, self._output)
        except FolderError as error:
            tell(self._job.name, str(error))
        self._last_s = time.monotonic()
