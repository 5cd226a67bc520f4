"""The head of a disk queue: records are read in blocks, finished and damaged files left behind.

`QueueReader` runs in the event loop: a block is usually a copy of up to 96 KiB from the page cache.
Blocks of a backlog outside of the page cache wait for the disk, and the whole broker with them.

Spec: nsqd-internals, section 7 (reading, recovery).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.ids import can_be_named, is_valid_id
from trionsq.disk import Disk, DiskFile, close_quietly
from trionsq.storage.positions import FileNumbers, Positions, QueueFiles
from trionsq.storage.records import RecordBlock, parse
from trionsq.storage.writer import QueueWriter

__all__ = ["QueueReader", "without_damaged"]

log = logging.getLogger("trionsq")

# A block is four times the last demand: thousands of channels may hold one each. Above 96 KiB the
# allocator maps fresh pages for each block, which costs more than reading them.
_MIN_BLOCK_BYTES: Final = 16 * 1024
_MAX_BLOCK_BYTES: Final = 96 * 1024
_DEMANDS_PER_BLOCK: Final = 4
# The time of publishing in a record; see `trionsq.storage.records`.
_STAMP: Final = slice(4, 12)


class QueueReader:
    """Reads records in order.

    A sync borrows the numbers of finished files by `lend_finished`, deletes those that the
    positions on disk no longer name, and returns the rest by `return_finished`.

    Attributes:
        finished: numbers of the files that were read to their end.
        has_moved: whether another file was begun since `lend_finished`.
    """

    __slots__ = ("_block", "_block_start", "_demand", "_disk", "_file", "_files", "_index",
                 "_max_body_bytes", "_oldest", "_positions", "_run", "_writer", "finished",
                 "has_moved")  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        files: QueueFiles,
        positions: Positions,
        writer: QueueWriter,
        max_body_bytes: int,
        finished: FileNumbers,
    ) -> None:
        """``finished``: files to be deleted. ``max_body_bytes``: a longer record is damage."""
        self.finished = finished
        self.has_moved = False
        self._disk = disk
        self._files = files
        self._positions = positions
        self._writer = writer
        self._max_body_bytes = max_body_bytes
        self._file: DiskFile | None = None
        self._block: RecordBlock | None = None
        # Offset of the block in the file; index of the next record, and of the run it is in.
        self._block_start = 0
        self._index = 0
        self._run = 0
        # Size of the last segment in bytes.
        self._demand = 0
        # The last position for which `oldest_ns` read the disk, and the time it found there.
        self._oldest = ((-1, -1), 0)

    def next_segment(self, max_count: int, max_bytes: int) -> Segment | None:
        """Return the next records, at least one and within both limits; None at the end.

        They stay the next ones until `advance`.

        Raises:
            OSError: the file cannot be read now.
        """
        block = self._block or self._load()
        if block is None:
            return None
        assert block.batch is not None
        first = self._index
        _, last, attempts = block.runs[self._run]
        last = min(last, first + max_count)
        start = block.end(first)
        if block.end(last) - start > max_bytes:
            fit = bisect_right(range(first + 1, last), start + max_bytes, key=block.end)
            last = first + max(1, fit)
        self._demand = block.end(last) - start
        return Segment(block.batch, first, last, attempts)

    def oldest_ns(self) -> int | None:
        """Return when the next record was published, in nanoseconds since the epoch.

        None if there is none, or it cannot be read. Reads the disk once for each position.
        """
        positions = self._positions
        if self._block is not None:
            assert self._block.batch is not None
            return int.from_bytes(self._block.batch.stamp(self._index), signed=True)
        if positions.all_read:
            return None
        place = (positions.read_file, positions.read_pos)
        if self._oldest[0] != place:
            stamp = self._read_stamp()
            if stamp is None:
                return None
            self._oldest = (place, stamp)
        return self._oldest[1]

    def _read_stamp(self) -> int | None:
        positions = self._positions
        try:
            file = self._file or self._disk.open(self._files.records(positions.read_file))
            try:
                stamp = file.read(_STAMP.stop, positions.read_pos)[_STAMP]
            finally:
                if file is not self._file:
                    close_quietly(file)
        except OSError:
            return None  # reading the messages reports the error
        return int.from_bytes(stamp, signed=True) if len(stamp) == 8 else None

    def advance(self, count: int) -> None:
        """Move behind the first ``count`` records of the last `next_segment`."""
        block = self._block
        assert block is not None
        self._index += count
        self._positions.read_pos = self._block_start + block.end(self._index)
        if self._index == block.runs[self._run][1]:
            self._run += 1
            if self._run == len(block.runs):
                self._block = None
                self.skip_finished_file()

    def skip_finished_file(self) -> None:
        """Move to the next file if all of this one is read and the writer has left it.

        An error is left to the next `next_segment`.
        """
        positions = self._positions
        if self._block is not None or positions.read_file >= positions.write_file:
            return
        try:
            is_finished = positions.read_pos >= self._end(self._open())
        except OSError:
            return
        if is_finished:
            self._finish_file()

    def _load(self) -> RecordBlock | None:
        positions = self._positions
        size = _DEMANDS_PER_BLOCK * self._demand
        size = max(_MIN_BLOCK_BYTES, min(size, _MAX_BLOCK_BYTES))
        while not positions.all_read:
            try:
                file = self._open()
            except FileNotFoundError:
                self.set_file_aside("it is missing")
                continue
            left = self._end(file) - positions.read_pos
            if left <= 0:
                self._finish_file()
                continue
            data = file.read(min(size, left), positions.read_pos)
            block = parse(data, self._max_body_bytes)
            if block.count:
                self._block, self._block_start = block, positions.read_pos
                self._index = self._run = 0
                return block
            if block.corrupt:
                self.set_file_aside(f"no record begins at offset {positions.read_pos}")
            elif block.needed > left or len(data) < min(size, left):
                self.set_file_aside(f"the record at offset {positions.read_pos} is cut short")
            else:
                size = block.needed
        return None

    def _end(self, file: DiskFile) -> int:
        """Return where the last record of the current file ends."""
        end = self._writer.end_of(self._positions.read_file)
        return file.size() if end is None else end

    def _open(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self._files.records(self._positions.read_file))
        return self._file

    def _finish_file(self) -> None:
        self.finished.add(self._positions.read_file)
        self._begin_next_file()

    def set_file_aside(self, reason: str) -> None:
        """Rename the current file to .bad, with all its unread records, and move to the next."""
        positions, files = self._positions, self._files
        number = positions.read_file
        log.error(
            "DISKQUEUE(%s): skipping the rest of %s: %s; if the file exists, it becomes .bad",
            files.queue,
            files.records(number),
            reason,
        )
        try:
            self._disk.rename(files.records(number), files.set_aside(number))
        except FileNotFoundError:
            pass
        except OSError as error:
            log.error("DISKQUEUE(%s): %s", files.queue, error)
        if number == positions.write_file:
            self._writer.seal()
        self._begin_next_file()

    def _begin_next_file(self) -> None:
        self._positions.read_file += 1
        self._positions.read_pos = 0
        self.has_moved = True
        self.release()

    def skip_all(self) -> None:
        """Move to the write position, which begins a file; all files before it are finished."""
        self.release()
        positions = self._positions
        first, positions.read_file, positions.read_pos = (
            positions.read_file,
            positions.write_file,
            0,
        )
        self.finished.add_range(range(first, positions.write_file))

    def lend_finished(self) -> FileNumbers:
        """Return the numbers of the finished files, for a sync to delete."""
        numbers, self.finished, self.has_moved = self.finished, FileNumbers(), False
        return numbers

    def return_finished(self, numbers: FileNumbers) -> None:
        """Take back the numbers of files that the sync did not delete."""
        self.finished.add_all(numbers)

    def check(self) -> str | None:
        """Return a contradiction in the state of the reader, None if there is none. O(1)."""
        number = self._positions.read_file
        if self.finished.end > number:
            return f"the read position is in file {number}, but later files are finished"
        block = self._block
        if block is None:
            return None
        if not 0 <= self._index < block.count:
            return f"the next record is {self._index} of {block.count} in the block"
        pos = self._block_start + block.end(self._index)
        if pos != self._positions.read_pos:
            return f"the block continues at {pos}, the read position is {self._positions.read_pos}"
        return None

    def release(self) -> None:
        """Close the file and drop the block."""
        self._block = None
        if self._file is not None:
            close_quietly(self._file)
            self._file = None


def without_damaged(segment: Segment, is_recovering: bool) -> Segment | None:
    """Return the messages that a client can finish; None if there are none.

    A power failure may leave zeros inside of a file: what was written shortly before
    (``is_recovering``) has an id of ours, or is damaged. Elsewhere other ids count, too, if a
    command can name them.
    """
    ids = segment.ids()
    is_good = is_valid_id if is_recovering else can_be_named
    if is_good(b"".join(ids)):
        return segment
    kept = [place for place, message_id in enumerate(ids) if is_good(message_id)]
    if not kept:
        return None
    places = [segment.first + place for place in kept]
    batch = segment.batch.extract(places, [ids[place] for place in kept])
    return Segment(batch, 0, len(kept), segment.attempts)
