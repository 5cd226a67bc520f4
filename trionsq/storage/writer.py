"""The tail of a disk queue: records go to the current file until it is full, then to the next.

Spec: nsqd-internals, section 7 (writing).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from trionsq.disk import Disk, DiskFile, close_quietly
from trionsq.storage.positions import Positions, QueueFiles
from trionsq.storage.records import EncodedRecords

__all__ = ["MAX_OPEN_SEALED", "NumberedFile", "QueueWriter", "close_sealed"]

log = logging.getLogger("trionsq")

MAX_OPEN_SEALED: Final = 16
"""Full files that stay open until they are durable; the sync reopens further ones."""

NumberedFile = tuple[int, DiskFile | None]
"""Number of a record file and the file, None if it is not open."""


def close_sealed(files: list[NumberedFile]) -> None:
    """Close files that need not become durable."""
    for _, file in files:
        if file is not None:
            close_quietly(file)


class QueueWriter:
    """Appends records.

    A sync borrows files by `lend_files` until `end_loan`, and returns by `return_sealed` those
    that it did not make durable. A file on loan is closed only after the loan.

    Attributes:
        sealed: full files that are not durable, oldest first.
    """

    __slots__ = ("_close_after_loan", "_disk", "_ends", "_file", "_file_on_loan", "_files",
                 "_is_unsynced", "_max_file_bytes", "_positions", "sealed")  # fmt: skip

    def __init__(
        self, disk: Disk, files: QueueFiles, positions: Positions, max_file_bytes: int
    ) -> None:
        """``max_file_bytes`` is --max-bytes-per-file."""
        self.sealed: list[NumberedFile] = []
        self._disk = disk
        self._files = files
        self._positions = positions
        self._max_file_bytes = max_file_bytes
        self._file: DiskFile | None = None
        # Whether the current file has records that are not durable.
        self._is_unsynced = False
        self._file_on_loan: DiskFile | None = None
        self._close_after_loan: list[DiskFile] = []
        # Where files must end that a refused append left longer. A file with a number above the
        # current one must not exist.
        self._ends: dict[int, int] = {}

    @property
    def has_open_file(self) -> bool:
        """Whether the current file is open."""
        return self._file is not None

    def end_of(self, number: int) -> int | None:
        """Return the offset where the records of a file end; None: at the end of the file."""
        if number == self._positions.write_file:
            return self._positions.write_pos
        return self._ends.get(number)

    def repaired_ends(self) -> dict[int, int]:
        """Return by number where files end that are longer on disk."""
        return self._ends.copy()

    def append(self, records: EncodedRecords) -> bool:
        """Write all records or none; return whether a new file was begun.

        Raises:
            OSError: no record was written.
        """
        positions = self._positions
        file, pos = positions.write_file, positions.write_pos
        fresh = self._file is None
        try:
            if file in self._ends:
                self._repair(file)
            if pos + records.size <= self._max_file_bytes:
                self._write(records.data)
            else:
                self._write_to_several(records)
        except OSError:
            self._undo(file, pos)
            raise
        self._is_unsynced = True
        return fresh or positions.write_file != file

    def _write_to_several(self, records: EncodedRecords) -> None:
        positions = self._positions
        count = start = 0
        while count < records.count:
            room = max(0, self._max_file_bytes - positions.write_pos)
            end_count = records.count_within(start + room)
            if end_count <= count:
                if positions.write_pos:
                    self.seal()
                    continue
                end_count = count + 1  # a record may exceed the limit in a file of its own
            end = records.end(end_count)
            self._write(records.data[start:end])
            count, start = end_count, end

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
                # Writing at that offset would leave a hole, which cannot be read.
                positions.write_file += 1
                positions.write_pos = 0
            else:
                return self._file
        self._file = self._create(positions.write_file)
        return self._file

    def _create(self, number: int) -> DiskFile:
        name = self._files.records(number)
        with suppress(FileExistsError):
            created = self._disk.create(name)
            self._ends.pop(number, None)  # the file did not exist at all
            return created
        file = self._disk.open(name)
        try:
            if number in self._ends:
                file.truncate(0)
            is_empty = not file.size()
        except OSError:
            close_quietly(file)
            raise
        if is_empty:
            self._ends.pop(number, None)
            return file
        close_quietly(file)
        log.error("DISKQUEUE(%s): renamed an unexpected %s to .bad", self._files.queue, name)
        self._disk.rename(name, self._files.set_aside(number))
        return self._disk.create(name)

    def seal(self) -> None:
        """End the current file; further records go to the next one."""
        file, self._file = self._file, None
        if file is not None:
            if len(self.sealed) >= MAX_OPEN_SEALED:
                self._close(file)
                file = None
            self.sealed.append((self._positions.write_file, file))
        self._positions.write_file += 1
        self._positions.write_pos = 0

    def lend_files(self) -> tuple[list[NumberedFile], tuple[int, DiskFile] | None]:
        """Return the sealed files, and the current one if it has unsynced records.

        The caller makes them durable, and closes the sealed ones.
        """
        current = None
        if self._is_unsynced and self._file is not None:
            current = (self._positions.write_file, self._file)
            self._file_on_loan = self._file
        sealed, self.sealed, self._is_unsynced = self.sealed, [], False
        return sealed, current

    def end_loan(self) -> None:
        """Note that the sync no longer uses the current file it borrowed."""
        self._file_on_loan = None
        for file in self._close_after_loan:
            close_quietly(file)
        self._close_after_loan.clear()

    def return_sealed(self, files: list[NumberedFile]) -> None:
        """Take back sealed files that are still not durable."""
        self.sealed[:0] = files

    def _close(self, file: DiskFile) -> None:
        if file is self._file_on_loan:
            self._close_after_loan.append(file)
        else:
            close_quietly(file)

    def _undo(self, file: int, pos: int) -> None:
        positions = self._positions
        if positions.write_file != file and self._file is not None:
            self._close(self._file)
            self._file = None
        while self.sealed and self.sealed[-1][0] >= file:
            _, sealed = self.sealed.pop()
            if sealed is not None:
                self._close(sealed)
        self._ends.update(dict.fromkeys(range(file + 1, positions.write_file + 1), 0))
        self._ends[file] = pos
        positions.write_file, positions.write_pos = file, pos
        with suppress(OSError):  # otherwise before the next record or sync
            self.repair_files()

    def repair_files(self) -> None:
        """Remove what refused appends left: each file ends with its last record, and no more exist.

        Raises:
            OSError: something is left.
        """
        failure: OSError | None = None
        for number in sorted(self._ends):
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
                self._file.truncate(self._ends[number])
            else:
                self._truncate(name, self._ends[number])
        del self._ends[number]

    def _truncate(self, name: str, size: int) -> None:
        file = self._disk.open(name)
        try:
            file.truncate(size)
        finally:
            close_quietly(file)

    def abandon_files(self) -> None:
        """Continue with a file behind all existing ones; nothing in those is needed any more."""
        self.release()
        self._positions.write_file = max([self._positions.write_file, *self._ends]) + 1
        self._positions.write_pos = 0
        self._ends.clear()

    def release(self) -> None:
        """Close all files, durable or not."""
        for _, file in self.sealed:
            if file is not None:
                self._close(file)
        self.sealed.clear()
        if self._file is not None:
            self._close(self._file)
            self._file = None
        self._is_unsynced = False

    def check(self) -> str | None:
        """Return a contradiction in the state of the writer, None if there is none. O(1)."""
        number = self._positions.write_file
        if self.sealed and self.sealed[-1][0] >= number:
            return f"the write position is in file {number}, which is sealed"
        return None
