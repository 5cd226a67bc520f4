"""What the writer of a topic's log and others both see: segments, and rounds that are one write."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trionsq.core.batch import MessageBatch
from trionsq.disk import Disk, DiskFile, ReadableFile
from trionsq.storage.log.format import SegmentHeader
from trionsq.storage.log.names import parse_segment_name
from trionsq.storage.log.segments import SparseIndex

__all__ = [
    "DiskWrite",
    "RoundWrite",
    "SegmentFile",
    "end_of",
    "open_segment",
    "sequences_of",
    "size_with_room",
    "write_again",
    "write_with_room",
]

_MAX_ROOM_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 4096
_REWRITE_BYTES: Final = 1 << 20


@dataclass(slots=True, eq=False)
class SegmentFile:
    """A segment, as readers see it.

    Attributes:
        name: of the file.
        header: of the file.
        end: size in bytes up to which it counts and may be read.
        index: where records begin; None if that is not known yet.
        kept: of a remainder, how many messages it was made with; None if that is not known.
        is_replaced: its file may be gone, and another have its name.
        unsynced_from: the first message that was not durable after the last round; None: all were.
        last: sequence and offset of the last record, as a start has found it.
        unwritten: records that only a journal has yet, and their offset: the file ends there.
    """

    name: str
    header: SegmentHeader
    end: int
    index: SparseIndex | None
    kept: int | None = None
    is_replaced: bool = False
    unsynced_from: int | None = None
    last: tuple[int, int] | None = None
    unwritten: tuple[int, list[bytes]] | None = None

    def keep_unwritten(self, data: bytes, offset: int) -> None:
        """Note records that stand behind the file, and behind those that do already."""
        if self.unwritten is None:
            self.unwritten = offset, []
        self.unwritten[1].append(data)

    @property
    def first(self) -> int:
        return self.header.first_sequence

    @property
    def named_first(self) -> int:
        """The first sequence in its name; that of a remainder is higher than `first`."""
        place = parse_segment_name(self.name)
        assert place is not None
        return place[2]


class DiskWrite:
    """A write that makes durable what it writes.

    Attributes:
        file, data, offset: what goes where.
        room: so many zeros stand behind the data.
    """

    __slots__ = ("data", "file", "offset", "room")

    def __init__(self, file: DiskFile, data: bytes, offset: int, room: int) -> None:
        self.file = file
        self.data = data
        self.offset = offset
        self.room = room


class RoundWrite(DiskWrite):
    """What brings a round to its segment, see `SegmentWriter.encode_round`.

    Attributes:
        records: the messages as the log has them.
        began_s: when it began.
    """

    __slots__ = ("began_s", "records")

    def __init__(
        self, file: DiskFile, data: bytes, offset: int, room: int, records: list[MessageBatch]
    ) -> None:
        super().__init__(file, data, offset, room)
        self.records = records
        self.began_s = time.perf_counter()


class _GrowingFile:
    """A segment that is open for reading, with what is not in its file yet."""

    __slots__ = ("_file", "_segment")

    def __init__(self, file: ReadableFile, segment: SegmentFile) -> None:
        self._file = file
        self._segment = segment

    def read(self, max_bytes: int, offset: int) -> bytes:
        unwritten = self._segment.unwritten  # first: what has left it is in the file
        if unwritten is None or offset + max_bytes <= unwritten[0]:
            return self._file.read(max_bytes, offset)
        start, parts = unwritten
        before = self._file.read(start - offset, offset) if offset < start else b""
        if offset + len(before) < start:  # the file has become shorter
            return before
        first = max(offset - start, 0)
        return before + b"".join(list(parts))[first : first + max_bytes - len(before)]

    def size(self) -> int:
        unwritten = self._segment.unwritten
        size = self._file.size()
        if unwritten is None or size < unwritten[0]:
            return size
        return max(size, unwritten[0] + sum(map(len, list(unwritten[1]))))

    def close(self) -> None:
        self._file.close()


def open_segment(disk: Disk, segment: SegmentFile) -> ReadableFile:
    """Open a segment for reading.

    Raises:
        OSError: it cannot be opened.
    """
    return _GrowingFile(disk.open(segment.name), segment)


def sequences_of(batch: MessageBatch) -> Sequence[int]:
    """Return the sequences of a batch in the log."""
    assert batch.sequences is not None, "the messages are of no log"
    return batch.sequences


def end_of(batch: MessageBatch) -> int:
    """Return the sequence behind a batch in the log."""
    sequences = batch.sequences
    assert sequences is not None, "the messages are of no log"
    return sequences[-1] + 1


def size_with_room(end: int, max_bytes: int) -> int:
    """Return the size of a segment when a round that ends there has made room behind itself.

    That are zeros, as many bytes as the segment has up to a limit.
    """
    size = end + min(end, _MAX_ROOM_BYTES)
    return min(size + -size % _BLOCK_BYTES, max(end, max_bytes))


def write_with_room(file: DiskFile, data: bytes, room: int, offset: int) -> int:
    """Write, and so many zeros behind it; return how many there was space for: all or none.

    Raises:
        OSError: the data is not there, or not all of it.
    """
    try:
        file.write(data + bytes(room), offset)
    except OSError as error:
        if not room or error.errno != errno.ENOSPC:
            raise
        file.write(data, offset)
        return 0
    return room


def write_again(file: DiskFile, start: int, end: int) -> bool:
    """Make durable what a kill may have left in the page cache alone: it is handed out now.

    It is written again: after an fsync that failed a later one proves nothing. False: the disk has
    no space for that, which some file systems need; the fsync has to do.

    Raises:
        OSError: of another kind.
    """
    is_written = True
    try:
        while start < end and (data := file.read(min(end - start, _REWRITE_BYTES), start)):
            file.write(data, start)
            start += len(data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        is_written = False
    file.sync()
    return is_written
