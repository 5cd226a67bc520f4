"""The batch read of a log: all that it retains, also while a query is writing it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pipelines.source.offsets import DataLossError, initial_position
from pipelines.source.options import BatchOptions
from pipelines.source.partitions import partitions_of, read_partition
from pipelines.wal import SegmentRef, WalError
from pipelines.wal.meta import open_disk, read_committed, read_meta
from pipelines.wal.segments import positions_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NsqBatchReader", "Snapshot", "snapshot"]


class Snapshot(NamedTuple):
    """A log as it was at a moment: its segments in order, and what was committed."""

    refs: list[SegmentRef]
    committed: int


def snapshot(path: str) -> Snapshot:
    """Look at a log without locking it.

    Raises:
        WalDamagedError, WalError: there is none, or it is damaged or of a newer version.
    """
    disk = open_disk(path)
    try:
        read_meta(disk)
        committed = read_committed(disk) or 0
        found = sorted(filter(None, map(positions_of, disk.names())))
    except OSError as error:
        raise WalError(f"{disk.path} has no log that can be read: {error}") from error
    refs = [
        SegmentRef(os.path.join(disk.path, f"{first:020}-{end:020}.arrow"), first, end)
        for first, end in found
    ]
    return Snapshot(refs, committed)


class NsqBatchReader(DataSourceReader):
    """Reads a range of a log, as it is when the query is planned."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The tasks. Raises DataLossError, WalError."""
        options = self._options
        refs, committed = snapshot(options.wal_path)
        if not refs:
            return []
        first, last = refs[0].first, refs[-1].end
        if any(one.end != other.first for one, other in pairwise(refs)):
            raise DataLossError(f"{options.wal_path}: segments between {first} and {last} are gone")
        start = initial_position(options.starting_offsets, first, committed, last)
        end = initial_position(options.ending_offsets, first, committed, last)
        may_lack = not options.fail_on_data_loss
        return [*partitions_of(refs, start, end, options.min_partitions, may_lack=may_lack)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What a task does, on an executor. Raises WalError."""
        return read_partition(partition)
