"""The log itself: append, commit, trim.

One process writes (the lock sees to that); in it `Wal.append` and `Wal.commit` may be called from
different threads. All calls block for the disk: not for trio's thread.
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

from pipelines.wal import meta
from pipelines.wal.errors import WalError, WalFullError, WalRangeError
from pipelines.wal.recovery import Segment, recent_ids, recover
from pipelines.wal.segments import Block, SegmentRef, StreamIds, encode_segment, segment_name
from trionsq.disk import Disk, FolderLock, RealDisk, replace_file

__all__ = ["Wal", "WalLimits"]

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PROBE: Final = "probe.tmp"


@dataclass(frozen=True, slots=True)
class WalLimits:
    """What the log may take.

    Attributes:
        max_nbytes: of all segments together; what was committed goes early to keep to it.
        retention_s: what was committed is kept so long, to recognize duplicates and for reading
            by batch.
    """

    max_nbytes: int = 4 << 30
    retention_s: float = 120.0

    def __post_init__(self) -> None:
        if self.max_nbytes < 1 or not self.retention_s >= 0:
            raise ValueError(f"limits of the log: {self}")


class Wal:
    """An open log. Made by `open`; a context manager that closes it.

    Attributes:
        id: of this log, for ever.
        path: of its folder.
        limits: as given.
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
        """For tests, which have disks of their own; see `open`. Raises OSError too."""
        found = recover(disk, create=create, now_s=clock())
        self.id = found.wal_id
        self.path = disk.path
        self.limits = limits
        self._disk = disk
        self._lock = lock
        self._clock = clock
        self._segments = found.segments
        self._nbytes = sum(segment.nbytes for segment in found.segments)
        self._committed = found.committed
        # Committed, but not noted if the disk was full.
        self._wanted = found.committed
        self._end = found.end
        # Files of an append that failed, which have to be gone before the next one.
        self._doubtful: list[str] = []
        self._failure: WalError | None = None
        self._written_ns = found.written_ns
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
        """Open the log in a folder, and lock it; make one if there is none and ``create``.

        Raises:
            WalLockedError: somebody else has it.
            WalDamagedError: something is damaged or missing; the text says what to do.
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
        """Let others have it. What was appended stays. A second call does nothing."""
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

    # Figures

    @property
    def first(self) -> int:
        """The first position that is still there."""
        with self._state:
            return self._segments[0].ref.first if self._segments else self._end

    @property
    def end(self) -> int:
        """The next position. All before it is durable."""
        return self._end

    @property
    def committed(self) -> int:
        """What is before it is not needed any more."""
        return self._committed

    @property
    def nbytes(self) -> int:
        """Of all segments."""
        return self._nbytes

    @property
    def segment_count(self) -> int:
        """How many there are."""
        return len(self._segments)

    # Writing

    def append(self, blocks: Sequence[Block]) -> int:
        """Write a segment; the new end. When it returns, the messages are durable.

        Raises:
            WalFullError: there is no room; nothing of it is visible, and it may be tried again.
            WalError: the disk failed, and the log takes no more until it is opened anew. Nothing
                of it is visible here; who opens the log later finds all of it or nothing.
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
        """Find out whether a segment of that size could be written now.

        Raises:
            WalFullError, WalError: as `append`.
        """
        with self._appending:
            self._check_open()
            with self._committing:
                self._note()
                self._trim(0)
            self._make_room(nbytes)
            self._settle()
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
                self._doubtful = [_PROBE]
                raise self._failed(error) from error

    def _write(self, name: str, data: bytes) -> None:
        self._settle()
        draft = f"{name}.tmp"
        try:
            replace_file(self._disk, name, data, draft=draft)
        except OSError as error:
            self._doubtful = [draft, name]
            # At once if possible: a full disk needs the room.
            with suppress(WalError):
                self._settle()
            raise self._failed(error) from error

    def _settle(self) -> None:
        """Make sure that nothing of a failed append can come back. Raises WalError."""
        if not self._doubtful:
            return
        try:
            for name in self._doubtful:
                with suppress(FileNotFoundError):
                    self._disk.unlink(name)
            self._disk.sync_folder()
        except OSError as error:
            raise self._failed(error) from error
        self._doubtful = []

    def _make_room(self, nbytes: int) -> None:
        limit = self.limits.max_nbytes
        if self._nbytes + nbytes > limit:
            with self._committing:
                self._trim(self._nbytes + nbytes - limit)
        if self._nbytes + nbytes > limit:
            raise WalFullError(
                f"{self.path} has {self._nbytes} bytes, {nbytes} more exceed wal.maxBytes ({limit})"
            )

    def _failed(self, error: OSError) -> WalError:
        """What to raise. But for a full disk, nobody knows what stands there: no more writes."""
        if error.errno in _NO_ROOM:
            return WalFullError(f"{self.path}: {error.strerror or error}")
        self._failure = WalError(f"{self.path}: {error.strerror or error}")
        return self._failure

    def _check_open(self) -> None:
        if self._failure is not None:
            raise WalError(f"{self._failure}; open the log anew") from self._failure
        if not self._is_open:
            raise WalError(f"{self.path} is closed")

    # Committing

    def commit(self, lsn: int) -> None:
        """What is before ``lsn`` is not needed any more; older positions change nothing.

        Segments that are wholly committed and past the retention are removed, never the newest.
        A full disk is no error here: the position is noted as soon as there is room for it.

        Raises:
            WalRangeError: the log has not come that far.
            WalError: the disk failed; the old position stands, or the new one.
        """
        with self._committing:
            self._check_open()
            if lsn > self._end:
                raise WalRangeError(f"{self.path} ends at {self._end}: {lsn} can't be committed")
            self._wanted = max(self._wanted, lsn)
            self._note()
            self._trim(0)

    def _note(self) -> None:
        """Note the committed position if there is room, for which the retention may be cut short.

        Raises WalError.
        """
        for _ in range(2):
            if self._wanted <= self._committed:
                return
            wanted = self._wanted
            try:
                meta.write_committed(self._disk, wanted)
            except OSError as error:
                failed = self._failed(error)
                if not isinstance(failed, WalFullError):
                    raise failed from error
                self._trim(1)
            else:
                self._committed = wanted

    def _trim(self, wanted_nbytes: int) -> None:
        """Remove what may go, and earlier than that as much as is wanted. Raises WalError."""
        oldest_s = self._clock() - self.limits.retention_s
        while True:
            with self._state:
                if len(self._segments) < 2:
                    return
                segment = self._segments[0]
                is_old = segment.since_s <= oldest_s
                if segment.ref.end > self._committed or not (is_old or wanted_nbytes > 0):
                    return
                del self._segments[0]
                self._nbytes -= segment.nbytes
            wanted_nbytes -= segment.nbytes
            try:
                self._disk.unlink(segment.name)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._failed(error) from error

    # Reading

    def segments(self, start: int, end: int) -> list[SegmentRef]:
        """The segments with the positions from ``start`` to before ``end``.

        Raises:
            WalRangeError: the log has some of them no more, or not yet.
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
            found = []
            for index in range(low, len(self._segments)):
                ref = self._segments[index].ref
                if ref.first >= end:
                    break
                found.append(ref)
            return found

    def recent_ids(self, ids_max: int) -> Iterator[tuple[int, list[StreamIds]]]:
        """Ends and ids of the newest segments, to fill a `Duplicates`; oldest first.

        Raises:
            WalDamagedError: one of them is damaged.
            WalError: one can't be read.
        """
        try:
            yield from recent_ids(self._disk, list(self._segments), ids_max)
        except OSError as error:
            raise WalError(f"{self.path}: {error}") from error
