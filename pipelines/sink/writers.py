"""The writers that Spark calls: direct (at least once), and staged (once a microbatch is complete).

Direct: tasks publish, and succeed when nsqd has confirmed every row. A task that is retried, or
runs twice, publishes its rows again.

Staged: tasks write files, and the driver publishes them when all tasks of the microbatch have
succeeded. The file of a task that was retried, or ran twice, is removed. `pipelines.sink.stage`
says what is guaranteed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import trio
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pipelines.errors import StageError, WalLockedError
from pipelines.sink.commands import CommandBatch, check_batch, command_batches
from pipelines.sink.nsqds import open_nsqds
from pipelines.sink.options import SinkOptions
from pipelines.sink.stage import Stage
from pipelines.sink.stagedfile import StagedFile
from pipelines.wal.meta import lock_log
from trionsq.disk import RealDisk

__all__ = [
    "NsqStagedWriter",
    "NsqStreamWriter",
    "NsqWriter",
    "PublishedRows",
    "StagedRows",
    "publish",
]

# A local property that only tasks have. The id is the checkpoint's, the same after a restart.
_QUERY_ID: Final = "sql.streaming.queryId"
_LOCK_RETRY_S: Final = 0.1

# Direct


@dataclass(frozen=True)
class PublishedRows(WriterCommitMessage):
    """The number of messages that a task has published; all are confirmed."""

    rows: int


class NsqWriter(DataSourceArrowWriter):
    """The writer of ``df.write``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        """Publish the rows of a task. Raises SinkError; see `publish`."""
        return PublishedRows(publish(iterator, self._options, _task_number()))


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        """Publish the rows of a task. Raises SinkError; see `publish`."""
        return PublishedRows(publish(iterator, self._options, _task_number()))


def publish(batches: Iterator[pa.RecordBatch], options: SinkOptions, first: int = 0) -> int:
    """Publish all rows; their number, once all are confirmed.

    Args:
        batches: with the columns of the sink. Another thread reads them.
        options: of the sink.
        first: index of the nsqd to begin with.

    Raises:
        ColumnsError, RowsError: rows can't be messages.
        PublishError: nsqd refused them, or can't be reached. Some may have been published.
    """
    return trio.run(_publish, batches, options, first)


async def _publish(batches: Iterator[pa.RecordBatch], options: SinkOptions, first: int) -> int:
    failures: list[Exception] = []
    rows = 0
    async with open_nsqds(options, first) as nsqds, trio.open_nursery() as tasks:
        send, receive = trio.open_memory_channel[CommandBatch](0)

        async def publish_all(command_channel: trio.MemoryReceiveChannel[CommandBatch]) -> None:
            try:
                async for batch in command_channel:
                    await nsqds.publish(batch)
            except Exception as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        for number in range(nsqds.count * options.unconfirmed):
            tasks.start_soon(publish_all, receive.clone(), name=f"publisher {number}")
        try:
            async with send:
                rows = await _send_commands(batches, options, send)
        except Exception as error:
            failures.append(error)
            tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return rows


async def _send_commands(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    send: trio.MemorySendChannel[CommandBatch],
) -> int:
    rows = 0
    # In a thread: heartbeats are answered while Spark has no rows yet.
    while (batch := await trio.to_thread.run_sync(next, batches, None)) is not None:
        check_batch(batch.schema, options.topic)
        for command_batch in command_batches(batch, options.topic, options.limits):
            await send.send(command_batch)
        rows += batch.num_rows
    return rows


def _task_number() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


# Staged


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """The file that a task has staged (None for no rows), and the id of its query."""

    query: str
    file: StagedFile | None


class NsqStagedWriter(DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream`` with ``mode=staged``."""

    def __init__(self, options: SinkOptions) -> None:
        assert options.stage_path is not None
        self._options = options
        self._path = options.stage_path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of a task. Raises ColumnsError, RowsError, StageError."""
        query = _query_id()
        return StagedRows(query, self._stage().write(query, self._commands(iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the microbatch, or the rest of it. Raises StageError, PublishError."""
        query, files = _staged_files(messages)
        if query is not None:
            with self._locked() as stage:
                trio.run(self._commit, stage, query, batchId, files)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged files, unless publishing has begun. Raises StageError."""
        query, files = _staged_files(messages)
        # If no task reported, the next commit removes the files.
        if query is not None:
            with self._locked() as stage:
                stage.abandon(query, files)

    async def _commit(
        self, stage: Stage, query: str, batch: int, files: Sequence[StagedFile]
    ) -> None:
        async with open_nsqds(self._options, batch) as nsqds:
            await stage.commit(query, batch, files, nsqds.publish)

    def _commands(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterator[CommandBatch]]:
        options = self._options
        for batch in batches:
            check_batch(batch.schema, options.topic)
            yield command_batches(batch, options.topic, options.limits)

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


def _staged_files(
    messages: Sequence[WriterCommitMessage | None],
) -> tuple[str | None, list[StagedFile]]:
    """The id of the query, None if no task reported one, and the files of its tasks."""
    reports = [message for message in messages if isinstance(message, StagedRows)]
    files = [report.file for report in reports if report.file is not None]
    return (reports[0].query if reports else None), files


def _query_id() -> str:
    context = TaskContext.get()
    return (context and context.getLocalProperty(_QUERY_ID)) or ""
