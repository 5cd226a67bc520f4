"""The tail of a disk queue: records go to the current file until it is full, then to the next.

Spec: nsqd-internals, section 7 (writing).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from trionsq.disk import Disk, DiskFile, close_quietly
from trionsq.storage.positions import Positions, QueueFiles
from trionsq.storage.records import Records

__all__ = ["SEALED_MAX", "QueueWriter"]

log = logging.getLogger("trionsq")

# Full files that stay open until they are durable. More of them are closed, and opened for that.
SEALED_MAX: Final = 16


class QueueWriter:
    """Appends records.

    Attributes:
        sealed: full files that are not durable yet, with their numbers, the oldest first; None
            for one that is not open. Whoever takes them from here has to sync and close them.
        unsynced: whether the current file has records that are not durable.
        lent: the file that a background job is using; it is not closed before `take_back`.
        torn: what a refused append left and could not yet be removed: by file number, where the
            file must end. A number above that of the current file: there must be no such file.
    """

    __slots__ = (
        "_disk",
        "_file",
        "_file_nbytes_max",
        "_files",
        "_left",
        "_positions",
        "lent",
        "sealed",
        "torn",
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
        # Files to be closed when the job that uses one of them is done.
        self._left: list[DiskFile] = []
        self.sealed: list[tuple[int, DiskFile | None]] = []
        self.unsynced = False
        self.lent: DiskFile | None = None
        self.torn: dict[int, int] = {}

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
            if file in self.torn:
                self._repair(file)
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
        self._file = self._create(positions.write_file)
        return self._file

    def _create(self, number: int) -> DiskFile:
        name = self._files.records(number)
        with suppress(FileExistsError):
            made = self._disk.create(name)
            self.torn.pop(number, None)  # it was not there at all
            return made
        file = self._disk.open(name)
        try:
            if number in self.torn:
                file.truncate(0)
            is_empty = not file.size()
        except OSError:
            close_quietly(file)
            raise
        if is_empty:
            self.torn.pop(number, None)
            return file
        close_quietly(file)
        log.error(
            "DISKQUEUE(%s): %s belongs to no known state, set aside as .bad",
            self._files.queue,
            name,
        )
        self._disk.rename(name, self._files.set_aside(number))
        return self._disk.create(name)

    def seal(self) -> None:
        """End the current file; what comes goes to the next."""
        file, self._file = self._file, None
        if file is not None:
            if len(self.sealed) >= SEALED_MAX:
                self._close(file)
                file = None
            self.sealed.append((self._positions.write_file, file))
        self._positions.write_file += 1
        self._positions.write_pos = 0

    def _close(self, file: DiskFile) -> None:
        if file is self.lent:
            self._left.append(file)
        else:
            close_quietly(file)

    def take_back(self) -> None:
        """The job with the file that was lent is done."""
        self.lent = None
        for file in self._left:
            close_quietly(file)
        self._left.clear()

    def _undo(self, file: int, pos: int) -> None:
        positions = self._positions
        if positions.write_file != file and self._file is not None:
            self._close(self._file)
            self._file = None
        while self.sealed and self.sealed[-1][0] >= file:
            _, sealed = self.sealed.pop()
            if sealed is not None:
                self._close(sealed)
        self.torn.update(dict.fromkeys(range(file + 1, positions.write_file + 1), 0))
        self.torn[file] = pos
        positions.write_file, positions.write_pos = file, pos
        with suppress(OSError):  # if not now, then before the next record or sync
            self.settle()

    def settle(self) -> None:
        """See to it that every file ends with its last record, and that there are no others.

        Raises:
            OSError: something is left of a refused append.
        """
        failure: OSError | None = None
        for number in sorted(self.torn):
            try:
                self._repair(number)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def _repair(self, number: int) -> None:
        name = self._files.records(number)
        with suppress(FileNotFoundError):
            if number > self._positions.write_file:
                self._disk.unlink(name)
            elif number == self._positions.write_file:
                self._file = self._file or self._disk.open(name)
                self._file.truncate(self.torn[number])
            else:
                self._truncate(name, self.torn[number])
        del self.torn[number]

    def _truncate(self, name: str, nbytes: int) -> None:
        file = self._disk.open(name)
        try:
            file.truncate(nbytes)
        finally:
            close_quietly(file)

    def leave_all(self) -> None:
        """Go on with a file behind all that there may be; nothing of these is needed any more."""
        self.release()
        self._positions.write_file = max([self._positions.write_file, *self.torn]) + 1
        self._positions.write_pos = 0
        self.torn.clear()

    def release(self) -> None:
        """Let go of all files, durable or not."""
        for _, file in self.sealed:
            if file is not None:
                self._close(file)
        self.sealed.clear()
        if self._file is not None:
            self._close(self._file)
            self._file = None
        self.unsynced = False
