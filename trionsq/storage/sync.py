"""Making a disk queue durable, in a thread beside the broker.

The order matters: records before the positions that count them, positions before the removal of
the files that they no longer name. Spec: nsqd-internals, section 7 (sync).
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass

from trionsq.storage.deferrals import DeferralFile
from trionsq.storage.disk import Disk, DiskFile, replace_file

__all__ = ["Generation", "SyncJob"]


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
        sealed: full files, to be synced and closed.
        current: the file being written, None if it has nothing new.
        deferrals: new entries of the sidecar, None to remove it.
        positions: the text of the positions file, None if it stands already.
        finished: files to be removed.
    """

    disk: Disk
    generation: Generation
    number: int
    sealed: list[tuple[int, DiskFile]]
    current: DiskFile | None
    sidecar: DeferralFile
    deferrals: list[tuple[bytes, int]] | None
    positions_file: str
    positions: bytes | None
    finished: list[str]

    def run(self) -> None:
        """Do it all, or as much as goes; may run in any thread.

        Raises:
            OSError: it is not durable. What was done of it is taken off the lists.
        """
        while self.sealed:
            self.sealed[0][1].sync()
            self.sealed.pop(0)[1].close()
        if self.current is not None:
            self.current.sync()
            self.current = None
        if self.deferrals:
            with self.generation.lock:
                if self.generation.number == self.number:
                    self.sidecar.append(self.deferrals)
                self.deferrals = []
        if self.positions is not None:
            replace_file(self.disk, self.positions_file, self.positions, self._rename)
        self._remove()

    def _rename(self, draft: str, name: str) -> None:
        with self.generation.lock:
            if self.generation.number == self.number:
                self.disk.rename(draft, name)
            else:
                self.disk.unlink(draft)

    def _remove(self) -> None:
        with self.generation.lock:
            if self.generation.number != self.number:
                return
            if self.deferrals is None:
                self.sidecar.remove()
            while self.finished:
                with suppress(FileNotFoundError):
                    self.disk.unlink(self.finished[0])
                self.finished.pop(0)
