"""The head of a disk queue: records come in blocks, finished and damaged files are left behind.

Blocks are read in the event loop: as a rule a copy of some 100 KiB from the page cache. Of a
backlog that is not in there each block waits for the disk, and everybody with it.

Spec: nsqd-internals, section 7 (reading, recovery).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import Final

from trionsq.core.batch import Segment
from trionsq.disk import Disk, DiskFile, close_quietly
from trionsq.storage.positions import FileNumbers, Positions, QueueFiles
from trionsq.storage.records import Block, parse
from trionsq.storage.writer import QueueWriter

__all__ = ["QueueReader"]

log = logging.getLogger("trionsq")

# A block is a few times what is asked for at once: thousands of channels may hold one. Beyond the
# most, the allocator maps fresh pages for each, which costs more than to read them.
_BLOCK_NBYTES_MIN: Final = 16 * 1024
_BLOCK_NBYTES_MAX: Final = 96 * 1024
_BLOCK_DEMANDS: Final = 4
# The time of publishing in a record; see `trionsq.storage.records`.
_STAMP: Final = slice(4, 12)


class QueueReader:
    """Reads records in order.

    Attributes:
        finished: numbers of the files that were read to their end. They may go when the positions
            on disk no longer name them.
        moved: whether another file was begun since somebody set this to False.
    """

    __slots__ = (
        "_block",
        "_block_start",
        "_body_nbytes_max",
        "_demand",
        "_disk",
        "_file",
        "_files",
        "_place",
        "_positions",
        "_run",
        "_seen",
        "_writer",
        "finished",
        "moved",
    )

    def __init__(
        self,
        disk: Disk,
        files: QueueFiles,
        positions: Positions,
        writer: QueueWriter,
        body_nbytes_max: int,
    ) -> None:
        """``body_nbytes_max`` is --max-msg-size: a longer record counts as damage."""
        self._disk = disk
        self._files = files
        self._positions = positions
        self._writer = writer
        self._body_nbytes_max = body_nbytes_max
        self._file: DiskFile | None = None
        self._block: Block | None = None
        self._block_start = 0
        self._place = 0
        self._run = 0
        self._demand = 0
        # The last position whose time was read for itself, and that time.
        self._seen = ((-1, -1), 0)
        self.finished = FileNumbers()
        self.moved = False

    def peek(self, count_max: int, nbytes_max: int) -> Segment | None:
        """The next records, at least one and within both limits; None at the end of the data.

        Raises:
            OSError: the file can't be read now.
        """
        block = self._block or self._load()
        if block is None:
            return None
        assert block.batch is not None
        first = self._place
        _, last, attempts = block.runs[self._run]
        last = min(last, first + count_max)
        start = block.end(first)
        if block.end(last) - start > nbytes_max:
            fit = bisect_right(range(first + 1, last), start + nbytes_max, key=block.end)
            last = first + max(1, fit)
        self._demand = block.end(last) - start
        return Segment(block.batch, first, last, attempts)

    def oldest_ns(self) -> int | None:
        """When the next record was published, nanoseconds since the epoch.

        None if there is none, or it can't be read. The disk is asked once for each position.
        """
        positions = self._positions
        if self._block is not None:
            assert self._block.batch is not None
            return int.from_bytes(self._block.batch.stamp(self._place), signed=True)
        if positions.all_read:
            return None
        place = (positions.read_file, positions.read_pos)
        if self._seen[0] != place:
            stamp = self._read_stamp()
            if stamp is None:
                return None
            self._seen = (place, stamp)
        return self._seen[1]

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
            return None  # whoever reads the messages will say so
        return int.from_bytes(stamp, signed=True) if len(stamp) == 8 else None

    def advance(self, count: int) -> None:
        """Leave behind the first ``count`` records that `peek` gave."""
        block = self._block
        assert block is not None
        self._place += count
        self._positions.read_pos = self._block_start + block.end(self._place)
        if self._place == block.runs[self._run][1]:
            self._run += 1
            if self._run == len(block.runs):
                self._block = None
                self.leave_finished_file()

    def leave_finished_file(self) -> None:
        """Go on to the next file if all of this one is read and the writer has left it.

        An error waits for the next `peek`.
        """
        positions = self._positions
        if self._block is not None or positions.read_file >= positions.write_file:
            return
        try:
            ended = positions.read_pos >= self._end(self._open())
        except OSError:
            return
        if ended:
            self._next_file()

    def _load(self) -> Block | None:
        positions = self._positions
        wanted = _BLOCK_DEMANDS * self._demand
        wanted = max(_BLOCK_NBYTES_MIN, min(wanted, _BLOCK_NBYTES_MAX))
        while not positions.all_read:
            try:
                file = self._open()
            except FileNotFoundError:
                self._set_aside("it is missing")
                continue
            left = self._end(file) - positions.read_pos
            if left <= 0:
                self._next_file()
                continue
            data = file.read(min(wanted, left), positions.read_pos)
            block = parse(data, self._body_nbytes_max)
            if block.count:
                self._block, self._block_start = block, positions.read_pos
                self._place = self._run = 0
                return block
            if block.corrupt:
                self._set_aside(f"no record begins at offset {positions.read_pos}")
            elif block.needed > left or len(data) < min(wanted, left):
                self._set_aside(f"the record at offset {positions.read_pos} is cut short")
            else:
                wanted = block.needed
        return None

    def _end(self, file: DiskFile) -> int:
        """Where the last record ends of the file that is being read."""
        number = self._positions.read_file
        if number == self._positions.write_file:
            return self._positions.write_pos
        end = self._writer.torn.get(number)
        return file.size() if end is None else end

    def _open(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self._files.records(self._positions.read_file))
        return self._file

    def _next_file(self) -> None:
        self.finished.add(self._positions.read_file)
        self._go_on()

    def give_up_file(self, why: str) -> None:
        """Set the file aside that is being read, with all that was not read of it."""
        self._set_aside(why)

    def _set_aside(self, why: str) -> None:
        positions, files = self._positions, self._files
        number = positions.read_file
        log.error(
            "DISKQUEUE(%s): %s can't be read on, %s; if it is there, it is now .bad",
            files.queue,
            files.records(number),
            why,
        )
        try:
            self._disk.rename(files.records(number), files.set_aside(number))
        except FileNotFoundError:
            pass
        except OSError as error:
            log.error("DISKQUEUE(%s): %s", files.queue, error)
        if number == positions.write_file:
            self._writer.seal()
        self._go_on()

    def _go_on(self) -> None:
        self._positions.read_file += 1
        self._positions.read_pos = 0
        self.moved = True
        self.release()

    def check(self) -> str | None:
        """What is wrong with the state of the reader, None if nothing is. O(1)."""
        block = self._block
        if block is None:
            return None
        if not 0 <= self._place < block.count:
            return f"it is at record {self._place} of a block of {block.count}"
        pos = self._block_start + block.end(self._place)
        if pos != self._positions.read_pos:
            return f"its block goes on at {pos}, but it is read at {self._positions.read_pos}"
        return None

    def release(self) -> None:
        """Let go of the file and of what was read ahead."""
        self._block = None
        if self._file is not None:
            close_quietly(self._file)
            self._file = None
