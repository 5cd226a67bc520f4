"""The Spark data source by which tasks write and read the files of a Delta table.

`DeltaTable` uses it; it is not for users. Its writer adds all files in one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pipelines.jobs.delta import DeltaTable
from pipelines.jobs.deltafiles import DeltaFile, read_files, write_files

__all__ = ["DeltaSource", "arrow_schema"]

_FILES_PER_TASK: Final = 16


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's columns as Arrow's, each of which may be null."""
    fields = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([(field.name, field.type) for field in fields])


@dataclass(frozen=True)
class AddedFiles(WriterCommitMessage):
    """The files that a task has written."""

    files: tuple[DeltaFile, ...]


@dataclass(frozen=True)
class FilePartition(InputPartition):
    """The files that a task reads."""

    files: tuple[DeltaFile, ...]


class DeltaSource(DataSource):
    """``format("nsq_delta")``. Its options are texts made by `DeltaTable`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "nsq_delta"

    def schema(self) -> StructType:
        """The table's columns."""
        schema: StructType = from_arrow_schema(_table(self.options).schema())
        return schema

    def writer(self, schema: StructType, overwrite: bool) -> _Writer:
        """The writer of a microbatch."""
        return _Writer(self.options)

    def reader(self, schema: StructType) -> _Reader:
        """The reader of the table as it is when the read is planned."""
        return _Reader(self.options, schema)


class _Writer(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> AddedFiles:
        """Write the rows of a task. Raises StoreError."""
        table = _table(self._options)
        files = write_files(iterator, table.location, table.options, table.partition_by)
        return AddedFiles(tuple(files))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Add the files of all tasks. Raises FolderError, StoreError."""
        files = [
            file
            for message in messages
            if isinstance(message, AddedFiles)
            for file in message.files
        ]
        query_id, batch = json.loads(self._options["transaction"])
        _table(self._options).add_files(files, query_id, batch)


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Some files for each task. Raises FolderError, StoreError."""
        files = _table(self._options).files(json.loads(self._options["only"]))
        step = max(1, min(_FILES_PER_TASK, len(files) // 4))
        return [
            FilePartition(tuple(files[first : first + step]))
            for first in range(0, len(files), step)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's files. Raises StoreError."""
        # Spark passes an empty partition of its own where a read has none.
        if isinstance(partition, FilePartition):
            table = _table(self._options)
            schema = arrow_schema(self._schema)
            yield from read_files(partition.files, table.location, table.options, schema)


def _table(options: Mapping[str, str]) -> DeltaTable:
    return DeltaTable(
        options["location"],
        json.loads(options["store"]),
        partition_by=json.loads(options["partitions"]),
    )
