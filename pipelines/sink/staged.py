"""Exactly staged: tasks write files, and the driver publishes them when the batch is complete.

Nothing of a batch is published before all of its tasks have succeeded; a task that is tried again
or runs twice leaves a file that is removed. See `pipelines.sink.stage` for what is promised.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pipelines.sink.columns import check_batch
from pipelines.sink.errors import StageError
from pipelines.sink.nsqds import open_nsqds
from pipelines.sink.options import SinkOptions
from pipelines.sink.parcels import Parcel, parcels_of
from pipelines.sink.stage import Stage, StagedFile
from pipelines.wal import WalLockedError
from pipelines.wal.meta import lock_log
from trionsq.disk import RealDisk

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NsqStagedWriter", "Staged"]

# Spark tells it to tasks only; it is the checkpoint's, the same after a restart.
_QUERY_ID: Final = "sql.streaming.queryId"
_LOCK_RETRY_S: Final = 0.1


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task has staged, and for which query. ``file`` is None for no rows."""

    query: str
    file: StagedFile | None


class NsqStagedWriter(DataSourceStreamArrowWriter):
    """For ``df.writeStream`` with ``mode=staged``."""

    def __init__(self, options: SinkOptions) -> None:
        assert options.stage_path is not None
        self._options = options
        self._path = options.stage_path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task. Raises ColumnsError, RowsError, StageError."""
        query = _query_id()
        return Staged(query, self._stage().write(query, self._parcels(iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the batch, or what is left of it. Raises StageError, PublishError."""
        query, files = _staged(messages)
        if query is not None:
            with self._locked() as stage:
                trio.run(self._commit, stage, query, batchId, files)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what tasks have staged, but for a batch that is begun. Raises StageError."""
        query, files = _staged(messages)
        # If no task told, the next commit clears up.
        if query is not None:
            with self._locked() as stage:
                stage.abandon(query, files)

    async def _commit(
        self, stage: Stage, query: str, batch: int, files: Sequence[StagedFile]
    ) -> None:
        async with open_nsqds(self._options, batch) as nsqds:
            await stage.commit(query, batch, files, nsqds.deliver)

    def _parcels(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterator[Parcel]]:
        options = self._options
        for batch in batches:
            check_batch(batch.schema, options.topic)
            yield parcels_of(batch, options.topic, options.limits)

    def _stage(self) -> Stage:
        try:
            os.makedirs(self._path, exist_ok=True)
        except OSError as error:
            raise StageError(f"stagePath can't be made: {error}") from error
        return Stage(RealDisk(os.path.abspath(self._path), mode=0o644))

    @contextmanager
    def _locked(self) -> Iterator[Stage]:
        stage = self._stage()
        deadline_s = time.monotonic() + self._options.lock_timeout_s
        while True:
            try:
                lock = lock_log(self._path)
            except WalLockedError:
                if time.monotonic() >= deadline_s:
                    raise StageError(
                        f"another process publishes from {self._path}; each query needs a "
                        "stagePath of its own"
                    ) from None
            except OSError as error:
                raise StageError(f"{self._path} can't be locked: {error}") from error
            else:
                break
            time.sleep(_LOCK_RETRY_S)
        try:
            yield stage
        finally:
            lock.release()


def _staged(
    messages: Sequence[WriterCommitMessage | None],
) -> tuple[str | None, list[StagedFile]]:
    """Whose tasks they were, None if nobody tells, and their files."""
    staged = [message for message in messages if isinstance(message, Staged)]
    files = [message.file for message in staged if message.file is not None]
    return (staged[0].query if staged else None), files


def _query_id() -> str:
    context = TaskContext.get()
    return (context and context.getLocalProperty(_QUERY_ID)) or ""
