"""The files of a disk queue by name and number, and the positions file that survives a restart.

Spec: nsqd-internals, section 7 (the file ``<queue>.diskqueue.meta.dat``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from trionsq.disk import Disk, close_quietly, draft_name

__all__ = [
    "MAX_DELETED_AT_ONCE",
    "FileNumbers",
    "Generation",
    "Positions",
    "PositionsFile",
    "QueueFiles",
    "QueueStart",
    "delete_files",
    "read_positions",
]

MAX_DELETED_AT_ONCE: Final = 4
"""Record files that one job deletes. Deleting a file of 100 MB was measured at 35 to 64 ms, and
nothing of the queue becomes durable meanwhile."""

# Five numbers of up to 18 digits and five separators, with room to spare.
_MAX_FILE_BYTES: Final = 128
_TEXT: Final = re.compile(rb"(-?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n")


@dataclass(slots=True)
class Positions:
    """Where a disk queue is read and written. Positions are byte offsets.

    Attributes:
        depth: records written and not read, as counted; wrong after an unclean stop.
        read_file, read_pos: number of the file and offset of the next record to read.
        write_file, write_pos: number of the file and offset where the next record is written.
    """

    depth: int = 0
    read_file: int = 0
    read_pos: int = 0
    write_file: int = 0
    write_pos: int = 0

    @property
    def all_read(self) -> bool:
        """Whether the read position has reached the write position."""
        return self.read_pos >= self.write_pos and self.read_file >= self.write_file

    def text(self) -> bytes:
        """Return the content of the positions file."""
        return b"%d\n%d,%d\n%d,%d\n" % (
            max(0, self.depth),
            self.read_file,
            self.read_pos,
            self.write_file,
            self.write_pos,
        )

    @classmethod
    def parse(cls, text: bytes) -> Positions:
        """Parse the content of a positions file.

        Raises:
            ValueError: the text has another format, or the reader is ahead of the writer.
        """
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"not a positions file: {text[:40]!r}")
        positions = cls(*map(int, match.groups()))
        reader = (positions.read_file, positions.read_pos)
        if reader > (positions.write_file, positions.write_pos):
            raise ValueError(f"the reader is ahead of the writer: {text!r}")
        return positions


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The names of a queue's files. ``queue`` is ``topic`` or ``topic:channel``."""

    queue: str

    @property
    def positions(self) -> str:
        """Name of the positions file."""
        return f"{self.queue}.diskqueue.meta.dat"

    @property
    def deferrals(self) -> str:
        """Name of the deferral file."""
        return f"{self.queue}.diskqueue.deferred.dat"

    def records(self, number: int) -> str:
        """Return the name of a record file."""
        return f"{self.queue}.diskqueue.{number:06d}.dat"

    def number(self, name: str) -> int:
        """Return the number of the record file ``name``."""
        return int(name.removeprefix(f"{self.queue}.diskqueue.").removesuffix(".dat"))

    def set_aside(self, number: int) -> str:
        """Return the new name of a record file that is unreadable or must not be overwritten."""
        return self.records(number) + ".bad"


class FileNumbers:
    """Numbers of record files, stored as ranges: a million files in a row take one object."""

    __slots__ = ("_ranges",)

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._ranges: list[range] = []
        for number in numbers:
            self.add(number)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __contains__(self, number: int) -> bool:
        return any(number in each for each in self._ranges)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._ranges)

    def __len__(self) -> int:
        return sum(map(len, self._ranges))

    def __repr__(self) -> str:
        return f"<FileNumbers {self._ranges}>"

    def add(self, number: int) -> None:
        """Append one number."""
        self.add_range(range(number, number + 1))

    def add_range(self, numbers: range) -> None:
        """Append consecutive numbers."""
        ranges = self._ranges
        if ranges and ranges[-1].stop == numbers.start:
            ranges[-1] = range(ranges[-1].start, numbers.stop)
        elif numbers:
            ranges.append(numbers)

    def add_all(self, others: FileNumbers) -> None:
        """Append other numbers. Another thread may be changing ``others``."""
        for each in others._ranges.copy():
            self.add_range(each)

    @property
    def first(self) -> int:
        """The oldest number. There must be one."""
        return self._ranges[0].start

    @property
    def end(self) -> int:
        """The highest number plus one; 0 if there is none."""
        return max((each.stop for each in self._ranges), default=0)

    def drop_first(self) -> None:
        """Drop the oldest number. There must be one."""
        rest = self._ranges[0][1:]
        if rest:
            self._ranges[0] = rest
        else:
            del self._ranges[0]


def delete_files(
    disk: Disk, files: QueueFiles, numbers: FileNumbers, max_count: int
) -> OSError | None:
    """Delete up to ``max_count`` record files and drop their numbers. For any thread.

    Numbers of files that the disk refuses to delete move to the end of ``numbers``. Returns the
    first such error.
    """
    failure: OSError | None = None
    for _ in range(min(max_count, len(numbers))):
        number = numbers.first
        try:
            disk.unlink(files.records(number))
        except FileNotFoundError:
            pass
        except OSError as error:
            failure = failure or error
            numbers.add(number)
        # Only now: another thread counts the file as existing until it is deleted.
        numbers.drop_first()
    return failure


class Generation:
    """Invalidates jobs and views: `number` rises when the queue is emptied or deleted.

    The event loop raises it; a job compares it before each step. The last step of an invalid job
    may still run after the change; the job that follows repeats whatever that step undid.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


@dataclass(slots=True)
class QueueStart:
    """The state with which a queue starts.

    Attributes:
        text: content of the positions file; None if it is missing or unusable.
        has_file: whether a positions file exists that does not contradict ``positions``.
        is_bare: whether the queue certainly has no file at all.
        moved: whether ``positions`` differ from the positions file.
        finished: numbers of the record files before the read position, still to be deleted.
    """

    positions: Positions = field(default_factory=Positions)
    text: bytes | None = None
    has_file: bool = False
    is_bare: bool = False
    moved: bool = False
    finished: FileNumbers = field(default_factory=FileNumbers)


class PositionsFile:
    """The positions file of one queue: what it says now, and what of that is durable.

    Attributes:
        positions: the positions of the queue, which its reader and writer change.
        exists: whether a positions file exists that does not contradict the queue.
    """

    __slots__ = ("_disk", "_durable_text", "_name", "_text", "exists", "positions")

    def __init__(self, disk: Disk, files: QueueFiles, start: QueueStart) -> None:
        self.positions = start.positions
        self.exists = start.has_file
        self._disk = disk
        self._name = files.positions
        # The content that is durable; None: unknown.
        self._durable_text = start.text
        # The content that `write` gave it; None: it may have another one.
        self._text: bytes | None = None

    @property
    def is_durable(self) -> bool:
        """Whether some content is known to be durable, though perhaps not the current one."""
        return self._durable_text is not None

    def write(self) -> None:
        """Write the positions now, but not durably: the next sync does that. O(1).

        A new queue needs the file: without it a restart ignores the first records. An emptied
        queue needs it, or its messages come back after a kill.

        Raises:
            OSError: the file may be missing or have its old content.
        """
        text = self.positions.text()
        if text != self._text:
            self._write(text)
            self._text = text
        self.exists = True

    def _write(self, text: bytes) -> None:
        draft = draft_name(self._name)
        try:
            file = self._disk.create(draft)
            try:
                file.write(text, 0)
            finally:
                close_quietly(file)
            self._disk.rename(draft, self._name)
        except OSError as error:
            with suppress(OSError):
                self._disk.unlink(draft)
            # The draft's name differs each time: with the file's name equal faults read the same.
            path = f"{self._disk.path}/{self._name}"
            raise OSError(error.errno, error.strerror, path) from error

    def text_to_store(self) -> bytes | None:
        """Return the content that the next sync has to store; None if it is durable already."""
        text = self.positions.text()
        changed = None if text == self._durable_text else text
        if changed != self._text:
            self._text = None
        return changed

    def mark_stored(self, text: bytes) -> None:
        """Note that a sync has stored this content."""
        self._durable_text = text
        self.exists = True

    def mark_unsynced(self) -> None:
        """Let the next sync store the positions, whatever is durable now."""
        self._durable_text = None


def read_positions(disk: Disk, files: QueueFiles) -> tuple[bytes, Positions]:
    """Return the content of the positions file, and the positions in it.

    Raises:
        OSError: the file cannot be read.
        ValueError: the content is not valid.
    """
    file = disk.open(files.positions)
    try:
        text = file.read(_MAX_FILE_BYTES, 0)
    finally:
        close_quietly(file)
    return text, Positions.parse(text)
