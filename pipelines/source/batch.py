"""Partitions of a range of the log, how a task reads one, and the batch read of a whole log.

The batch read may run while a query writes the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pipelines.errors import WalRangeError
from pipelines.source.offsets import initial_position
from pipelines.source.options import BatchOptions
from pipelines.wal import LogView, SegmentRef, read_segment

__all__ = [
    "LogPartition",
    "LogSnapshot",
    "NsqBatchReader",
    "SegmentSlice",
    "partitions_of",
    "read_partition",
    "snapshot",
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


def partitions_of(
    refs: Sequence[SegmentRef], start: int, end: int, minimum: int, *, may_lack: bool = False
) -> list[LogPartition]:
    """Split the positions from ``start`` to before ``end`` into even partitions, in order.

    Args:
        refs: the segments with these positions, without gaps.
        start, end: positions.
        minimum: of partitions; there are fewer if there are fewer messages.
        may_lack: see `LogPartition`.
    """
    count = end - start
    number = min(count, max(minimum, -(-count // MESSAGES_PER_TASK)))
    partitions = []
    for index in range(number):
        low, high = start + count * index // number, start + count * (index + 1) // number
        slices = [
            SegmentSlice(ref, max(low, ref.first), min(high, ref.end))
            for ref in refs
            if ref.first < high and ref.end > low
        ]
        partitions.append(LogPartition(slices, may_lack=may_lack))
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


class LogSnapshot(NamedTuple):
    """A log at one moment: its segments in order, and the committed position."""

    refs: list[SegmentRef]
    committed: int


def snapshot(path: str) -> LogSnapshot:
    """List the segments of a log without locking it.

    Raises:
        WalDamagedError, WalError: there is no log, or it is damaged or of a newer version.
    """
    view = LogView.open(path)
    return LogSnapshot(view.segments(view.first, view.end), view.committed)


class NsqBatchReader(DataSourceReader):
    """Reads a range of a log, as the log is when the query is planned."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """A partition for each task. Raises DataLossError, WalError."""
        options = self._options
        refs, committed = snapshot(options.wal_path)
        if not refs:
            return []
        first, last = refs[0].first, refs[-1].end
        start = initial_position(options.starting_offsets, first, committed, last)
        end = initial_position(options.ending_offsets, first, committed, last)
        may_lack = not options.fail_on_data_loss
        return [*partitions_of(refs, start, end, options.min_partitions, may_lack=may_lack)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called by a task, on an executor. Raises WalError."""
        return read_partition(partition)
