"""The log: append, commit, trim.

One process writes, which the log's place ensures. In it `Wal.append` and `Wal.commit` may be called
from different threads. All calls wait for the disk or the network: call them outside of trio's
thread.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import Self, TypeVar

from pipelines.errors import WalError, WalFencedError, WalFullError, WalRangeError
from pipelines.wal.folder import FolderPlace
from pipelines.wal.objects import is_store_url
from pipelines.wal.place import LogPlace, Segment
from pipelines.wal.recovery import recent_ids
from pipelines.wal.segments import Block, ScopeIds, SegmentRef, encode_segment
from pipelines.wal.store import StorePlace

__all__ = ["Wal", "WalLimits"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WalLimits:
    """The limits of a log.

    Attributes:
        max_bytes: of all segments; committed ones are removed before their retention ends if
            necessary.
        retention_s: how long committed segments are kept, to recognize duplicates and for batch
            reads.
    """

    max_bytes: int = 4 << 30
    retention_s: float = 120.0

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or not self.retention_s >= 0:
            raise ValueError(f"limits of the log: {self}")


class Wal:
    """An open log, made by `open`; a context manager that closes it.

    Attributes:
        id: identifies the log; never changes.
        path: of its folder, or its URL.
        limits: of the log.
    """

    def __init__(
        self,
        place: LogPlace,
        *,
        create: bool,
        limits: WalLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """For tests with places of their own; see `open`. ``clock``: seconds, for the retention."""
        recovered = place.recover(create=create, now_s=clock())
        self.id = recovered.wal_id
        self.path = place.path
        self.limits = limits
        self._place = place
        self._clock = clock
        self._segments = recovered.segments
        self._nbytes = sum(segment.nbytes for segment in recovered.segments)
        self._committed = recovered.committed
        # Ahead of `_committed` while a full disk prevents its being written
        self._commit_target = recovered.committed
        self._look_for_commits_s = clock()
        self._end = recovered.end
        self._failure: WalError | None = None
        self._written_ns = recovered.written_ns
        self._held_since_s: float | None = None
        self._held_s = 0.0
        self._is_open = True
        self._state = Lock()
        self._appending = Lock()
        self._committing = Lock()

    def __repr__(self) -> str:
        return f"<Wal {self.path} {self.first} to {self.end}, committed {self.committed}>"

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        limits: WalLimits | None = None,
        take_over: bool = False,
    ) -> Wal:
        """Open a log for writing; create one if there is none and ``create`` is true.

        Whoever had it open before is fenced off: its next append or commit raises WalFencedError,
        and nothing of it is in the log. A folder is locked against that; with ``take_over`` the
        lock of another process, which may hang, does not count. An object store has no locks.

        Args:
            path: a folder, or the URL of an object store (``s3://bucket/prefix``).

        Raises:
            WalLockedError: another process has it open, and ``take_over`` is false.
            WalDamagedError: a file is damaged or missing; the text says what to do.
            WalMissingError: there is no log, and ``create`` is false.
            WalError: it is of a newer version, or the disk or the store failed; or the store has
                no conditional writes.
        """
        place: LogPlace
        if is_store_url(path):
            place = StorePlace.open(str(path))
        else:
            place = FolderPlace.open(path, create=create, take_over=take_over)
        try:
            return cls(place, create=create, limits=limits or WalLimits())
        except BaseException:
            place.close()
            raise

    def close(self) -> None:
        """Release the lock. A second call does nothing."""
        with self._appending, self._committing:
            self._is_open = False
            self._place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Metrics

    @property
    def first(self) -> int:
        """The first position that the log still has."""
        with self._state:
            return self._segments[0].ref.first if self._segments else self._end

    @property
    def end(self) -> int:
        """The next position. Messages before it are durable."""
        return self._end

    @property
    def committed(self) -> int:
        """The committed position: Spark needs no message before it."""
        return self._committed

    @property
    def nbytes(self) -> int:
        """The size of all segments."""
        return self._nbytes

    @property
    def segment_count(self) -> int:
        """The number of segments."""
        return len(self._segments)

    # Writing

    def append(self, blocks: Sequence[Block]) -> int:
        """Write a segment, and return the new end. The messages are durable then.

        Raises:
            WalFullError: the log has no room. Nothing of the segment is visible; retry later.
            WalFencedError: another process has taken the log over. Nothing of the segment is in
                the log, nor will be.
            WalError: the disk or the store failed; the log refuses appends until it is opened
                again. Nothing of the segment is visible here; after a reopen all of it is, or
                nothing.
            ValueError: no messages.
        """
        with self._appending:
            self._check_open()
            count = sum(len(block.ids) for block in blocks)
            if not count:
                raise ValueError("nothing to append")
            if self._clock() >= self._look_for_commits_s:
                self._take_commits()
            self._written_ns = max(time.time_ns(), self._written_ns + 1)
            owner = self._place.owner
            data = encode_segment(self._end, self.id, blocks, self._written_ns, owner)
            self._make_room(len(data))
            end = self._end + count
            path = self._with_room(
                len(data), lambda: self._place.write_segment(self._end, end, data)
            )
            with self._state:
                ref = SegmentRef(path, self._end, end)
                self._segments.append(Segment(ref, len(data), self._retention_clock()))
                self._nbytes += len(data)
                self._end = end
            return end

    def probe(self, nbytes: int) -> None:
        """Check by a test file whether a segment of this size could be written now.

        Raises:
            WalFullError, WalError: as `append`.
        """
        with self._appending:
            self._check_open()
            self._take_commits()
            self._make_room(nbytes)
            self._with_room(nbytes, lambda: self._place.probe(nbytes))

    def _with_room(self, nbytes: int, write: Callable[[], T]) -> T:
        """Write; if there is no room, remove committed segments for it and write once more."""
        with self._failing():
            try:
                return write()
            except WalFullError:
                with self._committing:
                    if not self._trim(nbytes):
                        raise
                return write()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Refuse all that follows an error, unless the log is only full."""
        try:
            yield
        except WalFullError:
            raise
        except WalError as error:
            self._failure = error
            raise

    def _take_commits(self) -> None:
        """Take over what readers have committed, and trim. Raises WalError."""
        self._look_for_commits_s = self._clock() + self._place.poll_s
        with self._committing:
            with self._failing():
                position = self._place.committed_by_readers()
            self._commit_target = max(self._commit_target, min(position, self._end))
            self._write_committed()
            self._trim(0)

    def _make_room(self, nbytes: int) -> None:
        limit = self.limits.max_bytes
        if self._nbytes + nbytes > limit:
            with self._committing:
                self._trim(self._nbytes + nbytes - limit)
        if self._nbytes + nbytes > limit:
            raise WalFullError(
                f"{self.path} has {self._nbytes} bytes, {nbytes} more exceed wal.maxBytes ({limit})"
            )

    def _check_open(self) -> None:
        if isinstance(self._failure, WalFencedError):
            raise WalFencedError(str(self._failure)) from self._failure
        if self._failure is not None:
            raise WalError(f"{self._failure}; open the log again") from self._failure
        if not self._is_open:
            raise WalError(f"{self.path} is closed")

    # Committing

    def commit(self, lsn: int) -> None:
        """Allow the messages before ``lsn`` to be removed; an older position has no effect.

        Removes segments that are wholly committed and past the retention, but never the newest.
        A full disk is no error here: the position is written when there is room for it.

        Raises:
            WalRangeError: ``lsn`` is after the end of the log.
            WalError: the disk failed; the old position is in effect, or the new one.
        """
        with self._committing:
            self._check_open()
            if lsn > self._end:
                raise WalRangeError(f"{self.path} ends at {self._end}: {lsn} can't be committed")
            self._commit_target = max(self._commit_target, lsn)
            self._write_committed()
            self._trim(0)

    def _write_committed(self) -> None:
        """Write the committed position; on a full disk, remove a retained segment for it.

        Raises WalError.
        """
        for _ in range(2):
            if self._commit_target <= self._committed:
                return
            target = self._commit_target
            try:
                with self._failing():
                    self._place.write_committed(target)
            except WalFullError:
                self._trim(1)
            else:
                self._committed = target

    def hold_retention(self, is_held: bool) -> None:
        """Let the time of the retention stand still, or go on.

        While an nsqd is away, what it will deliver again must stay recognizable. ``max_bytes``
        holds all the same.
        """
        with self._state:
            now_s = self._clock()
            if is_held and self._held_since_s is None:
                self._held_since_s = now_s
            elif not is_held and self._held_since_s is not None:
                self._held_s += now_s - self._held_since_s
                self._held_since_s = None

    def _retention_clock(self) -> float:
        """Seconds, without the time in which the retention stood still."""
        now_s = self._clock() if self._held_since_s is None else self._held_since_s
        return now_s - self._held_s

    def _trim(self, required_bytes: int) -> bool:
        """Remove segments past the retention, then committed ones for ``required_bytes``.

        Returns whether there were any. Raises WalError.
        """
        removed: list[SegmentRef] = []
        with self._state:
            oldest_s = self._retention_clock() - self.limits.retention_s
            for segment in islice(self._segments, max(0, len(self._segments) - 1)):
                is_old = segment.since_s <= oldest_s
                if segment.ref.end > self._committed or not (is_old or required_bytes > 0):
                    break
                removed.append(segment.ref)
                required_bytes -= segment.nbytes
                self._nbytes -= segment.nbytes
            del self._segments[: len(removed)]
        if removed:
            with self._failing():
                self._place.remove_segments(removed)
        return bool(removed)

    # Reading

    def segments(self, start: int, end: int) -> list[SegmentRef]:
        """The segments with the positions from ``start`` to before ``end``.

        Raises:
            WalRangeError: the log has removed some of them, or has not reached them.
        """
        with self._state:
            first = self._segments[0].ref.first if self._segments else self._end
            if start < first or end > self._end:
                raise WalRangeError(
                    f"{self.path} has the positions {first} to {self._end}, not {start} to {end}"
                )
            if start >= end:
                return []
            low = bisect_right(self._segments, start, key=lambda segment: segment.ref.end)
            high = bisect_left(self._segments, end, key=lambda segment: segment.ref.first)
            refs = [segment.ref for segment in self._segments[low:high]]
        return [ref for ref in refs if ref.first < ref.end]

    def recent_ids(self, max_ids: int) -> Iterator[list[ScopeIds]]:
        """The ids of the newest segments, oldest first, to fill a `Duplicates`.

        Raises:
            WalDamagedError: one of them is damaged.
            WalError: one can't be read.
        """
        yield from recent_ids(self._place, list(self._segments), max_ids)
