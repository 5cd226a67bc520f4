"""The tail of a disk queue: records go to the current file until it is full, then to the next.

Spec: nsqd-internals, section 7 (writing).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from trionsq.storage.disk import Disk, DiskFile
from trionsq.storage.positions import Positions, QueueFiles
from trionsq.storage.records import Records

__all__ = ["SEALED_MAX", "QueueWriter"]

log = logging.getLogger("trionsq")

# Full files that wait to be made durable. With more, the next one is synced before going on.
SEALED_MAX: Final = 16


class QueueWriter:
    """Appends records.

    Attributes:
        sealed: full files that are not durable yet, with their numbers, the oldest first. Whoever
            takes them from here has to sync and close them.
        unsynced: whether the current file has records that are not durable.
        lent: the file that a background job is using; it is not closed before `take_back`.
    """

    __slots__ = (
        "_disk",
        "_file",
        "_file_nbytes_max",
        "_files",
        "_left",
        "_positions",
        "_torn",
        "lent",
        "sealed",
        "unsynced",
    )

    def __init__(
        self, disk: Disk, files: QueueFiles, positions: Positions, file_nbytes_max: int
    ) -> None:
        """``file_nbytes_max`` is --max-bytes-per-file."""
        self._disk = disk
        self._files = files
        self._positions = positions
        self._file_nbytes_max = file_nbytes_max
        self._file: DiskFile | None = None
        # A refused write may have left something behind the last record.
        self._torn = False
        # Files to be closed when the job that uses one of them is done.
        self._left: list[DiskFile] = []
        self.sealed: list[tuple[int, DiskFile]] = []
        self.unsynced = False
        self.lent: DiskFile | None = None

    @property
    def file(self) -> DiskFile | None:
        """The current file, None if it is not open."""
        return self._file

    def append(self, records: Records) -> bool:
        """Write all records, or none; whether that began a new file.

        Raises:
            OSError: nothing was written.
        """
        positions = self._positions
        file, pos = positions.write_file, positions.write_pos
        fresh = self._file is None
        try:
            if self._torn:
                self._repair()
            if pos + records.nbytes <= self._file_nbytes_max:
                self._write(records.data)
            else:
                self._write_to_several(records)
        except OSError:
            self._undo(file, pos)
            raise
        self.unsynced = True
        return fresh or positions.write_file != file

    def _write_to_several(self, records: Records) -> None:
        positions = self._positions
        done = start = 0
        while done < records.count:
            room = max(0, self._file_nbytes_max - positions.write_pos)
            upto = records.fit(start + room)
            if upto <= done:
                if positions.write_pos:
                    self.seal()
                    continue
                upto = done + 1  # a record may exceed the limit in a file of its own
            end = records.end(upto)
            self._write(records.data[start:end])
            done, start = upto, end

    def _write(self, data: bytes) -> None:
        file = self._file or self._open()
        file.write(data, self._positions.write_pos)
        self._positions.write_pos += len(data)

    def _open(self) -> DiskFile:
        positions, files = self._positions, self._files
        if positions.write_pos:
            try:
                self._file = self._disk.open(files.records(positions.write_file))
            except FileNotFoundError:
                # Writing at that offset would leave a hole, which nobody can read.
                positions.write_file += 1
                positions.write_pos = 0
            else:
                return self._file
        name = files.records(positions.write_file)
        try:
            self._file = self._disk.create(name)
        except FileExistsError:
            log.error(
                "DISKQUEUE(%s): %s belongs to no known state, set aside as .bad", files.queue, name
            )
            self._disk.rename(name, files.set_aside(positions.write_file))
            self._file = self._disk.create(name)
        return self._file

    def seal(self) -> None:
        """End the current file; what comes goes to the next.

        Raises:
            OSError: too many files were not durable, and the oldest can't be made so.
        """
        if len(self.sealed) >= SEALED_MAX:
            self.sealed[0][1].sync()
            self._close(self.sealed.pop(0)[1])
        if self._file is not None:
            self.sealed.append((self._positions.write_file, self._file))
            self._file = None
        self._torn = False
        self._positions.write_file += 1
        self._positions.write_pos = 0

    def _close(self, file: DiskFile) -> None:
        if file is self.lent:
            self._left.append(file)
        else:
            file.close()

    def take_back(self) -> None:
        """The job with the file that was lent is done."""
        self.lent = None
        for file in self._left:
            file.close()
        self._left.clear()

    def _undo(self, file: int, pos: int) -> None:
        positions = self._positions
        if positions.write_file != file and self._file is not None:
            self._close(self._file)
            self._file = None
        while self.sealed and self.sealed[-1][0] >= file:
            self._close(self.sealed.pop()[1])
        for number in range(file + 1, positions.write_file + 1):
            with suppress(OSError):  # a leftover is set aside when its number comes again
                self._disk.unlink(self._files.records(number))
        positions.write_file, positions.write_pos = file, pos
        self._torn = True
        # If not now, then before the next record.
        with suppress(OSError):
            self._repair()

    def _repair(self) -> None:
        if self._file is None:
            try:
                self._file = self._disk.open(self._files.records(self._positions.write_file))
            except FileNotFoundError:
                self._torn = False
                return
        self._file.truncate(self._positions.write_pos)
        self._torn = False

    def settle(self) -> None:
        """See to it that the file ends with the last record.

        Raises:
            OSError: something else stands behind it.
        """
        if self._torn:
            self._repair()

    def release(self) -> None:
        """Let go of all files, durable or not."""
        for _, file in self.sealed:
            self._close(file)
        self.sealed.clear()
        if self._file is not None:
            self._close(self._file)
            self._file = None
        self._torn = False
        self.unsynced = False
