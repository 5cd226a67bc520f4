"""Making a disk queue durable, in a thread beside the broker.

The order matters: records before the positions that count them, positions before the removal of
the files that they no longer name (unless the disk is too full for them). Spec: nsqd-internals,
section 7 (sync).
"""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from trionsq.storage.deferrals import DeferralFile
from trionsq.storage.disk import Disk, DiskFile, replace_file
from trionsq.storage.duetimes import SidecarWork
from trionsq.storage.folder import let_go

__all__ = ["Generation", "SyncJob"]

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Generation:
    """Tells jobs whether what they were begun for still is.

    Emptying or deleting a queue raises `number`. A job that changes names in the folder does so
    under `lock`, if the number is still its own.
    """

    def __init__(self) -> None:
        self.number = 0
        self.lock = threading.Lock()


@dataclass(slots=True)
class SyncJob:
    """One round of making durable.

    Attributes:
        sealed: full files, to be synced and closed, with their numbers.
        current: the file being written with its number, None if it has nothing new.
        doubtful: files that a sync failed to make durable, to be written anew: another sync would
            prove nothing. Each with its size in bytes, None: all there is.
        due_times: what is to be done to the sidecar.
        positions: the text of the positions file, None if it stands already.
        finished: names of files to be removed.
        durable: whether all is; an error after that left something behind, but lost nothing.
        fsyncs_s: how long each sync of a file with records took, in seconds.
    """

    disk: Disk
    generation: Generation
    number: int
    sealed: list[tuple[int, DiskFile]]
    current: tuple[int, DiskFile] | None
    doubtful: list[tuple[str, int | None]]
    sidecar: DeferralFile
    due_times: SidecarWork
    positions_file: str
    positions: bytes | None
    finished: list[str]
    durable: bool = False
    fsyncs_s: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Do it all, or as much as goes; may run in any thread.

        Raises:
            OSError: not all was done. Records and removals that were are taken off their lists.
        """
        while self.sealed:
            self._sync(self.sealed[0][1])
            let_go(self.sealed.pop(0)[1])
        if self.current is not None:
            self._sync(self.current[1])
            self.current = None
        while self.doubtful:
            self._write_anew(*self.doubtful[0])
            self.doubtful.pop(0)
        with self.generation.lock:
            if self.due_times.new and self._is_valid:
                self.sidecar.append(self.due_times.new)
        if self.positions is not None:
            self._write_positions(self.positions)
        self.durable = True
        with self.generation.lock:
            if self._is_valid:
                self._tidy_up()

    def _write_positions(self, text: bytes) -> None:
        try:
            replace_file(self.disk, self.positions_file, text, self._rename)
        except OSError as error:
            if error.errno not in _FULL or not self.finished:
                raise
            # Nobody else will make room. After a crash now the reader misses these files, and goes
            # on to the next: all of them was read.
            with self.generation.lock:
                if self._is_valid:
                    self._remove_finished()
            replace_file(self.disk, self.positions_file, text, self._rename)

    def _sync(self, file: DiskFile) -> None:
        began_s = perf_counter()
        try:
            file.sync()
        finally:
            self.fsyncs_s.append(perf_counter() - began_s)

    @property
    def _is_valid(self) -> bool:
        return self.generation.number == self.number

    def _write_anew(self, name: str, nbytes: int | None) -> None:
        try:
            file = self.disk.open(name)
        except FileNotFoundError:
            return  # it was read, or set aside
        try:
            data = file.read(file.size() if nbytes is None else nbytes, 0)
        finally:
            let_go(file)
        replace_file(self.disk, name, data, self._rename)

    def _rename(self, draft: str, name: str) -> None:
        with self.generation.lock:
            if self._is_valid:
                self.disk.rename(draft, name)
            else:
                self.disk.unlink(draft)

    def _tidy_up(self) -> None:
        self._remove_finished()
        if self.due_times.keep is not None:
            self.sidecar.replace(self.due_times.keep)

    def _remove_finished(self) -> None:
        while self.finished:
            with suppress(FileNotFoundError):
                self.disk.unlink(self.finished[0])
            self.finished.pop(0)
