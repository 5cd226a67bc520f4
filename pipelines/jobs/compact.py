"""compact: small files of a table joined to larger ones; needs no Spark.

The table may be of Parquet files or a Delta table. The job may run while archive, deadletter,
counts or enrich add to the table; archive compacts its own table.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from pipelines.errors import FolderError
from pipelines.jobs.arguments import duration, size
from pipelines.jobs.compaction import compact_table
from pipelines.jobs.delta import DeltaTable
from pipelines.jobs.job import Job
from pipelines.jobs.table import add_store_options, existing_table
from pipelines.jobs.terminal import print_line

NAME: Final = "compact"
HELP: Final = "small files of a table joined to larger ones"
EXAMPLE: Final = """\
python -m pipelines compact --table=run/archive/table --target-size=128m
"""
_MIN_TARGET_BYTES: Final = 1 << 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("table")
    group.add_argument(
        "--table", metavar="DIR", required=True, help="folder, or URL of a Delta table"
    )
    add_compaction(group)
    add_store_options(group)


def add_compaction(group: argparse._ArgumentGroup) -> None:
    """--target-size and --vacuum-retention."""
    group.add_argument(
        "--target-size",
        metavar="BYTES",
        type=size(_MIN_TARGET_BYTES),
        default="128m",
        help="size of the files that small ones are joined to (default: %(default)s)",
    )
    group.add_argument(
        "--vacuum-retention",
        metavar="TIME",
        type=duration(),
        default="168h",
        help="how long a Delta table keeps files that it uses no more, in whole hours; longer "
        "than a read of it takes (default: %(default)s)",
    )


def run(job: Job) -> None:
    """Join the files, until done or stopped by a signal. Raises FolderError, StoreError."""
    compact_job_table(job, existing_table(job.arguments, "--table", job.arguments.table))


def compact_job_table(job: Job, table: Path | DeltaTable) -> None:
    """Join the files of a job's table and print the result. Raises FolderError, StoreError."""
    arguments, should_stop = job.arguments, job.stopping.is_set
    if isinstance(table, DeltaTable):
        result = table.compact(arguments.target_size, arguments.vacuum_retention, should_stop)
    else:
        joined = compact_table(table, arguments.target_size, should_stop)
        if joined is None:
            raise FolderError(f"{table} is being read or compacted by another process")
        result = joined
    if result.old_files:
        print_line(job.name, f"joined {result.old_files:,} files to {result.new_files:,}")
