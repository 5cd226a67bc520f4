"""The log: append, commit, trim.

One process writes, which the lock ensures. In it `Wal.append` and `Wal.commit` may be called from
different threads. All calls wait for the disk: call them outside of trio's thread.
"""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Final, Self

from pipelines.errors import WalError, WalFullError, WalRangeError
from pipelines.wal import meta
from pipelines.wal.recovery import Segment, recent_ids, recover
from pipelines.wal.segments import Block, ScopeIds, SegmentRef, encode_segment, segment_name
from trionsq.disk import Disk, FolderLock, RealDisk, replace_file

__all__ = ["Wal", "WalLimits"]

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PROBE: Final = "probe.tmp"


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
        path: of its folder.
        limits: of the log.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        create: bool,
        limits: WalLimits,
        lock: FolderLock | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """For tests with disks of their own; see `open`. Also raises OSError."""
        recovered = recover(disk, create=create, now_s=clock())
        self.id = recovered.wal_id
        self.path = disk.path
        self.limits = limits
        self._disk = disk
        self._lock = lock
        self._clock = clock
        self._segments = recovered.segments
        self._nbytes = sum(segment.nbytes for segment in recovered.segments)
        self._committed = recovered.committed
        # Ahead of `_committed` while a full disk prevents its being written
        self._commit_target = recovered.committed
        self._end = recovered.end
        # Files of a failed append, to be removed before the next one
        self._undone_files: list[str] = []
        self._failure: WalError | None = None
        self._written_ns = recovered.written_ns
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
    ) -> Wal:
        """Open and lock the log in a folder; create one if there is none and ``create`` is true.

        Raises:
            WalLockedError: another process has it open.
            WalDamagedError: a file is damaged or missing; the text says what to do.
            WalError: there is no log, it is of a newer version, or the disk failed.
        """
        disk = meta.open_disk(path)
        lock: FolderLock | None = None
        try:
            if create and not os.path.isdir(disk.path):
                os.makedirs(disk.path, exist_ok=True)
                RealDisk(os.path.dirname(disk.path)).sync_folder()
            if not create and not os.path.isdir(disk.path):
                raise WalError(f"{disk.path} has no log")
            lock = meta.lock_log(disk.path)
            return cls(disk, create=create, limits=limits or WalLimits(), lock=lock)
        except OSError as error:
            if lock is not None:
                lock.release()
            raise WalError(f"the log {disk.path} can't be opened: {error}") from error
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def close(self) -> None:
        """Release the lock. A second call does nothing."""
        with self._appending, self._committing:
            self._is_open = False
            if self._lock is not None:
                self._lock.release()

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
            WalError: the disk failed; the log refuses appends until it is opened again. Nothing
                of the segment is visible here; after a reopen all of it is, or nothing.
            ValueError: no messages.
        """
        with self._appending:
            self._check_open()
            count = sum(len(block.ids) for block in blocks)
            if not count:
                raise ValueError("nothing to append")
            self._written_ns = max(time.time_ns(), self._written_ns + 1)
            data = encode_segment(self._end, self.id, blocks, self._written_ns)
            self._make_room(len(data))
            name = segment_name(self._end, self._end + count)
            self._write(name, data)
            ref = SegmentRef(os.path.join(self.path, name), self._end, self._end + count)
            with self._state:
                self._segments.append(Segment(ref, len(data), self._clock()))
                self._nbytes += len(data)
                self._end = ref.end
            return ref.end

    def probe(self, nbytes: int) -> None:
        """Check by a test file whether a segment of this size could be written now.

        Raises:
            WalFullError, WalError: as `append`.
        """
        with self._appending:
            self._check_open()
            with self._committing:
                self._write_committed()
                self._trim(0)
            self._make_room(nbytes)
            self._remove_undone_files()
            try:
                with suppress(FileNotFoundError):
                    self._disk.unlink(_PROBE)
                file = self._disk.create(_PROBE)
                try:
                    file.write(bytes(nbytes), 0)
                    file.sync()
                finally:
                    file.close()
                self._disk.unlink(_PROBE)
            except OSError as error:
                self._undone_files = [_PROBE]
                raise self._error_for(error) from error

    def _write(self, name: str, data: bytes) -> None:
        self._remove_undone_files()
        draft = f"{name}.tmp"
        try:
            replace_file(self._disk, name, data, draft=draft)
        except OSError as error:
            self._undone_files = [draft, name]
            # Now rather than before the next append: a full disk needs the room.
            with suppress(WalError):
                self._remove_undone_files()
            raise self._error_for(error) from error

    def _remove_undone_files(self) -> None:
        """Durably remove the files of a failed append. Raises WalError."""
        if not self._undone_files:
            return
        try:
            for name in self._undone_files:
                with suppress(FileNotFoundError):
                    self._disk.unlink(name)
            self._disk.sync_folder()
        except OSError as error:
            raise self._error_for(error) from error
        self._undone_files = []

    def _make_room(self, nbytes: int) -> None:
        limit = self.limits.max_bytes
        if self._nbytes + nbytes > limit:
            with self._committing:
                self._trim(self._nbytes + nbytes - limit)
        if self._nbytes + nbytes > limit:
            raise WalFullError(
                f"{self.path} has {self._nbytes} bytes, {nbytes} more exceed wal.maxBytes ({limit})"
            )

    def _error_for(self, error: OSError) -> WalError:
        """The exception to raise. Unless the disk is full, the log then refuses appends."""
        if error.errno in _NO_ROOM:
            return WalFullError(f"{self.path}: {error.strerror or error}")
        self._failure = WalError(f"{self.path}: {error.strerror or error}")
        return self._failure

    def _check_open(self) -> None:
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
                meta.write_committed(self._disk, target)
            except OSError as error:
                failed = self._error_for(error)
                if not isinstance(failed, WalFullError):
                    raise failed from error
                self._trim(1)
            else:
                self._committed = target

    def _trim(self, required_bytes: int) -> None:
        """Remove segments past the retention, then committed ones for ``required_bytes``.

        Raises WalError.
        """
        oldest_s = self._clock() - self.limits.retention_s
        while True:
            with self._state:
                if len(self._segments) < 2:
                    return
                segment = self._segments[0]
                is_old = segment.since_s <= oldest_s
                if segment.ref.end > self._committed or not (is_old or required_bytes > 0):
                    return
                del self._segments[0]
                self._nbytes -= segment.nbytes
            required_bytes -= segment.nbytes
            try:
                self._disk.unlink(segment.name)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._error_for(error) from error

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
            refs = []
            for index in range(low, len(self._segments)):
                ref = self._segments[index].ref
                if ref.first >= end:
                    break
                refs.append(ref)
            return refs

    def recent_ids(self, max_ids: int) -> Iterator[tuple[int, list[ScopeIds]]]:
        """Ends and ids of the newest segments, oldest first, to fill a `Duplicates`.

        Raises:
            WalDamagedError: one of them is damaged.
            WalError: one can't be read.
        """
        try:
            yield from recent_ids(self._disk, list(self._segments), max_ids)
        except OSError as error:
            raise WalError(f"{self.path}: {error}") from error
