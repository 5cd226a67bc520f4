"""The newest messages of a log, in memory: most consumers read nothing else."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from trionsq.core.batch import MessageBatch
from trionsq.storage.log.batches import join_batches
from trionsq.storage.log.segmentfile import end_of, sequences_of

__all__ = ["TailCache", "cached_nbytes", "joined_keyed"]

# Places of batches that are gone, before the lists are cut.
_MIN_CUT: Final = 64
# What a batch, and each of its messages, costs beside the bodies: about, in bytes.
_BATCH_BYTES: Final = 780
_MESSAGE_BYTES: Final = 16
# Publishes with a key that are handed on together, and those that are copied for it.
_MAX_JOINED_MESSAGES: Final = 512
_MAX_JOINED_BYTES: Final = 64 * 1024
_MAX_COPIED_BYTES: Final = 4 * 1024


def cached_nbytes(batch: MessageBatch) -> int:
    """Return how much memory a batch in a cache takes, in bytes."""
    return batch.bodies.nbytes + _BATCH_BYTES + _MESSAGE_BYTES * batch.count


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
        sequences = batch.sequences
        assert sequences is not None
        self._batches.append(batch)
        self._firsts.append(sequences[0])

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


def joined_keyed(batches: Iterable[MessageBatch]) -> Iterator[MessageBatch]:
    """Yield the batches of a round; small publishes with a key, each a record, become one.

    Channels get batch by batch: one for each message would be far slower than its publishing, and
    take some hundred bytes of memory. Who delivers needs no key.
    """
    run: list[MessageBatch] = []
    count = nbytes = 0
    for batch in batches:
        size = batch.bodies.nbytes
        # Deferred ones may be for one channel alone.
        is_small = batch.key is not None and not batch.defer_ms and size <= _MAX_COPIED_BYTES
        if run and not (
            is_small
            and count + batch.count <= _MAX_JOINED_MESSAGES
            and nbytes + size <= _MAX_JOINED_BYTES
            and sequences_of(batch)[0] == end_of(run[-1])
        ):
            yield _join(run)
            run, count, nbytes = [], 0, 0
        if not is_small:
            yield batch
            continue
        run.append(batch)
        count += batch.count
        nbytes += size
    if run:
        yield _join(run)


def _join(run: list[MessageBatch]) -> MessageBatch:
    if len(run) == 1:
        return run[0]
    parts = [MessageBatch(it.bodies, it.ids, it.timestamp_ns, it.defer_ms, it.stamps) for it in run]
    return join_batches(parts, sequences_of(run[0])[0])
