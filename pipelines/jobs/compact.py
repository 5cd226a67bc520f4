"""compact: small Parquet files of a table joined to larger ones; needs no Spark.

It may run while archive, deadletter or enrich add to the table. archive does the same by itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from pipelines.jobs.arguments import size
from pipelines.jobs.files import FolderError
from pipelines.jobs.running import Job, tell

NAME: Final = "compact"
HELP: Final = "small Parquet files of a table joined to larger ones"
EXAMPLE: Final = """\
python -m pipelines compact --table=run/archive/table --target-size=128m
"""
_TARGET_NBYTES_MIN: Final = 1 << 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("table")
    group.add_argument("--table", metavar="DIR", required=True, help="its folder")
    add_target_size(group)


def add_target_size(group: argparse._ArgumentGroup) -> None:
    """--target-size."""
    group.add_argument(
        "--target-size",
        metavar="BYTES",
        type=size(_TARGET_NBYTES_MIN),
        default="128m",
        help="small files are joined to such ones (default: %(default)s)",
    )


def run(job: Job) -> None:
    """Join, or stop at a signal. Raises FolderError."""
    table = Path(job.arguments.table).absolute()
    if not table.is_dir():
        raise FolderError(f"--table: there is no folder {table}")
    join_files(job, table)


def join_files(job: Job, table: Path) -> None:
    """Join, and tell what was done. Raises FolderError."""
    from pipelines.jobs.compaction import compact

    done = compact(table, job.arguments.target_size, job.stopping.is_set)
    if done is None:
        raise FolderError(f"{table} is being read or compacted by another process")
    if done.before:
        tell(job.name, f"joined {done.before:,} files to {done.after:,} ({done.rows:,} rows)")
