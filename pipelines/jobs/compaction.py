"""Small Parquet files joined to larger ones, while a job adds new ones.

Each folder's small files become one of about the wanted size. The new file is written aside, a
journal names it and what it replaces, it is renamed into place, and the old ones go. A crash at
any moment is put right by the next run: no row is lost or stays twice. For the moment between the
rename and the last removal a reader that lists the folder sees rows of both; a reader that takes
the lock (`reading`) does not.
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
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.jobs.files import FolderError, replace_file, sync

__all__ = ["Compacted", "batches_of", "compact", "groups", "reading", "recover"]

_ASIDE: Final = "_compaction"
# Fewer are not worth a rewrite, unless they fill a file of the wanted size.
_FILES_MIN: Final = 4
_READ_NBYTES: Final = 16 << 20
_ROW_GROUP_NBYTES: Final = 64 << 20


@dataclass(slots=True)
class Compacted:
    """What a run did: files that were replaced, files that replace them, their rows."""

    before: int = 0
    after: int = 0
    rows: int = 0


def compact(
    table: Path,
    target_nbytes: int,
    should_stop: Callable[[], bool] = lambda: False,
    compression: str = "zstd",
) -> Compacted | None:
    """Join the small files of every folder; None if someone else does so, or reads.

    Args:
        table: the folder above the partitions.
        target_nbytes: of a file; those of at least half of it stay as they are.
        should_stop: asked now and then; what is begun is then given up.
        compression: of the new files.

    Raises:
        FolderError: a file is damaged, or the folder can't be written.
    """
    done = Compacted()
    try:
        with _locked(table, fcntl.LOCK_EX) as is_locked:
            if not is_locked:
                return None
            recover(table)
            for folder in _folders(table):
                for files in groups(_small_files(folder, target_nbytes), target_nbytes):
                    for alike in _alike(folder, files):
                        if len(alike) < 2:
                            continue
                        if should_stop():
                            return done
                        rows = _join(table, folder, alike, compression, should_stop)
                        if rows is not None:
                            done.before += len(alike)
                            done.after += 1
                            done.rows += rows
    except (OSError, pa.ArrowException) as error:
        raise FolderError(f"{table} can't be compacted: {error}") from error
    return done


@contextlib.contextmanager
def reading(table: Path) -> Iterator[None]:
    """Keep the files as they are meanwhile; new ones may come.

    Raises:
        FolderError: a compaction is going on, or the folder can't be used.
    """
    try:
        with _locked(table, fcntl.LOCK_EX) as is_alone:
            if is_alone:
                recover(table)
        with _locked(table, fcntl.LOCK_SH) as is_locked:
            if not is_locked:
                raise FolderError(f"{table} is being compacted: try again when that is over")
            yield
    except OSError as error:
        raise FolderError(f"{table} can't be used: {error}") from error


def recover(table: Path) -> None:
    """Finish, or undo, what a crash has left. The lock is held. Raises OSError."""
    aside = table / _ASIDE
    for journal in aside.glob("*.json"):
        told: dict[str, Any] = json.loads(journal.read_bytes())
        folder = table / told["folder"]
        if (folder / told["output"]).exists():
            _remove(folder, told["inputs"])
        journal.unlink()
    for draft in aside.glob("*.parquet"):
        draft.unlink()


def groups(files: list[tuple[str, int]], target_nbytes: int) -> list[list[str]]:
    """Which files to join: in order, about `target_nbytes` together.

    Args:
        files: name and size of the small ones.
        target_nbytes: a group is complete with it; another one needs several files.
    """
    found: list[list[str]] = []
    group: list[str] = []
    nbytes = 0
    for name, size in sorted(files):
        group.append(name)
        nbytes += size
        if nbytes >= target_nbytes:
            found.append(group)
            group, nbytes = [], 0
    if len(group) >= _FILES_MIN:
        found.append(group)
    return [group for group in found if len(group) > 1]


@contextlib.contextmanager
def _locked(table: Path, kind: int) -> Iterator[bool]:
    """The lock, if it is free."""
    aside = table / _ASIDE
    aside.mkdir(parents=True, exist_ok=True)
    fd = os.open(aside / "LOCK", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _folders(table: Path) -> Iterator[Path]:
    """The table and all folders of partitions."""
    for name, folders, _ in os.walk(table):
        folders[:] = sorted(one for one in folders if not one.startswith(("_", ".")))
        yield Path(name)


def _small_files(folder: Path, target_nbytes: int) -> list[tuple[str, int]]:
    sizes = [
        (path.name, path.stat().st_size)
        for path in folder.glob("*.parquet")
        if not path.name.startswith(("_", "."))
    ]
    return [(name, size) for name, size in sizes if size < target_nbytes // 2]


def _alike(folder: Path, names: list[str]) -> Iterator[list[str]]:
    """The files cut where the columns change: those of another version of a job stay apart."""
    run: list[str] = []
    before = None
    for name in names:
        schema = pq.read_schema(folder / name).remove_metadata()
        if before is not None and schema != before:
            yield run
            run = []
        run.append(name)
        before = schema
    yield run


def _join(
    table: Path,
    folder: Path,
    names: list[str],
    compression: str,
    should_stop: Callable[[], bool],
) -> int | None:
    """The rows of the new file that replaced the others; None if it was given up."""
    output = f"compacted-{uuid.uuid4().hex}.parquet"
    draft = table / _ASIDE / output
    rows = _write(draft, [folder / name for name in names], compression, should_stop)
    if rows is None:
        draft.unlink(missing_ok=True)
        return None
    sync(draft)
    journal = draft.with_suffix(".json")
    told = {"folder": str(folder.relative_to(table)), "output": output, "inputs": names}
    replace_file(journal, json.dumps(told).encode())
    draft.rename(folder / output)
    sync(folder)
    _remove(folder, names)
    journal.unlink()
    return rows


def _remove(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)
    sync(folder)


def _write(
    draft: Path, paths: list[Path], compression: str, should_stop: Callable[[], bool]
) -> int | None:
    rows = nbytes = 0
    schema = pq.read_schema(paths[0])
    with pq.ParquetWriter(draft, schema, compression=compression) as writer:
        waiting: list[pa.RecordBatch] = []
        for path in paths:
            for batch in batches_of(path):
                if should_stop():
                    return None
                waiting.append(batch)
                rows += len(batch)
                nbytes += batch.nbytes
                if nbytes >= _ROW_GROUP_NBYTES:
                    writer.write_table(pa.Table.from_batches(waiting))
                    waiting.clear()
                    nbytes = 0
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
    return rows


def batches_of(path: Path) -> Iterator[pa.RecordBatch]:
    """A file's rows, not too many bytes at a time."""
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        nbytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        rows = max(1, min(100_000, _READ_NBYTES * metadata.num_rows // max(1, nbytes)))
        yield from file.iter_batches(rows)
