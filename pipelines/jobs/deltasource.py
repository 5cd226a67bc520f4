"""The Spark data source by which tasks write and read the files of a Delta table.

It is for `write_batch` and `read_table`, not for users.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pipelines.jobs.delta import Condition, DeltaTable
from pipelines.jobs.deltafiles import DeltaFile, read_files, write_files

__all__ = ["DeltaSource", "read_table", "write_batch"]

_FILES_PER_TASK: Final = 16


def write_batch(table: DeltaTable, frame: DataFrame, query_id: str, batch: int) -> None:
    """Add the rows of a microbatch in one transaction, unless the table has them.

    Raises:
        FolderError: the columns are not the table's, or the table can't be used.
        StoreError: the store or disk failed; a later attempt may succeed.
        Exception: Spark's, with one of these as its reason, or of a task that failed.
    """
    table.create(_arrow_schema(frame.schema))
    if table.has_batch(query_id, batch):
        return
    if table.partition_by:
        frame = frame.sortWithinPartitions(*table.partition_by)
    frame.sparkSession.dataSource.register(DeltaSource)
    options = {"transaction": json.dumps([query_id, batch]), **_options(table)}
    frame.write.format(DeltaSource.name()).mode("append").options(**options).save()


def read_table(spark: SparkSession, table: DeltaTable, only: Sequence[Condition] = ()) -> DataFrame:
    """The rows of a table, as it is when Spark plans the read.

    Args:
        spark: the session.
        table: to read.
        only: conditions on the partitions to read.

    Raises:
        FolderError: there is no table, or it needs a reader that knows more.
        StoreError: the store or disk failed.
    """
    table.schema()
    spark.dataSource.register(DeltaSource)
    options = {"only": json.dumps(only), **_options(table)}
    return spark.read.format(DeltaSource.name()).options(**options).load()


def _options(table: DeltaTable) -> dict[str, str]:
    return {
        "location": table.location,
        "store": json.dumps(table.options),
        "partitions": json.dumps(table.partition_by),
    }


def _arrow_schema(schema: StructType) -> pa.Schema:
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
    """``format("nsq_delta")``. Its options are those of `_options`."""

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
            schema = _arrow_schema(self._schema)
            yield from read_files(partition.files, table.location, table.options, schema)


def _table(options: Mapping[str, str]) -> DeltaTable:
    return DeltaTable(
        options["location"],
        json.loads(options["store"]),
        partition_by=json.loads(options["partitions"]),
    )
