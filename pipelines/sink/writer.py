"""At least once: tasks publish, and succeed when nsqd has confirmed every row.

A task that is tried again, or runs twice, publishes its rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pipelines.sink.columns import check_batch
from pipelines.sink.nsqds import open_nsqds
from pipelines.sink.options import SinkOptions
from pipelines.sink.parcels import Parcel, parcels_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NsqStreamWriter", "NsqWriter", "Published", "publish"]


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """What a task has published: messages, all confirmed."""

    rows: int


class NsqWriter(DataSourceArrowWriter):
    """For ``df.write``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of a task. Raises SinkError; see `publish`."""
        return Published(publish(iterator, self._options, _task_number()))


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """For ``df.writeStream``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of a task. Raises SinkError; see `publish`."""
        return Published(publish(iterator, self._options, _task_number()))


def publish(batches: Iterator[pa.RecordBatch], options: SinkOptions, first: int = 0) -> int:
    """Publish all rows; how many, when all of them are confirmed.

    Args:
        batches: with the columns of the sink. Taken from in another thread.
        options: where to, and how.
        first: which nsqd is the first.

    Raises:
        ColumnsError, RowsError: they can't be messages.
        PublishError: nsqd refused them, or can't be reached. Some may have been published.
    """
    return trio.run(_publish, batches, options, first)


async def _publish(batches: Iterator[pa.RecordBatch], options: SinkOptions, first: int) -> int:
    failures: list[Exception] = []
    rows = 0
    async with open_nsqds(options, first) as nsqds, trio.open_nursery() as tasks:
        send, receive = trio.open_memory_channel[Parcel](0)

        async def deliver(parcels: trio.MemoryReceiveChannel[Parcel]) -> None:
            try:
                async for parcel in parcels:
                    await nsqds.deliver(parcel)
            except Exception as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        for number in range(nsqds.count * options.unconfirmed):
            tasks.start_soon(deliver, receive.clone(), name=f"publisher {number}")
        try:
            async with send:
                rows = await _hand_out(batches, options, send)
        except Exception as error:
            failures.append(error)
            tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return rows


async def _hand_out(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, send: trio.MemorySendChannel[Parcel]
) -> int:
    rows = 0
    # In a thread: while Spark has nothing yet, heartbeats are answered.
    while (batch := await trio.to_thread.run_sync(next, batches, None)) is not None:
        check_batch(batch.schema, options.topic)
        for parcel in parcels_of(batch, options.topic, options.limits):
            await send.send(parcel)
        rows += batch.num_rows
    return rows


def _task_number() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
