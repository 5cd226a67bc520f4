"""The job that makes a disk queue durable, in a thread beside the broker.

The order matters: records before the positions that count them, positions before the deletion of
the files that they no longer name (unless the disk is too full for them).

Spec: nsqd-internals, section 7 (sync).
"""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass, field
from typing import Final

from trionsq.disk import Disk, DiskFile, close_quietly, read_pieces, replace_file
from trionsq.storage.deferrals import DeferralChanges
from trionsq.storage.positions import FileNumbers, Generation, QueueFiles, delete_files
from trionsq.storage.writer import NumberedFile

__all__ = ["SyncJob"]

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(slots=True)
class SyncJob:
    """One round of making a queue durable.

    Attributes:
        sealed: full files with their numbers, to be synced and closed; None: not open.
        current: the file being written with its number, None if all of it is durable.
        unsynced: number and size of the files that a sync failed to make durable (size None: to
            the end). They are rewritten, for another sync would prove nothing.
        deferrals: changes of the deferral file, None if there are none.
        positions: content for the positions file, None if that is durable.
        finished: numbers of files to be deleted.
        max_deleted: how many of them this job deletes at most.
        deleted: how many it has deleted.
        durable: whether everything is durable; a later error only left files behind.
        fsyncs_s: durations of the fsyncs of record files, in seconds.
    """

    disk: Disk
    files: QueueFiles
    generation: Generation
    number: int
    sealed: list[NumberedFile]
    current: tuple[int, DiskFile] | None
    unsynced: list[tuple[int, int | None]]
    deferrals: DeferralChanges | None
    positions: bytes | None
    finished: FileNumbers
    max_deleted: int
    deleted: int = 0
    durable: bool = False
    fsyncs_s: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Do as much as possible, in any thread.

        Raises:
            OSError: something failed. Lists keep only what is still to be done.
        """
        try:
            self._make_durable()
            if self._is_valid:
                self.durable = True
                self._clean_up()
        finally:
            if self.deferrals is not None:
                self.deferrals.free_dropped()

    def _make_durable(self) -> None:
        for step in (self._sync_files, self._rewrite_unsynced, self._store_deferrals):
            if self._is_valid:
                step()
        if self.positions is not None and self._is_valid:
            self._write_positions(self.positions)

    @property
    def _is_valid(self) -> bool:
        return self.generation.number == self.number

    def _sync_files(self) -> None:
        while self.sealed and self._is_valid:
            number, file = self.sealed[0]
            if file is None:
                self._sync_closed(number)
            else:
                self._sync(file)
                close_quietly(file)
            self.sealed.pop(0)
        if self.current is not None and self._is_valid:
            self._sync(self.current[1])
            self.current = None

    def _sync_closed(self, number: int) -> None:
        try:
            file = self.disk.open(self.files.records(number))
        except FileNotFoundError:
            return  # the file was set aside
        try:
            self._sync(file)
        finally:
            close_quietly(file)

    def _sync(self, file: DiskFile) -> None:
        start_s = time.perf_counter()
        try:
            file.sync()
        finally:
            self.fsyncs_s.append(time.perf_counter() - start_s)

    def _rewrite_unsynced(self) -> None:
        while self.unsynced and self._is_valid:
            number, size = self.unsynced[0]
            self._rewrite(self.files.records(number), size)
            self.unsynced.pop(0)

    def _rewrite(self, name: str, size: int | None) -> None:
        try:
            file = self.disk.open(name)
        except FileNotFoundError:
            return  # the file was read and deleted, or set aside
        try:
            replace_file(self.disk, name, read_pieces(file, size), rename=self._rename)
        finally:
            close_quietly(file)

    def _store_deferrals(self) -> None:
        if self.deferrals is not None:
            self.deferrals.store_new()

    def _write_positions(self, text: bytes) -> None:
        while True:
            try:
                replace_file(self.disk, self.files.positions, text, rename=self._rename)
            except OSError as error:
                if error.errno not in _FULL or not self.finished or not self._is_valid:
                    raise
                # Only this can make room. After a crash now the reader misses the deleted file and
                # moves on to the next one: all of it was read.
                failure = delete_files(self.disk, self.files, self.finished, 1)
                if failure is not None:
                    raise failure from error
            else:
                return

    def _rename(self, draft: str, name: str) -> None:
        if self._is_valid:
            self.disk.rename(draft, name)
        else:
            self.disk.unlink(draft)

    def _clean_up(self) -> None:
        before = len(self.finished)
        failure = delete_files(self.disk, self.files, self.finished, self.max_deleted)
        self.deleted = before - len(self.finished)
        if self.deferrals is not None and self._is_valid:
            self.deferrals.remove_spent()
        if failure is not None:
            raise failure
