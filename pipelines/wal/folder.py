"""A log in a folder.

What fences a writer off: ``OWNER.json`` names the writer. It looks there between writing a draft
and renaming it. Whoever opens the log replaces the file and then removes all drafts. So a former
writer that looked before finds no draft to rename, or has renamed it before the new one lists the
segments; and one that looks later sees another name. The lock only keeps a log from being opened
while its writer lives: a network file system may lose it, or not tell it to other machines.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

from pipelines.errors import (
    WalDamagedError,
    WalError,
    WalFencedError,
    WalFullError,
    WalLockedError,
    WalMissingError,
    WalRangeError,
)
from pipelines.wal import meta
from pipelines.wal.place import RecoveredLog
from pipelines.wal.recovery import check_contiguous, recover, without_replaced
from pipelines.wal.segments import SegmentRef, positions_of, segment_name
from trionsq.disk import Disk, FolderLock, RealDisk, read_file, replace_file

__all__ = ["FolderPlace", "FolderSource"]

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PROBE: Final = "probe.tmp"
_LISTINGS: Final = 10
# Segments leave this free on their disk: Spark's checkpoint is there by default, and needs room to
# finish the microbatches after which segments are removed. No more than a tenth of the disk.
_RESERVE_BYTES: Final = 64 << 20


class FolderPlace:
    """The writer's side of a log in a folder; see `pipelines.wal.place.LogPlace`."""

    owner: Final = ""
    poll_s: Final = 1.0

    def __init__(
        self,
        disk: Disk,
        lock: FolderLock | None = None,
        *,
        reserve_bytes: int = 0,
        is_taken: bool = False,
    ) -> None:
        """*reserve_bytes*: what segments leave free. *is_taken*: another process has the lock."""
        self.path = disk.path
        self._reserve_bytes = reserve_bytes
        self._is_taken = is_taken
        self._disk = disk
        self._lock = lock
        # What OWNER.json has while this object may write
        self._name = ""
        # Drafts that could not be removed
        self._drafts: list[str] = []

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool, take_over: bool) -> FolderPlace:
        """Lock a folder; create it if it is missing and ``create`` is true.

        With ``take_over`` the lock of another process does not matter.

        Raises:
            WalLockedError: another process holds the lock.
            WalMissingError: there is no folder.
            WalError: the disk failed.
        """
        disk = meta.open_disk(path)
        is_taken = False
        try:
            if not os.path.isdir(disk.path):
                if not create:
                    raise WalMissingError(f"{disk.path} has no log")
                os.makedirs(disk.path, exist_ok=True)
                RealDisk(os.path.dirname(disk.path)).sync_folder()
            try:
                lock = meta.lock_log(disk.path)
            except WalLockedError:
                if not take_over:
                    raise
                is_taken = True
                # The other process keeps its lock, of a file without a name.
                with suppress(FileNotFoundError):
                    disk.unlink(meta.LOCK)
                lock = meta.lock_log(disk.path)
            size = os.statvfs(disk.path)
        except OSError as error:
            raise WalError(f"the log {disk.path} can't be opened: {error}") from error
        reserve_bytes = min(_RESERVE_BYTES, size.f_blocks * size.f_frsize // 10)
        return cls(disk, lock, reserve_bytes=reserve_bytes, is_taken=is_taken)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def recover(self, *, create: bool, now_s: float) -> RecoveredLog:
        try:
            if create or meta.META in self._disk.names():
                self._fence()
            return recover(self._disk, create=create, now_s=now_s)
        except OSError as error:
            raise WalError(f"the log {self.path} can't be opened: {error}") from error

    def _fence(self) -> None:
        """Fence the former writer off. Raises WalError, OSError."""
        name = uuid4().hex
        try:
            meta.write_owner(self._disk, name)
        except OSError as error:
            # The log opens on a full disk, too: what is in it can be read, which makes room.
            if self._is_taken or error.errno not in _NO_ROOM:
                raise
            name = meta.read_owner(self._disk)
        self._name = name
        for draft in self._disk.names():
            if draft.endswith(".tmp"):
                with suppress(FileNotFoundError):
                    self._disk.unlink(draft)

    def _check_owner(self) -> None:
        if meta.read_owner(self._disk) != self._name:
            raise WalFencedError(f"{self.path} was taken over by another process")

    # Segments

    def write_segment(self, first: int, end: int, data: bytes) -> str:
        name = segment_name(first, end)
        try:
            self._remove_drafts()
            self._check_reserve(len(data))
        except OSError as error:
            raise self._error_for(error) from error
        self._replace(name, data)
        return os.path.join(self.path, name)

    def _check_reserve(self, nbytes: int) -> None:
        """Raises WalFullError; OSError."""
        if self._reserve_bytes and self._disk.free_bytes() < self._reserve_bytes + nbytes:
            raise WalFullError(
                f"{self.path}: {nbytes} bytes more would leave less than {self._reserve_bytes} free"
            )

    def _replace(self, name: str, data: bytes) -> None:
        """Replace a file, unless the log was taken over."""
        draft = f"{name}{self._name and '.'}{self._name}.tmp"
        is_renamed = False

        def rename(old: str, new: str) -> None:
            nonlocal is_renamed
            self._check_owner()
            self._disk.rename(old, new)
            is_renamed = True

        try:
            replace_file(self._disk, name, data, draft=draft, rename=rename)
        except OSError as error:
            if is_renamed:
                # It is in the log, durably or not; who opens the log next will see.
                raise WalError(f"{self.path}: {error.strerror or error}") from error
            self._drafts.append(draft)
            # Now rather than before the next segment: a full disk needs the room.
            with suppress(OSError):
                self._remove_drafts()
            if error.errno == errno.ENOENT:
                self._check_owner()
            raise self._error_for(error) from error

    def _remove_drafts(self) -> None:
        while self._drafts:
            with suppress(FileNotFoundError):
                self._disk.unlink(self._drafts[-1])
            self._drafts.pop()

    def _error_for(self, error: OSError) -> WalError:
        text = f"{self.path}: {error.strerror or error}"
        return WalFullError(text) if error.errno in _NO_ROOM else WalError(text)

    def read_segment(self, ref: SegmentRef) -> bytes:
        try:
            return read_file(self._disk, os.path.basename(ref.path))
        except FileNotFoundError as error:
            raise WalRangeError(f"{ref.path} is gone: it was committed and trimmed") from error
        except OSError as error:
            raise WalError(f"{self.path}: {error}") from error

    def remove_segments(self, refs: Sequence[SegmentRef]) -> None:
        for ref in refs:
            try:
                self._disk.unlink(os.path.basename(ref.path))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._error_for(error) from error

    def probe(self, nbytes: int) -> None:
        try:
            self._remove_drafts()
            self._check_reserve(nbytes)
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
            self._drafts = [_PROBE]
            raise self._error_for(error) from error

    # The committed position

    def write_committed(self, lsn: int) -> None:
        self._replace(meta.COMMITTED, meta.committed_text(lsn))

    def committed_by_readers(self) -> int:
        try:
            return meta.newest_reader_commit(self._disk.names())
        except OSError as error:
            raise WalError(f"{self.path}: {error}") from error


class FolderSource:
    """The reader's side of a log in a folder; see `pipelines.wal.place.LogSource`."""

    def __init__(self, disk: Disk) -> None:
        self.path = disk.path
        self._disk = disk
        self._listed: frozenset[str] | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> FolderSource:
        """The log in a folder; nothing is read yet."""
        return cls(meta.open_disk(path))

    def read_id(self) -> str:
        try:
            return meta.read_meta(self._disk)
        except FileNotFoundError as error:
            raise WalMissingError(f"{self.path} has no log") from error
        except OSError as error:
            raise WalError(f"{self.path} has no log that can be read: {error}") from error

    def list_segments(self, known: Sequence[SegmentRef]) -> list[SegmentRef] | None:
        for tries_left in reversed(range(_LISTINGS)):
            try:
                names = self._disk.names()
                found = frozenset(name for name in names if positions_of(name) is not None)
                if found == self._listed:
                    return None
                refs = self._contiguous_refs(found, known)
            except FileNotFoundError:
                # A segment was trimmed between the two looks: the next call sees it all.
                return None
            except WalDamagedError:
                # A listing amid appends may have the next segment and not the one before it.
                if not tries_left:
                    raise
            except OSError as error:
                raise WalError(f"{self.path} can't be read: {error}") from error
            else:
                self._listed = found
                return [ref for ref in refs if ref not in known[-1:]]
        raise AssertionError("the last try returns or raises")

    def _contiguous_refs(
        self, names: frozenset[str], known: Sequence[SegmentRef]
    ) -> list[SegmentRef]:
        """The segments of these names, from the last known one on. Raises WalError, OSError."""
        # The writer's fsync of the folder may still be to come.
        self._disk.sync_folder()
        refs = sorted(
            (
                SegmentRef(os.path.join(self.path, name), *positions)
                for name in names
                if (positions := positions_of(name)) is not None
            ),
            key=lambda ref: (ref.first, ref.end),
        )
        refs, _ = without_replaced(self._disk, refs)
        if known:
            newer = [ref for ref in refs if ref.first >= known[-1].end]
            if not newer and os.path.basename(known[-1].path) not in names:
                raise WalDamagedError(
                    f"{self.path} lacks its newest segment, up to {known[-1].end}: the log was "
                    "removed or replaced"
                )
            refs = [known[-1], *newer]
        # Before the last known segment nothing is looked for, committed or not.
        known_end = known[-1].end if known else 0
        refs, _ = check_contiguous(self.path, refs, max(known_end, self.read_committed()))
        return refs

    def read_committed(self) -> int:
        try:
            own = meta.read_committed(self._disk) or 0
            return max(own, meta.newest_reader_commit(self._disk.names()))
        except OSError as error:
            raise WalError(f"{self.path} can't be read: {error}") from error

    def commit(self, lsn: int) -> None:
        try:
            meta.write_reader_commit(self._disk, lsn)
        except OSError as error:
            text = f"{self.path}: {error.strerror or error}"
            raise (WalFullError if error.errno in _NO_ROOM else WalError)(text) from error
