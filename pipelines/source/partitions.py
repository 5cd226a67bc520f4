"""A range of the log cut into tasks, and what a task does: read its pieces as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from pipelines.wal import SegmentRef, WalRangeError, read_segment

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogPartition", "Piece", "partitions_of", "read_partition"]

# A task costs about as much as reading so many small messages.
MESSAGES_PER_TASK: Final = 50_000
_BATCH_NBYTES_MAX: Final = 32 << 20


class Piece(NamedTuple):
    """A part of a segment: the positions from ``start`` to before ``end``."""

    ref: SegmentRef
    start: int
    end: int


class LogPartition(InputPartition):
    """What one task reads. ``may_lack``: a file that is gone is passed over."""

    def __init__(self, pieces: Sequence[Piece], *, may_lack: bool = False) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)
        self.may_lack = may_lack


def partitions_of(
    refs: Sequence[SegmentRef], start: int, end: int, at_least: int, *, may_lack: bool = False
) -> list[LogPartition]:
    """Cut ``start`` to ``end``, which ``refs`` cover, into even parts, in order.

    Args:
        refs: without gaps.
        start, end: positions.
        at_least: of parts; but none is empty.
        may_lack: see `LogPartition`.
    """
    count = end - start
    parts = min(count, max(at_least, -(-count // MESSAGES_PER_TASK)))
    found = []
    for part in range(parts):
        low, high = start + count * part // parts, start + count * (part + 1) // parts
        pieces = [
            Piece(ref, max(low, ref.first), min(high, ref.end))
            for ref in refs
            if ref.first < high and ref.end > low
        ]
        found.append(LogPartition(pieces, may_lack=may_lack))
    return found


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The messages, in batches that are not too large for a JVM.

    Raises:
        WalRangeError: a file is gone, and it is not a matter of indifference.
        WalDamagedError, WalError: a file is damaged, or can't be read.
    """
    # Spark makes an empty partition up where a batch read has none.
    if not isinstance(partition, LogPartition):
        return
    for piece in partition.pieces:
        try:
            for batch in read_segment(*piece):
                yield from _slices(batch)
        except WalRangeError:
            if not partition.may_lack:
                raise


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """At most so many bytes each, if messages are of about the same size."""
    parts = -(-batch.nbytes // _BATCH_NBYTES_MAX)
    rows = max(1, batch.num_rows // max(1, parts))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)
