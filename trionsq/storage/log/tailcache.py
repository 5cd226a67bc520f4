"""The newest messages of a log, in memory: most consumers read nothing else."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from trionsq.core.batch import MessageBatch
from trionsq.storage.log.segmentfile import end_of, sequences_of

__all__ = ["TailCache"]

# Places of batches that are gone, before the lists are cut.
_MIN_CUT: Final = 64


class TailCache:
    """Batches in the order of their sequences; old ones leave, new ones are added."""

    __slots__ = ("_batches", "_firsts", "_start")

    def __init__(self) -> None:
        self._batches: list[MessageBatch | None] = []
        self._firsts: list[int] = []
        # The first that is not gone.
        self._start = 0

    def __len__(self) -> int:
        return len(self._batches) - self._start

    def add_batch(self, batch: MessageBatch) -> None:
        """Add the newest batch."""
        self._batches.append(batch)
        self._firsts.append(sequences_of(batch)[0])

    def batch_at(self, sequence: int) -> MessageBatch | None:
        """Return the batch that has a sequence; None if it is not here."""
        at = bisect_right(self._firsts, sequence, self._start) - 1
        if at < self._start:
            return None
        batch = self._batches[at]
        return batch if batch is not None and sequence < end_of(batch) else None

    def time_of(self, sequence: int) -> int | None:
        """Return when a message was published, in ns since 1970; None if it is not here."""
        batch = self.batch_at(sequence)
        if batch is None or sequence not in sequences_of(batch):
            return None
        stamp = batch.stamp(sequence - sequences_of(batch)[0])
        return int.from_bytes(stamp, signed=True)

    def first_from(self, end: int) -> int:
        """Return the first sequence that is here; ``end`` if none before it is."""
        return min(end, self._firsts[self._start]) if len(self) else end

    def evict_batch(self) -> None:
        """Let go of the oldest batch, if there is one."""
        if self._start == len(self._batches):
            return
        self._batches[self._start] = None
        self._start += 1
        if self._start > max(_MIN_CUT, len(self._batches) // 2):
            del self._batches[: self._start], self._firsts[: self._start]
            self._start = 0

    def clear(self) -> None:
        """Let go of all batches."""
        self._batches, self._firsts, self._start = [], [], 0
