"""The Parquet files of a Delta table, as Spark's tasks write and read them, on any store."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from pipelines.errors import FolderError, SetupError, StoreError
from pipelines.jobs.parquet import sync

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DeltaFile", "as_text", "explained", "import_deltalake", "read_files", "write_files"]

_ROW_GROUP_BYTES: Final = 64 << 20
_READ_ROWS: Final = 10_000
_DECORATION: Final = re.compile("\x1b\\[[0-9;]*m|\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}")

Values = Mapping[str, str | None]


class DeltaFile(NamedTuple):
    """A file of a table. ``values``: of its partition by column, as texts; None for a null."""

    path: str
    nbytes: int
    rows: int
    values: Values


# Writing


def write_files(
    batches: Iterable[pa.RecordBatch],
    location: str,
    options: Mapping[str, str],
    partition_by: Sequence[str],
) -> Iterator[DeltaFile]:
    """Write rows, one file at a time; each is durable when it is yielded.

    Args:
        batches: sorted by partition; a file ends where the partition changes.
        location, options: of the table.
        partition_by: columns that are not in the files.

    Raises:
        StoreError: the store or disk failed. Files may remain that no table refers to.
    """
    file: _OpenFile | None = None
    for batch in batches:
        for values, rows in _runs(batch, partition_by):
            if file is None or file.values != values:
                if file is not None:
                    yield file.close()
                file = _OpenFile(location, options, values)
            file.add_rows(rows)
    if file is not None:
        yield file.close()


class _OpenFile:
    def __init__(self, location: str, options: Mapping[str, str], values: Values) -> None:
        folders = "".join(f"{name}={_folder_name(value)}/" for name, value in values.items())
        self.values = values
        self._path = f"{folders}part-{uuid.uuid4().hex}.zstd.parquet"
        self._location = location
        self._store = _file_system(location, options)
        self._stream: Any = None
        self._writer: Any = None
        self._rows: list[pa.RecordBatch] = []
        self._nbytes = self._count = 0

    def add_rows(self, rows: pa.RecordBatch) -> None:
        self._rows.append(rows)
        self._count += rows.num_rows
        self._nbytes += rows.nbytes
        if self._nbytes >= _ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self) -> DeltaFile:
        if self._rows:
            self._write_row_group()
        with explained(self._location):
            self._writer.close()
            self._stream.close()
            nbytes = self._store.get_file_info(self._path).size
            if "://" not in self._location:
                table, path = Path(self._location), Path(self._location, self._path)
                for part in (path, *(folder for folder in path.parents if table in folder.parents)):
                    sync(part)
                sync(table)
        return DeltaFile(self._path, nbytes, self._count, self.values)

    def _write_row_group(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = pa.Table.from_batches(self._rows)
        with explained(self._location):
            if self._writer is None:
                self._stream = self._store.open_output_stream(self._path)
                self._writer = pq.ParquetWriter(self._stream, rows.schema, compression="zstd")
            self._writer.write_table(rows)
        self._rows, self._nbytes = [], 0


def _runs(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The parts of a batch with equal values of these columns, without the columns."""
    import pyarrow.compute as pc

    ends = {batch.num_rows}
    for name in names:
        ends.update(pc.run_end_encode(batch.column(name)).run_ends.to_pylist())
    rest = batch.drop_columns([*names]) if names else batch
    start = 0
    for end in sorted(ends):
        if end > start:
            values = {name: as_text(batch.column(name)[start].as_py()) for name in names}
            yield values, rest.slice(start, end - start)
        start = end


def as_text(value: object) -> str | None:
    """A partition's value, as Delta writes it."""
    return None if value is None else str(value)


def _folder_name(value: str | None) -> str:
    """Without characters that have a meaning in a path; Hive's name for a null."""
    return "__HIVE_DEFAULT_PARTITION__" if value is None else quote(value, safe="")


# Reading


def read_files(
    files: Iterable[DeltaFile], location: str, options: Mapping[str, str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of files, with the columns of their partitions. Raises StoreError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    store = _file_system(location, options)
    for found in files:
        with explained(location), store.open_input_file(found.path) as stream:
            for rows in pq.ParquetFile(stream).iter_batches(_READ_ROWS):
                columns = [
                    pa.array([found.values[field.name]], pa.string())
                    .take(pa.repeat(0, len(rows)))
                    .cast(field.type)
                    if field.name in found.values
                    else rows.column(field.name).cast(field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


# deltalake


def import_deltalake() -> Any:
    """The package. Raises SetupError: it is not installed."""
    # It would warn for each file that a binary column has no statistics.
    os.environ.setdefault("RUST_LOG", "error")
    try:
        import deltalake
    except ImportError as error:
        raise SetupError(
            "a Delta table needs the package deltalake: run `pip install 'trionsq[delta]'`, also "
            "on the workers"
        ) from error
    return deltalake


def _file_system(location: str, options: Mapping[str, str]) -> Any:
    import_deltalake()
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(location, dict(options)))


@contextlib.contextmanager
def explained(location: str) -> Iterator[None]:
    """Errors of deltalake and pyarrow as ours; TableNotFoundError stays.

    Raises:
        FolderError: another attempt would fail as well.
        StoreError: it may succeed.
    """
    import pyarrow as pa

    errors = import_deltalake().exceptions
    try:
        yield
    except errors.TableNotFoundError:
        raise
    except (errors.DeltaProtocolError, errors.SchemaMismatchError) as error:
        raise FolderError(f"{location} can't be used: {_in_one_line(error)}") from error
    except (errors.DeltaError, pa.ArrowException, OSError) as error:
        raise StoreError(f"{location}: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    """The text without deltalake's arrows, colours and line breaks."""
    return " ".join(_DECORATION.sub("", str(error)).split())
