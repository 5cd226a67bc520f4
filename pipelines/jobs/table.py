"""A folder of Parquet files in which each batch of a query appears once, whatever crashes.

Spark writes a batch below ``_staging``, which readers pass over; when it is complete its files are
renamed into place, under names made of the query and the batch. A batch that comes again after a
crash goes on where it was: it is written anew, or its renaming is finished, or nothing is left to
do. So any reader of Parquet sees whole files, and each row once: no log of Spark's is needed to
tell which files count.

Renames need a folder that is mounted (local, NFS): an object store has none.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.jobs.files import FolderError, replace_file, sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Table", "publish_batch", "published"]

_START_LIMIT_S: Final = 60.0
_PART: Final = re.compile(r"part-([0-9]+)-.*?(c[0-9]+)\.")


class Table:
    """Where a query's batches go."""

    def __init__(
        self, path: Path, *, partition_by: Sequence[str] = (), compression: str = "zstd"
    ) -> None:
        """*partition_by*: columns that become folders, ``date=2026-11-21``."""
        self.path = path
        self._partition_by = tuple(partition_by)
        self._compression = compression
        self._query_id: Future[str] = Future()

    def begin(self, query_id: str) -> None:
        """Whose batches they are: Spark keeps the id in the checkpoint."""
        self._query_id.set_result(query_id)

    def write(self, frame: DataFrame, batch: int) -> None:
        """Write a batch, unless it is there already.

        Raises:
            FolderError: the folder can't be written.
        """
        # The first batch may be here before `begin`.
        query_id = self._query_id.result(timeout=_START_LIMIT_S)
        try:
            if batch <= published(self.path, query_id):
                return
            stage = self.path / "_staging" / query_id / str(batch)
            if not (stage / "_SUCCESS").exists():
                shutil.rmtree(stage, ignore_errors=True)
                writer = frame.write.option("compression", self._compression)
                writer.partitionBy(*self._partition_by).parquet(str(stage))
            publish_batch(self.path, query_id, batch)
        except OSError as error:
            raise FolderError(f"{self.path} can't be written: {error}") from error


def published(table: Path, query_id: str) -> int:
    """The last batch of a query that is wholly there, or -1. Raises OSError."""
    try:
        return int((table / "_published" / query_id).read_text(encoding="ascii"))
    except FileNotFoundError:
        return -1


def publish_batch(table: Path, query_id: str, batch: int) -> None:
    """Rename the files of a complete batch into place; may be done again. Raises OSError."""
    stage = table / "_staging" / query_id / str(batch)
    files = sorted(stage.rglob("*.parquet"))
    for path in (*files, stage / "_SUCCESS", *{path.parent for path in files}, stage):
        sync(path)
    folders = set()
    for path in files:
        folder = table / path.parent.relative_to(stage)
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / f"{query_id[:8]}-{batch:08}-{_part_of(path.name)}.parquet")
        folders.add(folder)
    for changed in folders | {parent for folder in folders for parent in _between(folder, table)}:
        sync(changed)
    (table / "_published").mkdir(exist_ok=True)
    replace_file(table / "_published" / query_id, str(batch).encode())
    shutil.rmtree(stage)


def _between(folder: Path, table: Path) -> list[Path]:
    return [parent for parent in folder.parents if parent == table or table in parent.parents]


def _part_of(name: str) -> str:
    """Spark's number of the task and the file: equal when a batch is written again."""
    found = _PART.match(name)
    return f"{found[1]}-{found[2]}" if found else name.removesuffix(".parquet")
