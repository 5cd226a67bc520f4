"""The messages of a disk queue, to be copied elsewhere: the queue keeps them, and is not read.

Damaged parts are left out; the rest is read on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from trionsq.core.batch import Segment
from trionsq.core.ids import is_valid_id
from trionsq.disk import Disk, DiskFile, close_quietly
from trionsq.storage.positions import Positions, QueueFiles
from trionsq.storage.records import RecordBlock, parse

__all__ = ["CopiedMessages", "QueueCopy"]

_BLOCK_BYTES: Final = 256 * 1024


class CopiedMessages(NamedTuple):
    """Messages of a queue.

    Attributes:
        segment: the messages.
        due_ns: when they are due, in nanoseconds since the epoch; None: now.
        is_recovered: they were written before an unclean stop.
        place: file and offset of the block that has them.
    """

    segment: Segment
    due_ns: int | None
    is_recovered: bool
    place: tuple[str, int]


class QueueCopy:
    """What is in a queue at one moment. It may grow meanwhile; nobody may read or empty it.

    Attributes:
        damaged: record files that have a damaged part, with what is wrong.
        copied: so many bytes of record files were copied before, by name.
    """

    def __init__(
        self,
        disk: Disk,
        files: QueueFiles,
        positions: Positions,
        ends: Mapping[int, int],
        max_body_bytes: int,
        due_ns: Callable[[bytes], int | None],
        recovered_end: int,
    ) -> None:
        """As for `trionsq.storage.peek.QueueView`; files before ``recovered_end`` were written
        before an unclean stop."""
        self.damaged: dict[str, str] = {}
        self.copied: Mapping[str, int] = {}
        self._disk = disk
        self._files = files
        self._number, self._pos = positions.read_file, positions.read_pos
        self._last = (positions.write_file, positions.write_pos)
        self._ends = dict(ends)
        self._max_body_bytes = max_body_bytes
        self._due_ns = due_ns
        self._recovered_end = recovered_end

    def __repr__(self) -> str:
        return f"<QueueCopy {self._files.queue} {self._number},{self._pos} to {self._last}>"

    def read(self, max_bytes: int) -> list[CopiedMessages]:
        """Return the next messages, of about so many bytes; none at the end. Blocks.

        Raises:
            OSError: a file cannot be read; the same messages may be asked for again.
        """
        found: list[CopiedMessages] = []
        left = max_bytes
        while left > 0 and (self._number, self._pos) < self._last:
            name = self._files.records(self._number)
            try:
                file = self._disk.open(name)
            except FileNotFoundError as error:
                self._leave_file(name, str(error.strerror))
                continue
            try:
                left -= self._read_block(name, file, found)
            finally:
                close_quietly(file)
        return found

    def _leave_file(self, name: str, fault: str = "") -> None:
        if fault:
            self.damaged[name] = fault
        self._number, self._pos = self._number + 1, 0

    def _read_block(self, name: str, file: DiskFile, found: list[CopiedMessages]) -> int:
        """Read some records; return how many bytes."""
        self._pos = max(self._pos, self.copied.get(name, 0))
        left = self._end(file) - self._pos
        if left <= 0:
            self._leave_file(name)
            return 0
        size = _BLOCK_BYTES
        while True:
            data = file.read(min(size, left), self._pos)
            block = parse(data, self._max_body_bytes)
            if block.count:
                found += self._messages(block, (name, self._pos))
                self._pos += block.size
                return block.size
            if block.corrupt or block.needed > left or len(data) < min(size, left):
                self._leave_file(name, f"the records from offset {self._pos} on cannot be read")
                return 0
            size = block.needed

    def _end(self, file: DiskFile) -> int:
        number, pos = self._last
        if self._number == number:
            return pos
        end = self._ends.get(self._number)
        return file.size() if end is None else end

    def _messages(self, block: RecordBlock, place: tuple[str, int]) -> Iterator[CopiedMessages]:
        assert block.batch is not None
        is_recovered = self._number < self._recovered_end
        for first, last, attempts in block.runs:
            ids = block.batch.ids.slice(first, last)
            due_times_ns = list(map(self._due_ns, ids))
            # Neither deferred ones are with others, nor those that no client could finish.
            begin = first
            for at, (id_, due_ns) in enumerate(zip(ids, due_times_ns, strict=True), first):
                is_bad = is_recovered and not is_valid_id(id_)
                if due_ns is None and not is_bad:
                    continue
                if at > begin:
                    yield CopiedMessages(
                        Segment(block.batch, begin, at, attempts), None, is_recovered, place
                    )
                if not is_bad:
                    alone = Segment(block.batch, at, at + 1, attempts)
                    yield CopiedMessages(alone, due_ns, is_recovered, place)
                begin = at + 1
            if last > begin:
                yield CopiedMessages(
                    Segment(block.batch, begin, last, attempts), None, is_recovered, place
                )
