"""Partitions of a range of the log, how a task reads one, and the batch read of a whole log.

The batch read may run while a query writes the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pipelines.errors import WalRangeError
from pipelines.source.options import BatchOptions, logs_root
from pipelines.source.times import first_position
from pipelines.wal import LogView, SegmentRef, open_logs, read_segment

__all__ = [
    "LogPartition",
    "NsqBatchReader",
    "SegmentSlice",
    "partitions_of",
    "read_partition",
    "slices_of",
]

# Starting a task costs about as much as reading this many small messages.
MESSAGES_PER_TASK: Final = 50_000
_MAX_BATCH_BYTES: Final = 32 << 20


class SegmentSlice(NamedTuple):
    """A part of a segment: the positions from ``start`` to before ``end``."""

    ref: SegmentRef
    start: int
    end: int


class LogPartition(InputPartition):
    """The part of the log that one task reads. ``may_lack``: removed files are skipped."""

    def __init__(self, slices: Sequence[SegmentSlice], *, may_lack: bool = False) -> None:
        super().__init__(None)
        self.slices = tuple(slices)
        self.may_lack = may_lack


def slices_of(refs: Sequence[SegmentRef], start: int, end: int) -> list[SegmentSlice]:
    """The parts of the segments with the positions from ``start`` to before ``end``, in order."""
    return [
        SegmentSlice(ref, max(start, ref.first), min(end, ref.end))
        for ref in refs
        if ref.first < end and ref.end > start
    ]


def partitions_of(
    slices: Sequence[SegmentSlice],
    minimum: int,
    max_messages: int = MESSAGES_PER_TASK,
    *,
    may_lack: bool = False,
) -> list[LogPartition]:
    """Split the slices, of one log or of several, into even partitions, in order.

    Args:
        slices: what is to be read.
        minimum: of partitions; there are fewer if there are fewer messages.
        max_messages: of a partition.
        may_lack: see `LogPartition`.
    """
    count = sum(part.end - part.start for part in slices)
    number = min(count, max(minimum, -(-count // max_messages)))
    limits = [count * index // number for index in range(1, number + 1)]
    partitions: list[LogPartition] = []
    current: list[SegmentSlice] = []
    done = 0
    for ref, start, end in slices:
        while start < end:
            part = SegmentSlice(ref, start, min(end, start + limits[len(partitions)] - done))
            current.append(part)
            done += part.end - start
            start = part.end
            if done == limits[len(partitions)]:
                partitions.append(LogPartition(current, may_lack=may_lack))
                current = []
    return partitions


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The messages, in record batches of at most about 32 MiB.

    Raises:
        WalRangeError: a file was removed, and ``may_lack`` is false.
        WalDamagedError, WalError: a file is damaged, or can't be read.
    """
    # Spark passes an empty partition of its own where a batch read has none.
    if not isinstance(partition, LogPartition):
        return
    for segment_slice in partition.slices:
        try:
            for batch in read_segment(*segment_slice):
                yield from _split(batch)
        except WalRangeError:
            if not partition.may_lack:
                raise


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of at most `_MAX_BATCH_BYTES`, if messages are of about the same size."""
    parts = -(-batch.nbytes // _MAX_BATCH_BYTES)
    rows = max(1, batch.num_rows // max(1, parts))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


# The batch read


class NsqBatchReader(DataSourceReader):
    """Reads a range of a log, or of all logs below a folder, as they are at planning."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """A partition for each task. Raises DataLossError, WalError."""
        options = self._options
        root = logs_root(options.wal_path)
        views = [LogView.open(options.wal_path)] if root is None else open_logs(root).values()
        slices = [part for view in views for part in self._slices_of(view)]
        may_lack = not options.fail_on_data_loss
        limits = options.min_partitions, options.max_records
        return [*partitions_of(slices, *limits, may_lack=may_lack)]

    def _slices_of(self, view: LogView) -> list[SegmentSlice]:
        """The selected range of a log. Raises DataLossError, WalError."""
        start = first_position(view, self._options.starting_offsets, self._options.starting_time)
        end = first_position(view, self._options.ending_offsets, self._options.ending_time)
        return slices_of(view.segments(start, end) if start < end else [], start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called by a task, on an executor. Raises WalError."""
        return read_partition(partition)
