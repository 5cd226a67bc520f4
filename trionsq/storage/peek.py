"""Peeking at a disk queue: the records between the positions of one moment, which do not move.

A view opens the files itself, so that it can be read in a thread beside the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trionsq.core.peek import Page, Peeked, PeekStale, PeekTooFar
from trionsq.disk import Disk, DiskFile, close_quietly
from trionsq.storage.positions import Generation, Positions, QueueFiles
from trionsq.storage.records import RECORD_OVERHEAD_BYTES, RecordBlock, parse

__all__ = ["MAX_SCANNED_BYTES", "QueueView"]

MAX_SCANNED_BYTES: Final = 64 * 1024 * 1024
"""Bytes that a view reads at most to reach an offset."""

_BLOCK_BYTES: Final = 256 * 1024
# Fields of a record; see `trionsq.storage.records`.
_STAMP: Final = slice(4, 12)
_ATTEMPTS: Final = slice(12, 14)
_ID: Final = slice(14, 30)


class _DamageError(Exception):
    """The rest of the file cannot be read; the text says why."""


class QueueView:
    """The records between two positions; see `trionsq.core.peek.BackendView`."""

    def __init__(
        self,
        disk: Disk,
        files: QueueFiles,
        positions: Positions,
        ends: Mapping[int, int],
        max_body_bytes: int,
        due_ns: Callable[[bytes], int | None],
        generation: Generation,
    ) -> None:
        """Note the current positions; the view is read later, in any thread.

        ``ends``: by number, where files end that are longer on disk. ``due_ns`` returns when a
        message is due, in nanoseconds since the epoch; None if it is not deferred.
        """
        self._disk = disk
        self._files = files
        self._number, self._pos = positions.read_file, positions.read_pos
        self._last = (positions.write_file, positions.write_pos)
        self._ends = dict(ends)
        self._max_body_bytes = max_body_bytes
        self._due_ns = due_ns
        self._generation = generation
        self._generation_number = generation.number
        self._scanned_bytes = 0
        self._skip = 0

    def __repr__(self) -> str:
        return f"<QueueView {self._files.queue} {self._number},{self._pos} to {self._last}>"

    def read(self, skip: int, page: Page) -> None:
        """Read the messages; to be called once."""
        self._skip = skip
        self._read_files(page)
        if self._generation.number != self._generation_number:
            # New files may have the same names.
            raise PeekStale("the queue was emptied or deleted")

    def _read_files(self, page: Page) -> None:
        while not page.more and (self._number, self._pos) < self._last:
            name = self._files.records(self._number)
            try:
                self._read_file(name, page)
            except FileNotFoundError as error:
                # The file was finished and deleted, or it is missing.
                raise PeekStale(f"{name}: {error.strerror}") from error
            except OSError as error:
                page.trouble = f"{name}: {error.strerror}"
                return
            except _DamageError as error:
                page.trouble = f"{name}: {error}"
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
        if self._skip and self._scanned_bytes >= MAX_SCANNED_BYTES:
            raise PeekTooFar
        size = min(_BLOCK_BYTES, left)
        data = file.read(size, self._pos)
        self._scanned_bytes += len(data)
        block = parse(data, self._max_body_bytes)
        if block.count:
            self._show_block(block, page)
            self._pos += block.size
        elif block.corrupt:
            raise _DamageError(f"no record begins at offset {self._pos}")
        elif block.needed > left or len(data) < size:
            raise _DamageError(f"the record at offset {self._pos} is cut short")
        else:
            self._show_long_record(file, data, block.needed, page)
            self._pos += block.needed

    def _show_block(self, block: RecordBlock, page: Page) -> None:
        assert block.batch is not None
        batch = block.batch
        if self._skip >= block.count:
            self._skip -= block.count
            return
        skip, self._skip = self._skip, 0
        for first, last, attempts in block.runs:
            for index in range(max(first, skip), last):
                body_bytes = block.end(index + 1) - block.end(index) - RECORD_OVERHEAD_BYTES
                shown_bytes = page.fits(body_bytes)
                if shown_bytes is None:
                    return
                (id_,) = batch.ids.slice(index, index + 1)
                timestamp_ns = int.from_bytes(batch.stamp(index), "big", signed=True)
                body = batch.bodies.body_at(index)[:shown_bytes]
                due_ns = self._due_ns(id_)
                page.add_message(
                    Peeked(id_, timestamp_ns, attempts, body, body_bytes, due_ns, on_disk=True)
                )

    def _show_long_record(self, file: DiskFile, head: bytes, size: int, page: Page) -> None:
        """Show a record longer than a block; reads only the shown part of it."""
        if self._skip:
            self._skip -= 1
            return
        body_bytes = size - RECORD_OVERHEAD_BYTES
        shown_bytes = page.fits(body_bytes)
        if shown_bytes is None:
            return
        body = head[RECORD_OVERHEAD_BYTES : RECORD_OVERHEAD_BYTES + shown_bytes]
        if len(body) < shown_bytes:
            body += file.read(shown_bytes - len(body), self._pos + len(head))
            if len(body) < shown_bytes:
                raise _DamageError(f"the record at offset {self._pos} is cut short")
        timestamp_ns = int.from_bytes(head[_STAMP], "big", signed=True)
        attempts, id_ = int.from_bytes(head[_ATTEMPTS], "big"), head[_ID]
        due_ns = self._due_ns(id_)
        page.add_message(
            Peeked(id_, timestamp_ns, attempts, body, body_bytes, due_ns, on_disk=True)
        )
