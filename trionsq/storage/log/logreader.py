"""Reads a log in jobs, beside the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from trionsq.disk import Disk
from trionsq.storage.folder import Job, JobDone
from trionsq.storage.log.ranges import MessageRange
from trionsq.storage.log.reading import (
    Block,
    Place,
    RangesRead,
    is_stale,
    read_block,
    read_ranges,
    share_nbytes,
)
from trionsq.storage.log.segmentfile import SegmentFile
from trionsq.storage.log.segments import Damage

__all__ = ["LogReader", "ReadHost"]

# What one read of messages from all over a log brings at most.
_BLOCKS_A_READ: Final = 4


class ReadHost(Protocol):
    """What reading needs of the node."""

    @property
    def disk(self) -> Disk: ...

    def submit_job(self, job: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Run a job beside the event loop, and ``done`` with its error in the loop."""

    def retry_read(self, job: Job, done: JobDone) -> None:
        """Run a job that has failed once more, when the disk may be well again."""

    def block_bytes(self) -> int:
        """Return how much one read should bring, and count it."""

    def release_block(self, nbytes: int) -> None:
        """What was read is let go."""

    def report_damage(self, name: str, found: Sequence[tuple[str, Damage]]) -> None:
        """Name damaged places to the operator."""

    def report_error(self, name: str, error: Exception | None) -> None:
        """Show an error of the disk, or (None) that there is none any more."""


class LogReader:
    """Reads the log of one topic. All calls return at once.

    What counts may be in no segment for a while, if the disk has failed twice. It is not lost, so
    who reads it waits.
    """

    def __init__(self, node: ReadHost, name: str, unwritten_from: Callable[[], int | None]) -> None:
        """``unwritten_from`` returns the first message that is in no segment, None if all are.

        It changes before the segments become shorter, and after there are new ones.
        """
        self._node = node
        self._name = name
        self._unwritten_from = unwritten_from

    def read_block(
        self,
        segments: Sequence[SegmentFile],
        sequence: int,
        end: int,
        place: Place | None,
        done: Callable[[Block], None],
    ) -> None:
        """Read the messages from ``sequence`` on. A failed read is repeated."""
        blocks: list[Block] = []
        max_bytes, disk = self._node.block_bytes(), self._node.disk
        used: list[SegmentFile] = []

        def read(limit: int | None) -> bool:
            used[:] = segments
            blocks.clear()
            if limit is not None and limit <= sequence:
                return False
            stop = end if limit is None else min(end, limit)
            block = Block(end=stop)
            if used:
                block = read_block(disk, used, sequence, max_bytes, stop, place)
            blocks[:] = [block]
            return True

        def job() -> None:
            self._read_written(read)

        def finished(error: Exception | None) -> None:
            if error is None and not blocks:
                self._node.retry_read(job, finished)
                return
            self._node.report_error(self._name, error)
            if error is not None:
                # The disk may give them later.
                self._node.retry_read(job, finished)
                return
            block = blocks.pop()  # what the closures keep waits for the garbage collector
            if block.damage and is_stale(used):
                self._node.submit_job(job, finished)
                return
            self._node.release_block(max_bytes - block.nbytes)
            if block.damage:
                self._node.report_damage(self._name, block.damage)
            done(block)

        if not segments and self._unwritten_from() is None:
            done(Block(end=end))
            return
        self._node.submit_job(job, finished)

    def read_ranges(
        self,
        segments: Sequence[SegmentFile],
        ranges: list[MessageRange],
        done: Callable[[RangesRead], None],
    ) -> None:
        """Read messages; who gets them releases what they take. A failed read is repeated."""
        found: list[RangesRead] = []
        max_bytes, disk = self._node.block_bytes(), self._node.disk
        most_bytes = _BLOCKS_A_READ * max_bytes
        used: list[SegmentFile] = []

        def read(limit: int | None) -> bool:
            used[:] = segments
            found.clear()
            written = [one for one in ranges if limit is None or one.sequence + one.count <= limit]
            if not written:
                return False
            found[:] = [read_ranges(disk, used, written, max_bytes, most_bytes)]
            found[0].unread += sorted(set(ranges).difference(written))
            return True

        def job() -> None:
            self._read_written(read)

        def finished(error: Exception | None) -> None:
            if error is None and not found:
                self._node.retry_read(job, finished)
                return
            self._node.report_error(self._name, error)
            if error is not None:
                self._node.retry_read(job, finished)
                return
            read = found.pop()
            if read.damage and is_stale(used):
                self._node.submit_job(job, finished)
                return
            self._node.release_block(max_bytes - sum(map(share_nbytes, read.segments)))
            if read.damage:
                self._node.report_damage(self._name, read.damage)
            done(read)

        self._node.submit_job(job, finished)

    def _read_written(self, read: Callable[[int | None], bool]) -> None:
        """Call ``read`` with the first message that it cannot find yet, until that was right.

        It returns whether it can find any.
        """
        limit = self._unwritten_from()
        while read(limit):
            before, limit = limit, self._unwritten_from()
            if limit in (None, before):
                break
