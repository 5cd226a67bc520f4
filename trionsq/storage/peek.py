"""A look at a disk queue: what lies between its positions of one moment, read without moving them.

It opens the files for itself, so that it may be done in a thread beside the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trionsq.core.peek import Page, Peeked, PeekStale, PeekTooFar
from trionsq.disk import Disk, DiskFile, close_quietly
from trionsq.storage.positions import Positions, QueueFiles
from trionsq.storage.records import RECORD_NBYTES_EXTRA, Block, parse
from trionsq.storage.sync import Generation

__all__ = ["SCANNED_NBYTES_MAX", "QueueView"]

SCANNED_NBYTES_MAX: Final = 64 * 1024 * 1024
"""What may be read to get to an offset."""

_BLOCK_NBYTES: Final = 256 * 1024
# In a record; see `trionsq.storage.records`.
_STAMP: Final = slice(4, 12)
_ATTEMPTS: Final = slice(12, 14)
_ID: Final = slice(14, 30)


class _Stop(Exception):
    """The file can't be read on; the text says why."""


class QueueView:
    """The records between two positions; see `trionsq.core.peek.BackendView`."""

    def __init__(
        self,
        disk: Disk,
        files: QueueFiles,
        positions: Positions,
        ends: Mapping[int, int],
        body_nbytes_max: int,
        due_ns: Callable[[bytes], int | None],
        generation: Generation,
    ) -> None:
        """The positions are those of now; all other calls may be in another thread.

        ``ends``: by file number, where a file ends if not at its end. ``due_ns``: when a message is
        due, nanoseconds since the epoch; None if it is not deferred. ``generation``: of the queue,
        which changes when that is emptied or deleted.
        """
        self._disk = disk
        self._files = files
        self._number, self._pos = positions.read_file, positions.read_pos
        self._last = (positions.write_file, positions.write_pos)
        self._ends = dict(ends)
        self._body_nbytes_max = body_nbytes_max
        self._due_ns = due_ns
        self._generation = generation
        self._generation_number = generation.number
        self._scanned_nbytes = 0
        self._skip = 0

    def __repr__(self) -> str:
        return f"<QueueView {self._files.queue} {self._number},{self._pos} to {self._last}>"

    def read(self, skip: int, page: Page) -> None:
        """To be called once."""
        self._skip = skip
        self._read_files(page)
        if self._generation.number != self._generation_number:
            # Files of the same names may have been begun since.
            raise PeekStale("the queue was emptied or deleted")

    def _read_files(self, page: Page) -> None:
        while not page.more and (self._number, self._pos) < self._last:
            name = self._files.records(self._number)
            try:
                self._read_file(name, page)
            except FileNotFoundError as error:
                # It was read to its end and removed; or it is missing.
                raise PeekStale(f"{name}: {error.strerror}") from error
            except OSError as error:
                page.trouble = f"{name}: {error.strerror}"
                return
            except _Stop as stop:
                page.trouble = f"{name}: {stop}"
                return
            self._number, self._pos = self._number + 1, 0

    def _read_file(self, name: str, page: Page) -> None:
        file = self._disk.open(name)
        try:
            end = self._end(file)
            while self._pos < end and not page.more:
                self._read_block(file, end - self._pos, page)
        finally:
            close_quietly(file)

    def _end(self, file: DiskFile) -> int:
        number, pos = self._last
        if self._number == number:
            return pos
        end = self._ends.get(self._number)
        return file.size() if end is None else end

    def _read_block(self, file: DiskFile, left: int, page: Page) -> None:
        if self._skip and self._scanned_nbytes >= SCANNED_NBYTES_MAX:
            raise PeekTooFar
        wanted = min(_BLOCK_NBYTES, left)
        data = file.read(wanted, self._pos)
        self._scanned_nbytes += len(data)
        block = parse(data, self._body_nbytes_max)
        if block.count:
            self._show(block, page)
            self._pos += block.nbytes
        elif block.corrupt:
            raise _Stop(f"no record begins at offset {self._pos}")
        elif block.needed > left or len(data) < wanted:
            raise _Stop(f"the record at offset {self._pos} is cut short")
        else:
            self._show_long(file, data, block.needed, page)
            self._pos += block.needed

    def _show(self, block: Block, page: Page) -> None:
        assert block.batch is not None
        batch = block.batch
        if self._skip >= block.count:
            self._skip -= block.count
            return
        skip, self._skip = self._skip, 0
        for first, last, attempts in block.runs:
            for index in range(max(first, skip), last):
                nbytes = block.end(index + 1) - block.end(index) - RECORD_NBYTES_EXTRA
                shown = page.fits(nbytes)
                if shown is None:
                    return
                (id_,) = batch.ids.slice(index, index + 1)
                timestamp_ns = int.from_bytes(batch.stamp(index), "big", signed=True)
                body = batch.bodies.body_at(index)[:shown]
                page.add_message(
                    Peeked(id_, timestamp_ns, attempts, body, nbytes, self._due_ns(id_))
                )

    def _show_long(self, file: DiskFile, head: bytes, nbytes: int, page: Page) -> None:
        """A record longer than a block: no more of it is read than is shown."""
        if self._skip:
            self._skip -= 1
            return
        body_nbytes = nbytes - RECORD_NBYTES_EXTRA
        shown = page.fits(body_nbytes)
        if shown is None:
            return
        body = head[RECORD_NBYTES_EXTRA : RECORD_NBYTES_EXTRA + shown]
        if len(body) < shown:
            body += file.read(shown - len(body), self._pos + len(head))
            if len(body) < shown:
                raise _Stop(f"the record at offset {self._pos} is cut short")
        timestamp_ns = int.from_bytes(head[_STAMP], "big", signed=True)
        attempts, id_ = int.from_bytes(head[_ATTEMPTS], "big"), head[_ID]
        page.add_message(Peeked(id_, timestamp_ns, attempts, body, body_nbytes, self._due_ns(id_)))
