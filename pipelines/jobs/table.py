"""The flags of the tables that jobs write and read, and the tables that they name.

- `parquet`: a folder of Parquet files, which jobs rename into place
- `delta`: a Delta table, to which jobs add transactions; also on an object store
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.errors import FolderError, UsageError
from pipelines.jobs.arguments import local_folder, pairs
from pipelines.jobs.delta import DeltaTable, is_delta, parse_location
from pipelines.jobs.parquet import ParquetTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Table",
    "add_output",
    "add_store_options",
    "existing_table",
    "output_table",
]

_FORMATS: Final = ("parquet", "delta")
# How long the first microbatch waits for the query's id
_START_LIMIT_S: Final = 60.0


class Table:
    """A table in which each microbatch of a query appears once."""

    def __init__(self, write: Callable[[DataFrame, str, int], None]) -> None:
        """*write* adds a microbatch by the query's id and its number, unless the table has it."""
        self._write = write
        self._query_id: Future[str] = Future()

    def set_query_id(self, query_id: str) -> None:
        """The query that writes here; its id is in the checkpoint. Later calls have no effect."""
        if not self._query_id.done():
            self._query_id.set_result(query_id)

    def write(self, frame: DataFrame, batch: int) -> None:
        """Add a microbatch, unless the table has it. Raises FolderError, StoreError."""
        # Spark may call this for the first microbatch before `set_query_id`.
        self._write(frame, self._query_id.result(timeout=_START_LIMIT_S), batch)


def add_output(group: argparse._ArgumentGroup, help_: str, *, required: bool = False) -> None:
    """--output, and the format."""
    group.add_argument("--output", metavar="DIR", required=required, help=help_)
    group.add_argument(
        "--format",
        choices=_FORMATS,
        default="parquet",
        help="parquet: files in a mounted folder; delta: a Delta table, whose --output may be "
        "s3://, gs:// or az:// as well (default: %(default)s)",
    )
    add_store_options(group)


def add_store_options(group: argparse._ArgumentGroup) -> None:
    """--store-option."""
    group.add_argument(
        "--store-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of deltalake for a Delta table's store, aws_endpoint,...; keys and "
        "passwords are safer in the environment: AWS_SECRET_ACCESS_KEY,...",
    )


def output_table(arguments: argparse.Namespace, partition_by: Sequence[str] = ()) -> Table | None:
    """The table of --output; None without the flag.

    Raises:
        UsageError: the flags contradict each other.
        FolderError, SetupError, StoreError: the table can't be written.
    """
    if not arguments.output:
        return None
    options = pairs("--store-option", arguments.store_option)
    if arguments.format == "delta":
        location = parse_location(arguments.output, "--output")
        from pipelines.jobs.deltasource import write_batch

        table = DeltaTable(location, options, partition_by=partition_by)
        table.check()
        return Table(partial(write_batch, table))
    if options:
        raise UsageError("--store-option needs --format=delta")
    folder = local_folder(arguments.output, "--output")
    return Table(ParquetTable(folder, partition_by=partition_by).write)


def existing_table(arguments: argparse.Namespace, flag: str, text: str) -> Path | DeltaTable:
    """The table that a flag names: a Delta table, or the folder of Parquet files.

    Raises FolderError: there is neither; and as `output_table`.
    """
    location = parse_location(text, flag)
    options = pairs("--store-option", arguments.store_option)
    if is_delta(location, options):
        return DeltaTable(location, options)
    if not Path(location).exists():
        raise FolderError(f"{flag}: there is no table {location}")
    return Path(location)
