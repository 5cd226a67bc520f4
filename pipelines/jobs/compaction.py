"""Small Parquet files of a table joined to larger ones, while jobs add to the table.

The small files of a folder become one of about the target size. The new file is written to
``_compaction``, a journal there names it and the files it replaces, it is renamed into place, and
the old files are removed. After a crash the next run completes or undoes this: no row is lost or
duplicated. Between the rename and the last removal a reader that lists the folder sees rows of
both; a reader that takes the lock (`read_lock`) does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.errors import FolderError
from pipelines.jobs.parquet import parquet_files, partition_folders, replace_file, sync

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CompactionResult",
    "batches_of",
    "compact_table",
    "group_files",
    "read_lock",
    "recover",
]

_FOLDER: Final = "_compaction"
# Fewer are not worth a rewrite, unless they fill a file of the target size.
_MIN_FILES: Final = 4
_READ_BYTES: Final = 16 << 20
_ROW_GROUP_BYTES: Final = 64 << 20


@dataclass(slots=True)
class CompactionResult:
    """Numbers of replaced files, and of the files that replace them."""

    old_files: int = 0
    new_files: int = 0


def compact_table(
    table: Path,
    target_bytes: int,
    should_stop: Callable[[], bool] = lambda: False,
    compression: str = "zstd",
) -> CompactionResult | None:
    """Join the small files of every folder; None if another process compacts or reads the table.

    Args:
        table: the folder above the partitions.
        target_bytes: size of a new file; files of at least half of it stay as they are.
        should_stop: called for each batch of rows; true abandons the file being written.
        compression: of the new files.

    Raises:
        FolderError: a file is damaged, or the folder can't be written.
    """
    import pyarrow as pa

    result = CompactionResult()
    try:
        with _locked(table, fcntl.LOCK_EX) as is_locked:
            if not is_locked:
                return None
            recover(table)
            for folder, names in _groups_in(table, target_bytes):
                if should_stop():
                    return result
                if _join(table, folder, names, compression, should_stop):
                    result.old_files += len(names)
                    result.new_files += 1
    except (OSError, pa.ArrowException) as error:
        raise FolderError(f"{table} can't be compacted: {error}") from error
    return result


@contextlib.contextmanager
def read_lock(table: Path) -> Iterator[None]:
    """Keep files from being replaced while the block runs; new files may be added.

    Raises:
        FolderError: a compaction is running, or the folder can't be used.
    """
    try:
        with _locked(table, fcntl.LOCK_EX) as is_exclusive:
            if is_exclusive:
                recover(table)
        with _locked(table, fcntl.LOCK_SH) as is_locked:
            if not is_locked:
                raise FolderError(f"{table} is being compacted: try again when that is over")
            yield
    except OSError as error:
        raise FolderError(f"{table} can't be used: {error}") from error


def recover(table: Path) -> None:
    """Complete or undo a compaction that crashed. The caller holds the lock. Raises OSError."""
    work = table / _FOLDER
    for journal in work.glob("*.json"):
        entry: dict[str, Any] = json.loads(journal.read_bytes())
        folder = table / entry["folder"]
        if (folder / entry["output"]).exists():
            _remove(folder, entry["inputs"])
        journal.unlink()
    for draft in work.glob("*.parquet"):
        draft.unlink()


def group_files(files: list[tuple[str, int]], target_bytes: int) -> list[list[str]]:
    """The files to join with each other: in order, about ``target_bytes`` together.

    Args:
        files: names and sizes of the small files.
        target_bytes: completes a group; the last group may have less if it has several files.
    """
    groups: list[list[str]] = []
    group: list[str] = []
    nbytes = 0
    for name, file_bytes in sorted(files):
        group.append(name)
        nbytes += file_bytes
        if nbytes >= target_bytes:
            groups.append(group)
            group, nbytes = [], 0
    if len(group) >= _MIN_FILES:
        groups.append(group)
    return [group for group in groups if len(group) > 1]


@contextlib.contextmanager
def _locked(table: Path, kind: int) -> Iterator[bool]:
    """Take the lock without waiting; whether it was free."""
    work = table / _FOLDER
    work.mkdir(parents=True, exist_ok=True)
    fd = os.open(work / "LOCK", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _groups_in(table: Path, target_bytes: int) -> Iterator[tuple[Path, list[str]]]:
    """Folders and the files in them to join, two at least and with equal columns."""
    for folder in partition_folders(table):
        for names in group_files(_small_files(folder, target_bytes), target_bytes):
            for group in _with_equal_columns(folder, names):
                if len(group) > 1:
                    yield folder, group


def _small_files(folder: Path, target_bytes: int) -> list[tuple[str, int]]:
    sizes = [(path.name, path.stat().st_size) for path in parquet_files(folder)]
    return [(name, file_bytes) for name, file_bytes in sizes if file_bytes < target_bytes // 2]


def _with_equal_columns(folder: Path, names: list[str]) -> Iterator[list[str]]:
    """The files, split where the columns change: another version of a job may have written some."""
    import pyarrow.parquet as pq

    group: list[str] = []
    previous = None
    for name in names:
        schema = pq.read_schema(folder / name).remove_metadata()
        if previous is not None and schema != previous:
            yield group
            group = []
        group.append(name)
        previous = schema
    yield group


def _join(
    table: Path,
    folder: Path,
    names: list[str],
    compression: str,
    should_stop: Callable[[], bool],
) -> bool:
    """Replace the files by one; whether that was done, and not abandoned."""
    output = f"compacted-{uuid.uuid4().hex}.parquet"
    draft = table / _FOLDER / output
    if not _write(draft, [folder / name for name in names], compression, should_stop):
        draft.unlink(missing_ok=True)
        return False
    sync(draft)
    journal = draft.with_suffix(".json")
    entry = {"folder": str(folder.relative_to(table)), "output": output, "inputs": names}
    replace_file(journal, json.dumps(entry).encode())
    draft.rename(folder / output)
    sync(folder)
    _remove(folder, names)
    journal.unlink()
    return True


def _remove(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)
    sync(folder)


def _write(
    draft: Path, paths: list[Path], compression: str, should_stop: Callable[[], bool]
) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    nbytes = 0
    schema = pq.read_schema(paths[0])
    with pq.ParquetWriter(draft, schema, compression=compression) as writer:
        batches: list[pa.RecordBatch] = []
        for path in paths:
            for batch in batches_of(path):
                if should_stop():
                    return False
                batches.append(batch)
                nbytes += batch.nbytes
                if nbytes >= _ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(batches))
                    batches.clear()
                    nbytes = 0
        if batches:
            writer.write_table(pa.Table.from_batches(batches))
    return True


def batches_of(path: Path) -> Iterator[pa.RecordBatch]:
    """A file's rows in record batches of about 16 MiB, and at most 100,000 rows."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        nbytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        rows = max(1, min(100_000, _READ_BYTES * metadata.num_rows // max(1, nbytes)))
        yield from file.iter_batches(rows)
