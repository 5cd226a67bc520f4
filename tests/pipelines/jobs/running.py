"""Shared by the tests of jobs: run a job by its flags in the tests' Spark session."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.__main__ import JOBS, main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHELL_LIMIT_S = 60.0
FIRST = datetime(2026, 11, 20, 23, 59, 0, tzinfo=UTC)
# The source's wait for more, so that --once ends soon.
QUICK = "--source-option=availableNowIdle=1s"


def run_example(
    name: str, spark: SparkSession | None, addresses: dict[str, str], more: Sequence[str] = ()
) -> int:
    """Run what ``--help`` shows, in the current folder; the job's exit code.

    Args:
        name: of the job.
        spark: what the job runs in, instead of starting its own.
        addresses: what stands for the addresses of the example.
        more: flags.
    """
    text = JOBS[name].EXAMPLE.replace("\\\n", "")
    for told, ours in addresses.items():
        assert told in text
        text = text.replace(told, ours)
    before, _, command = text.partition("python -m pipelines ")
    if before:
        subprocess.run(before, shell=True, check=True, timeout=SHELL_LIMIT_S)
    return main([*shlex.split(command), *more], spark)


def rows_in(table: Path) -> int:
    """The rows of an archive that a job may be writing to.

    pyarrow's dataset lists the folders of a microbatch as well, and fails if one is removed
    meanwhile.
    """
    return sum(pq.read_metadata(path).num_rows for path in table.glob("date=*/topic=*/*.parquet"))


def archived(table: Path, topic: str, numbers: Iterable[int]) -> None:
    """Put a file into an archive: messages ``number``, one a second from `FIRST` on."""
    by_date: dict[date, list[int]] = {}
    for number in numbers:
        by_date.setdefault((FIRST + timedelta(seconds=number)).date(), []).append(number)
    for day, found in by_date.items():
        folder = table / f"date={day}" / f"topic={topic}"
        folder.mkdir(parents=True, exist_ok=True)
        columns = {
            "channel": ["archive"] * len(found),
            "nsqd": ["a:4150"] * len(found),
            "id": [f"{number:016x}" for number in found],
            "timestamp": pa.array(
                [FIRST + timedelta(seconds=number) for number in found], pa.timestamp("us", "UTC")
            ),
            "attempts": pa.array([1] * len(found), pa.int32()),
            "body": [b"%d" % number for number in found],
        }
        pq.write_table(pa.table(columns), folder / f"{found[0]:06}-{len(found)}.parquet")
