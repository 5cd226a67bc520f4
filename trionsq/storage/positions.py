"""Where a disk queue stands, and the text that keeps it over a restart.

Spec: nsqd-internals, section 7 (the file ``<queue>.diskqueue.meta.dat``, recovery).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from trionsq.disk import Disk, close_quietly, draft_name
from trionsq.storage.folder import DataFolder

__all__ = [
    "FileNumbers",
    "Positions",
    "QueueFiles",
    "Start",
    "begin_file",
    "find_start",
    "read_positions",
    "remove_files",
]

log = logging.getLogger("trionsq")

_NBYTES_MAX: Final = 128
_TEXT: Final = re.compile(rb"(-?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n")


@dataclass(slots=True)
class Positions:
    """The state of a disk queue. Positions are byte offsets.

    Attributes:
        depth: records written and not read, as counted; after an unclean stop it may be wrong.
        read_file, read_pos: number of the file and offset of the next record to read.
        write_file, write_pos: where the next record is written.
    """

    depth: int = 0
    read_file: int = 0
    read_pos: int = 0
    write_file: int = 0
    write_pos: int = 0

    @property
    def all_read(self) -> bool:
        """Whether the reader has come to where the writer is."""
        return self.read_pos >= self.write_pos and self.read_file >= self.write_file

    def text(self) -> bytes:
        """As the file has it."""
        return b"%d\n%d,%d\n%d,%d\n" % (
            max(0, self.depth),
            self.read_file,
            self.read_pos,
            self.write_file,
            self.write_pos,
        )

    @classmethod
    def parse(cls, text: bytes) -> Positions:
        """The state that a file tells.

        Raises:
            ValueError: it is not such a file, or the reader is ahead of the writer.
        """
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"no positions: {text[:40]!r}")
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
        return f"{self.queue}.diskqueue.meta.dat"

    def records(self, number: int) -> str:
        return f"{self.queue}.diskqueue.{number:06d}.dat"

    def number(self, name: str) -> int:
        """Of a file with records."""
        return int(name.removeprefix(f"{self.queue}.diskqueue.").removesuffix(".dat"))

    def set_aside(self, number: int) -> str:
        """The name that a file gets which can't be read, or must not be overwritten."""
        return self.records(number) + ".bad"


class FileNumbers:
    """Numbers of files with records, as ranges: of a million files in a row one object."""

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
        """Add one number."""
        self.add_range(range(number, number + 1))

    def add_range(self, numbers: range) -> None:
        """Add consecutive numbers, as the last ones."""
        ranges = self._ranges
        if ranges and ranges[-1].stop == numbers.start:
            ranges[-1] = range(ranges[-1].start, numbers.stop)
        elif numbers:
            ranges.append(numbers)

    def add_all(self, others: FileNumbers) -> None:
        """Add those of others. They may be in another thread's hands."""
        for each in others._ranges.copy():
            self.add_range(each)

    @property
    def first(self) -> int:
        """The one that was added first. There is one."""
        return self._ranges[0].start

    @property
    def end(self) -> int:
        """One more than the highest; 0 if there is none."""
        return max((each.stop for each in self._ranges), default=0)

    def drop_first(self) -> None:
        """Forget the one that was added first."""
        rest = self._ranges[0][1:]
        if rest:
            self._ranges[0] = rest
        else:
            del self._ranges[0]


def remove_files(
    disk: Disk, files: QueueFiles, numbers: FileNumbers, count_max: int
) -> OSError | None:
    """Remove up to ``count_max`` of the files, in any thread, and take off their numbers.

    Those that can't be removed become the last ones; the error of the first is returned.
    """
    failure: OSError | None = None
    for _ in range(min(count_max, len(numbers))):
        number = numbers.first
        try:
            disk.unlink(files.records(number))
        except FileNotFoundError:
            pass
        except OSError as error:
            failure = failure or error
            numbers.add(number)
        # Not before: a file whose removal is under way counts as being there.
        numbers.drop_first()
    return failure


@dataclass(slots=True)
class Start:
    """What a queue begins with.

    Attributes:
        text: of the positions file; None if there is none, or none that can be used.
        has_file: whether there is a positions file that a reader of the queue may go by.
        is_bare: whether there is certainly no file of the queue at all.
        moved: whether ``positions`` are not those of the file any more.
        finished: numbers of files that were read to their end, and outlived that.
    """

    positions: Positions = field(default_factory=Positions)
    text: bytes | None = None
    has_file: bool = False
    is_bare: bool = False
    moved: bool = False
    finished: FileNumbers = field(default_factory=FileNumbers)


def begin_file(disk: Disk, name: str, positions: Positions) -> None:
    """Write the positions file here and now, but not durably: that is left to the next sync.

    A new queue needs it, or nobody would look for its first records, were the process killed now;
    an emptied one, or its messages would come back then.

    Raises:
        OSError: there is none.
    """
    draft = draft_name(name)
    try:
        file = disk.create(draft)
        try:
            file.write(positions.text(), 0)
        finally:
            close_quietly(file)
        disk.rename(draft, name)
    except OSError as error:
        with suppress(OSError):
            disk.unlink(draft)
        # By the name that means something.
        raise OSError(error.errno, error.strerror, f"{disk.path}/{name}") from error


def find_start(folder: DataFolder, files: QueueFiles) -> Start:
    """Where the files say that the queue stands; at the very beginning if they don't.

    Records that are there nevertheless are not read, as in the original, but set aside: later they
    could not be told from files that were begun before an unclean stop. Unlike in the original they
    are all read, some perhaps again, if it is the disk that does not give the positions.
    """
    try:
        text, positions = read_positions(folder.disk, files)
    except FileNotFoundError:
        _set_aside(folder, files)
        return Start(is_bare=True)
    except OSError as error:
        log.error("DISKQUEUE(%s): begins with its first file: %s", files.queue, error)
        return Start(_all_files(folder, files), moved=True)
    except ValueError as error:
        log.error("DISKQUEUE(%s): begins anew: %s: %s", files.queue, files.positions, error)
        _set_aside(folder, files)
        return Start()
    moved = _go_past_end(folder, files, positions)
    outlived = _outlived(folder, files, positions)
    return Start(positions, text, has_file=True, moved=moved, finished=outlived)


def _all_files(folder: DataFolder, files: QueueFiles) -> Positions:
    numbers = [files.number(name) for name in folder.found(files.queue, afresh=True)]
    if not numbers:
        return Positions()
    return Positions(read_file=min(numbers), write_file=max(numbers) + 1)


def _set_aside(folder: DataFolder, files: QueueFiles) -> None:
    for name in folder.found(files.queue):
        try:
            folder.disk.rename(name, name + ".bad")
        except FileNotFoundError:
            continue  # the queue was opened and deleted since
        except OSError as error:
            log.error("DISKQUEUE(%s): %s", files.queue, error)
        else:
            log.error("DISKQUEUE(%s): nothing tells of %s, set aside as .bad", files.queue, name)


def read_positions(disk: Disk, files: QueueFiles) -> tuple[bytes, Positions]:
    """The content of the positions file, and what it says.

    Raises:
        OSError: it can't be read.
        ValueError: it is not such a file.
    """
    file = disk.open(files.positions)
    try:
        text = file.read(_NBYTES_MAX, 0)
    finally:
        close_quietly(file)
    return text, Positions.parse(text)


def _size(disk: Disk, name: str) -> int:
    file = disk.open(name)
    try:
        return file.size()
    finally:
        close_quietly(file)


def _exists(disk: Disk, name: str) -> bool:
    with suppress(OSError):
        close_quietly(disk.open(name))
        return True
    return False


def _go_past_end(folder: DataFolder, files: QueueFiles, positions: Positions) -> bool:
    """Let the writer go on behind all files that there are, after an unclean stop.

    Then the last file is longer than the positions say, or more were begun. All of them are read
    to their ends. One that is shorter is damaged: nothing must be written behind a hole.
    """
    last = positions.write_file
    try:
        size = _size(folder.disk, files.records(last))
    except FileNotFoundError:
        size = positions.write_pos  # accepted; the reader will see what it misses
    except OSError as error:
        log.error("DISKQUEUE(%s): %s", files.queue, error)
        size = -1
    later = [
        files.number(name)
        for name in folder.found(files.queue)
        if files.number(name) > last and _exists(folder.disk, name)
    ]
    if size == positions.write_pos and not later:
        return False
    end = max([last, *later]) + 1
    log.warning(
        "DISKQUEUE(%s): not stopped cleanly, %s should be the last file and end at %d; writing "
        "goes on in file %d",
        files.queue,
        files.records(last),
        positions.write_pos,
        end,
    )
    positions.write_file, positions.write_pos = end, 0
    return True


def _outlived(folder: DataFolder, files: QueueFiles, positions: Positions) -> FileNumbers:
    """Files before the one that is read next: a crash, or the disk, kept them from going."""
    found = map(files.number, folder.found(files.queue))
    return FileNumbers(number for number in found if number < positions.read_file)
