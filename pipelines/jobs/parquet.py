"""A folder of Parquet files in which each microbatch of a query appears once, whatever crashes.

Spark writes a microbatch below ``_staging``, which is not part of the table: Spark and pyarrow skip
it, others have to be given the files. When it is complete its files are renamed into place, with
the query's id and the microbatch's number in their names. A microbatch that is repeated after a
crash resumes: it is written again, or its renames are completed, or there is nothing to do. So any
reader of the files sees whole ones and each row once, and needs no log of Spark's to know which
files count.

Renames need a mounted folder (local, NFS): an object store has none.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.errors import FolderError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "ParquetTable",
    "complete",
    "is_complete",
    "last_published",
    "parquet_files",
    "partition_folders",
    "publish_batch",
    "replace_file",
    "sync",
]

_COMPLETE: Final = "_COMPLETE"
_PART: Final = re.compile(r"part-([0-9]+)-.*?(c[0-9]+)\.")


class ParquetTable:
    """The folder that a query writes its microbatches to."""

    def __init__(
        self, path: Path, *, partition_by: Sequence[str] = (), compression: str = "zstd"
    ) -> None:
        """*partition_by*: columns that become folders, ``date=2026-11-21``.

        Raises FolderError: the folder has a Delta table.
        """
        if (path / "_delta_log").exists():
            raise FolderError(f"{path} is a Delta table: add --format=delta")
        self.path = path
        self._partition_by = tuple(partition_by)
        self._compression = compression

    def write(self, frame: DataFrame, query_id: str, batch: int) -> None:
        """Write a microbatch, unless it is published already.

        Raises:
            FolderError: the folder can't be written.
        """
        try:
            if batch <= last_published(self.path, query_id):
                return
            stage = self.path / "_staging" / query_id / str(batch)
            if not is_complete(stage):
                shutil.rmtree(stage, ignore_errors=True)
                writer = frame.write.option("compression", self._compression)
                writer.partitionBy(*self._partition_by).parquet(str(stage))
                complete(stage)
            publish_batch(self.path, query_id, batch)
        except OSError as error:
            raise FolderError(f"{self.path} can't be written: {error}") from error


def partition_folders(table: Path) -> Iterator[Path]:
    """The table and all folders of partitions.

    Not those whose names begin with ``_`` or ``.``: a job may be writing there, and remove them.
    """
    for name, folders, _ in os.walk(table):
        folders[:] = sorted(folder for folder in folders if not folder.startswith(("_", ".")))
        yield Path(name)


def parquet_files(folder: Path) -> list[Path]:
    """The files of the table in one of its folders."""
    return [path for path in folder.glob("*.parquet") if not path.name.startswith(("_", "."))]


def last_published(table: Path, query_id: str) -> int:
    """The last microbatch of a query whose files are all in place, or -1. Raises OSError."""
    try:
        return int((table / "_published" / query_id).read_text(encoding="ascii"))
    except FileNotFoundError:
        return -1


def publish_batch(table: Path, query_id: str, batch: int) -> None:
    """Rename the files of a complete microbatch into place; idempotent. Raises OSError."""
    stage = table / "_staging" / query_id / str(batch)
    folders = set()
    for path in sorted(stage.rglob("*.parquet")):
        folder = table / path.parent.relative_to(stage)
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / f"{query_id[:8]}-{batch:08}-{_part_of(path.name)}.parquet")
        folders.add(folder)
    (table / "_published").mkdir(exist_ok=True)
    between = {parent for folder in folders for parent in _between(folder, table)}
    for changed in {table} | folders | between:
        sync(changed)
    replace_file(table / "_published" / query_id, str(batch).encode())
    shutil.rmtree(stage)


def _between(folder: Path, table: Path) -> list[Path]:
    return [parent for parent in folder.parents if parent == table or table in parent.parents]


def _part_of(name: str) -> str:
    """Spark's numbers of the task and the file, the same when a microbatch is written again."""
    match = _PART.match(name)
    return f"{match[1]}-{match[2]}" if match else name.removesuffix(".parquet")


# Files that survive a power cut: whole, or absent


def complete(folder: Path) -> None:
    """Make the Parquet files below a folder durable, then mark it. Raises OSError.

    Spark's ``_SUCCESS`` may survive a power cut that the files before it do not survive.
    """
    files = list(folder.rglob("*.parquet"))
    for path in (*files, *{parent for file in files for parent in _between(file, folder)}):
        sync(path)
    replace_file(folder / _COMPLETE, b"")


def is_complete(folder: Path) -> bool:
    """Whether `complete` has marked the folder."""
    return (folder / _COMPLETE).exists()


def sync(path: Path) -> None:
    """fsync a file or a folder. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file or replace it; durable when this returns. Raises OSError."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_bytes(data)
    sync(draft)
    draft.replace(path)
    sync(path.parent)
