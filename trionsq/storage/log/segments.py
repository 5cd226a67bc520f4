"""Segment files: scans of what they hold, reads of messages.

Damage costs the record that it hit. Behind a bad head the reader searches for the next good one: if
there is one, what lies between is damage; else the segment is torn, and ends before it. Searching
takes a time that grows with the size of the file, whatever is in it.

All calls read the disk and so may block; `OSError` comes from there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from trionsq.core.batch import MessageBatch
from trionsq.disk import ReadableFile
from trionsq.storage.log.batches import parse_batch
from trionsq.storage.log.format import (
    MARKER,
    MAX_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    FormatError,
    Incomplete,
    RecordHead,
    SegmentHeader,
    UnsupportedError,
    parse_head,
)

__all__ = [
    "Damage",
    "HeadReader",
    "Scan",
    "SparseIndex",
    "read_header",
    "read_records",
    "scan_segment",
]

_BLOCK_BYTES: Final = 1 << 20
# Read behind a long body that was stepped over: the next may be as long.
_LEAST_BLOCK_BYTES: Final = 2 * MAX_HEAD_BYTES
_INDEX_EVERY_BYTES: Final = 64 * 1024


def read_header(file: ReadableFile) -> SegmentHeader:
    """Return the header of a segment.

    Raises:
        FormatError: see `SegmentHeader.parse`.
    """
    return SegmentHeader.parse(file.read(SEGMENT_HEADER_BYTES, 0))


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a segment that holds no good record.

    Attributes:
        offset: where it begins in the file.
        end: where it ends.
        sequence: the first that may be lost; None if that is not known.
        next_sequence: the first behind it; None if that is not known.
    """

    offset: int
    end: int
    sequence: int | None
    next_sequence: int | None


class HeadReader:
    """Reads heads in blocks, from the beginning of a file to its end.

    Attributes:
        limit: where the records end at the latest.
    """

    __slots__ = ("_block_bytes", "_data", "_file", "_header", "_start", "limit")

    def __init__(
        self,
        file: ReadableFile,
        header: SegmentHeader,
        start_offset: int,
        end: int | None,
        block_bytes: int,
    ) -> None:
        """``end``: where to stop, None: at the end; ``block_bytes``: of the first block."""
        size = file.size()
        self.limit = size if end is None else min(end, size)
        self._file = file
        self._header = header
        self._data = b""
        # Offset of the data in the file: before the first block, the offset of that.
        self._start = start_offset
        self._block_bytes = block_bytes

    def head_at(self, offset: int, sequence: int) -> RecordHead | None:
        """Return the head of the record at ``offset``; None if no good record begins there.

        Raises:
            UnsupportedError: a later release wrote the record.
        """
        while True:
            if not self._has(offset):
                self._load_next(offset)
            try:
                head = parse_head(self._data, offset - self._start, self._header, offset)
            except Incomplete:
                if self._is_last:
                    return None
                self._load_next(offset)
            except UnsupportedError:
                raise
            except FormatError:
                return None
            else:
                return head if self._fits(head, sequence) else None

    def find(self, offset: int, sequence: int) -> RecordHead | None:
        """Return the head of the first good record that begins at ``offset`` or behind it.

        Raises:
            UnsupportedError: a later release wrote the record.
        """
        while offset < self.limit:
            if not self._has(offset):
                self._load(offset, _BLOCK_BYTES)
            data, at = self._data, offset - self._start
            while (at := data.find(MARKER, at)) >= 0:
                try:
                    head = parse_head(data, at, self._header, self._start + at)
                    if self._fits(head, sequence):
                        return head
                except UnsupportedError:
                    raise
                except Incomplete:
                    if not self._is_last:
                        break
                except FormatError:
                    pass
                at += 1
            if at < 0:
                if self._is_last:
                    return None
                # A marker may begin in this block and end in the next.
                at = max(len(data) - len(MARKER) + 1, 1)
            offset = self._start + at
            self._load(offset, _BLOCK_BYTES)
        return None

    def section(self, head: RecordHead) -> bytes:
        """Return what stands behind a head."""
        at = head.body_offset - self._start
        if at >= 0 and at + head.body_nbytes <= len(self._data):
            return self._data[at : at + head.body_nbytes]
        return self._file.read(head.body_nbytes, head.body_offset)

    def has_good_section(self, head: RecordHead) -> bool:
        """Return whether the CRC of what stands behind a head is right."""
        at, crc = head.body_offset, self._header.salt
        while at < head.end:
            if not self._has(at):
                self._load(at, _BLOCK_BYTES)
                if not self._data:
                    return False
            first = at - self._start
            piece = memoryview(self._data)[first : first + head.end - at]
            crc = crc32(piece, crc)
            at += len(piece)
        return crc == head.body_crc

    def is_blank_from(self, offset: int) -> bool:
        """Return whether there are only zeros up to the end."""
        while offset < self.limit:
            if not self._has(offset):
                self._load(offset, _BLOCK_BYTES)
            if self._data[offset - self._start :].strip(b"\0"):
                return False
            offset = self._start + len(self._data)
        return True

    @property
    def _is_last(self) -> bool:
        return self._start + len(self._data) >= self.limit

    def _has(self, offset: int) -> bool:
        return self._start <= offset < self._start + len(self._data)

    def _fits(self, head: RecordHead, sequence: int) -> bool:
        return head.sequence >= sequence and head.end <= self.limit

    def _load_next(self, offset: int) -> None:
        """Read the next block: a short one if a long body was stepped over to get here."""
        if offset - (self._start + len(self._data)) > _LEAST_BLOCK_BYTES:
            self._block_bytes = _LEAST_BLOCK_BYTES
        elif self._data:
            self._block_bytes = min(2 * self._block_bytes, _BLOCK_BYTES)
        self._load(offset, self._block_bytes)

    def _load(self, offset: int, nbytes: int) -> None:
        wanted = min(nbytes, self.limit - offset)
        self._data = self._file.read(wanted, offset)
        self._start = offset
        if len(self._data) < wanted:  # the file has become shorter
            self.limit = offset + len(self._data)


class Scan:
    """One pass over the records of a segment.

    `records` may be read once; the rest is right when it has ended.

    Attributes:
        header: of the segment.
        records: the heads of the good records, in order.
        damage: what lies between good records and is none.
        end: offset behind the last good record.
        limit: where the file ends, or where the scan had to stop.
        next_sequence: behind the last good record; None if there is none and the scan did not begin
            at the first one.
        torn: what lies behind the last good record; None if nothing does, or room for more.
    """

    def __init__(
        self,
        file: ReadableFile,
        header: SegmentHeader,
        start_offset: int,
        end: int | None,
        check_bodies: bool,
    ) -> None:
        self.header = header
        self.damage: list[Damage] = []
        self.end = start_offset
        self.next_sequence = header.first_sequence if start_offset == SEGMENT_HEADER_BYTES else None
        self.torn: Damage | None = None
        self._reader = HeadReader(file, header, start_offset, end, _BLOCK_BYTES)
        self._checks_bodies = check_bodies
        self._may_have_room = end is None
        self.records = self._walk()

    @property
    def limit(self) -> int:
        return self._reader.limit

    def _walk(self) -> Iterator[RecordHead]:
        reader, offset, sequence = self._reader, self.end, self.next_sequence
        lowest = self.header.first_sequence
        # Damage, or the torn end: that depends on what follows.
        unsure: list[Damage] = []
        doubtful: list[RecordHead] = []
        while offset < reader.limit:
            lowest = lowest if sequence is None else sequence
            head = reader.head_at(offset, lowest)
            if head is None:
                head = reader.find(offset + 1, lowest)
                if head is None:
                    break
                unsure.append(Damage(offset, head.offset, sequence, head.sequence))
            offset, sequence = head.end, head.next_sequence
            if self._checks_bodies and not reader.has_good_section(head):
                unsure.append(Damage(head.offset, head.end, head.sequence, sequence))
                continue
            if unsure and _is_of_round(head, unsure[0].offset):
                doubtful.append(head)  # its round may be torn as a whole
                continue
            self.damage += unsure
            unsure.clear()
            self.end, self.next_sequence = offset, sequence
            yield from doubtful
            doubtful.clear()
            yield head
        is_room = self._may_have_room and not unsure and reader.is_blank_from(self.end)
        if self.end < reader.limit and not is_room:
            behind = unsure[-1].next_sequence if unsure else None
            self.torn = Damage(self.end, reader.limit, self.next_sequence, behind)


def _is_of_round(head: RecordHead, offset: int) -> bool:
    """Whether the round of a record began at an offset, or before it."""
    return head.round_offset is not None and head.round_offset <= offset


def scan_segment(
    file: ReadableFile,
    header: SegmentHeader,
    start_offset: int = SEGMENT_HEADER_BYTES,
    *,
    end: int | None = None,
    check_bodies: bool = False,
) -> Scan:
    """Return a scan of a segment.

    Args:
        file: of the segment.
        header: of the segment.
        start_offset: where a record begins.
        end: where the segment ends, if not with the file: the next one's ``previous_end``.
        check_bodies: read the messages as well, and take a record with bad ones for damage.
    """
    return Scan(file, header, start_offset, end, check_bodies)


def read_records(
    file: ReadableFile,
    header: SegmentHeader,
    offset: int,
    max_bytes: int,
    *,
    sequence: int | None = None,
    wanted: int = 0,
    end: int | None = None,
) -> list[tuple[RecordHead, MessageBatch] | Damage]:
    """Return the records from ``offset`` on, and the damage between them, in order.

    Args:
        file: of the segment.
        header: of the segment.
        offset: where a record begins.
        max_bytes: limit; one record, or one damage, may be longer.
        sequence: of the record at ``offset``, if known: no lower one is taken.
        wanted: records that end before this sequence are stepped over, however long they are.
        end: where to stop; None: at the end of the file.

    Returns:
        Nothing if ``offset`` is the end. Damage up to the end has no ``next_sequence``: it may be a
        torn end.

    Raises:
        UnsupportedError: a later release wrote one of the records.
    """
    found: list[tuple[RecordHead, MessageBatch] | Damage] = []
    reader = HeadReader(file, header, offset, end, max(max_bytes, MAX_HEAD_BYTES))
    # Where the limit is reached; not known before the first record or damage that is wanted.
    stop = reader.limit + max_bytes
    while offset < min(stop, reader.limit):
        if stop - offset < MAX_HEAD_BYTES and stop < reader.limit:
            break  # the head may end behind the block
        lowest = header.first_sequence if sequence is None else sequence
        head = reader.head_at(offset, lowest)
        if head is None:
            head = reader.find(offset + 1, lowest)
            behind, bad_end = (None, reader.limit) if head is None else (head.sequence, head.offset)
            found.append(Damage(offset, bad_end, sequence, behind))
            if behind is None or behind > wanted:
                stop = min(stop, offset + max_bytes)
            offset = bad_end
            sequence = sequence if behind is None else behind
            continue
        if head.next_sequence <= wanted:
            offset, sequence = head.end, head.next_sequence
            continue
        if head.end > stop:
            break
        stop = min(stop, offset + max_bytes)
        try:
            found.append((head, parse_batch(head, reader.section(head), header)))
        except FormatError:
            found.append(Damage(head.offset, head.end, head.sequence, head.next_sequence))
        offset, sequence = head.end, head.next_sequence
    return found


class SparseIndex:
    """Where some of a segment's records begin: one for each 64 KiB."""

    __slots__ = ("_offsets", "_sequences")

    def __init__(self, header: SegmentHeader) -> None:
        self._sequences = array("Q", [header.first_sequence])
        self._offsets = array("Q", [SEGMENT_HEADER_BYTES])

    def add(self, sequence: int, offset: int) -> None:
        """Note a record, which lies behind all that were added before.

        Another thread may call `find` meanwhile.
        """
        if offset - self._offsets[-1] >= _INDEX_EVERY_BYTES:
            self._offsets.append(offset)
            self._sequences.append(sequence)

    def find(self, sequence: int) -> tuple[int, int]:
        """Return sequence and offset of a record, or of the first one, not far before another.

        That record has ``sequence`` or a lower one, if the segment has it.
        """
        at = max(bisect_right(self._sequences, sequence) - 1, 0)
        return self._sequences[at], self._offsets[at]
