"""Making a disk queue durable, in a thread beside the broker.

The order matters: records before the positions that count them, positions before the removal of
the files that they no longer name (unless the disk is too full for them). Spec: nsqd-internals,
section 7 (sync).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from trionsq.disk import Disk, DiskFile, close_quietly, read_pieces, replace_file
from trionsq.storage.deferrals import DeferralFile
from trionsq.storage.duetimes import SidecarWork
from trionsq.storage.positions import FileNumbers, QueueFiles, remove_files

__all__ = ["REMOVED_AT_ONCE", "Generation", "SyncJob"]

REMOVED_AT_ONCE: Final = 4
"""Files that one job removes. To remove one of 100 MB took 35 to 64 ms where it was measured, and
meanwhile nothing of this queue is made durable."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Generation:
    """Tells jobs and views whether what they were begun for still is.

    Emptying or deleting a queue raises `number`, in the event loop. A job looks at it before each
    step. So its last step may come after that, but what it does then is done over by the job that
    follows it.
    """

    def __init__(self) -> None:
        self.number = 0


@dataclass(slots=True)
class SyncJob:
    """One round of making durable.

    Attributes:
        sealed: full files, to be synced and closed, with their numbers; None: not open any more.
        current: the file being written with its number, None if it has nothing new.
        doubtful: files that a sync failed to make durable, to be written anew: another sync would
            prove nothing. Each by its number, with its size in bytes, None: all there is.
        due_times: what is to be done to the sidecar.
        positions: the text of the positions file, None if it stands already.
        finished: numbers of files to be removed.
        removed_max: how many of them this job removes at most.
        removed: how many it has removed.
        durable: whether all is; an error after that left something behind, but lost nothing.
        fsyncs_s: how long each sync of a file with records took, in seconds.
    """

    disk: Disk
    files: QueueFiles
    generation: Generation
    number: int
    sealed: list[tuple[int, DiskFile | None]]
    current: tuple[int, DiskFile] | None
    doubtful: list[tuple[int, int | None]]
    sidecar: DeferralFile
    due_times: SidecarWork
    positions: bytes | None
    finished: FileNumbers
    removed_max: int
    removed: int = 0
    durable: bool = False
    fsyncs_s: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Do it all, or as much as goes; may run in any thread.

        Raises:
            OSError: not all was done. Records and removals that were are taken off their lists.
        """
        try:
            self._make_durable()
            if self._is_valid:
                self.durable = True
                self._tidy_up()
        finally:
            self.due_times.free_dropped()

    def _make_durable(self) -> None:
        for step in (self._sync_files, self._write_doubtful, self._append_due_times):
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
            return  # it was set aside
        try:
            self._sync(file)
        finally:
            close_quietly(file)

    def _sync(self, file: DiskFile) -> None:
        began_s = perf_counter()
        try:
            file.sync()
        finally:
            self.fsyncs_s.append(perf_counter() - began_s)

    def _write_doubtful(self) -> None:
        while self.doubtful and self._is_valid:
            number, nbytes = self.doubtful[0]
            self._write_anew(self.files.records(number), nbytes)
            self.doubtful.pop(0)

    def _write_anew(self, name: str, nbytes: int | None) -> None:
        try:
            file = self.disk.open(name)
        except FileNotFoundError:
            return  # it was read, or set aside
        try:
            replace_file(self.disk, name, read_pieces(file, nbytes), rename=self._rename)
        finally:
            close_quietly(file)

    def _append_due_times(self) -> None:
        if new := self.due_times.wanted():
            self.sidecar.append(new)

    def _write_positions(self, text: bytes) -> None:
        while True:
            try:
                replace_file(self.disk, self.files.positions, text, rename=self._rename)
            except OSError as error:
                if error.errno not in _FULL or not self.finished or not self._is_valid:
                    raise
                # Nobody else will make room. After a crash now the reader misses this file, and
                # goes on to the next: all of it was read.
                failure = remove_files(self.disk, self.files, self.finished, 1)
                if failure is not None:
                    raise failure from error
            else:
                return

    def _rename(self, draft: str, name: str) -> None:
        if self._is_valid:
            self.disk.rename(draft, name)
        else:
            self.disk.unlink(draft)

    def _tidy_up(self) -> None:
        before = len(self.finished)
        failure = remove_files(self.disk, self.files, self.finished, self.removed_max)
        self.removed = before - len(self.finished)
        if self.due_times.tidy and self._is_valid:
            self.sidecar.keep_only(self.due_times.is_kept)
        if failure is not None:
            raise failure
