"""The thread's half of a topic's log: writes rounds to segment files, and makes them durable.

A write or an fsync that fails ends its segment: what is not known to be durable is written once
more, to a new one whose header says where the old one ends. Only if that fails too is the round
refused.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from trionsq.core.batch import MessageBatch
from trionsq.disk import Disk, DiskFile, close_quietly
from trionsq.histogram import Histogram
from trionsq.storage.log.batches import encode_record, join_entries
from trionsq.storage.log.format import SEGMENT_HEADER_BYTES, SegmentHeader
from trionsq.storage.log.journal import JournalPiece
from trionsq.storage.log.names import draft_name, segment_name
from trionsq.storage.log.segmentfile import (
    RoundWrite,
    SegmentFile,
    end_of,
    sequences_of,
    size_with_room,
    write_with_room,
)
from trionsq.storage.log.segments import SparseIndex

__all__ = ["SegmentWriter"]

# A round that is synced makes room behind itself: an fsync that changes no size costs a third. With
# a large round that would be no gain.
_MAX_BYTES_WITH_ROOM: Final = 64 * 1024


class SegmentWriter:
    """Writes one topic's log; for one thread at a time.

    Every method blocks, and may raise OSError, but `encode_round`, `copy_of` and `end_write`.

    Attributes:
        segment: the newest that counts; None before the first.
    """

    def __init__(
        self,
        disk: Disk,
        topic: str,
        number: int,
        max_bytes: int,
        fsync_s: Histogram,
        last: SegmentFile | None = None,
    ) -> None:
        """``number`` is the topic's incarnation; ``last`` its newest segment, which takes no more.

        ``max_bytes``: a segment that has so many ends.
        """
        self.segment = last
        self._disk = disk
        self._topic = topic
        self._number = number
        self._max_bytes = max_bytes
        self._fsync_s = fsync_s
        self._file: DiskFile | None = None
        self._is_named = True
        # The segment before the present one, and its end, while nothing in that is durable.
        self._before: SegmentFile | None = None
        self._before_end = 0
        self._offset = 0 if last is None else last.end
        self._size = self._offset  # of the file: behind the offset there may be room
        # Up to here an fsync has succeeded: offset in the segment, and sequence.
        self._synced = self._offset
        self._safe = 0
        self._unsynced: list[MessageBatch] = []
        self._begun: list[SegmentFile] = []
        # Readers hear of them in the event loop.
        self._ends: list[tuple[SegmentFile, int]] = []
        # Whether a segment gets its name only when what is in it is durable; and whether some of
        # `_unsynced` is in no segment that goes on.
        self._is_draft = self._is_behind = False

    def __repr__(self) -> str:
        return f"<SegmentWriter {self._topic} {self._number} at {self._offset}>"

    @property
    def offset(self) -> int:
        """Size of the newest segment."""
        return self._offset

    @property
    def has_unsynced(self) -> bool:
        """Whether something that counts is not durable yet."""
        return bool(self._unsynced)

    @property
    def unwritten_from(self) -> int | None:
        """The first message that counts and is in no segment; None if there is none."""
        return sequences_of(self._unsynced[0])[0] if self._is_behind else None

    @property
    def unsynced_nbytes(self) -> int:
        """Bytes that are written and not durable yet."""
        return self._offset - self._synced

    def pop_changes(self) -> tuple[Sequence[SegmentFile], Sequence[tuple[SegmentFile, int]]]:
        """Return the segments that were begun since the last call, also by a round that failed, and
        those that changed, in order, with their sizes."""
        begun, ends, segment = self._begun, self._ends, self.segment
        self._begun, self._ends = [], []
        if segment is not None:
            ends.append((segment, self._offset))
            unsynced = self._unsynced
            segment.unsynced_from = sequences_of(unsynced[0])[0] if unsynced else None
        return begun, ends

    def is_synced_to(self, sequence: int) -> bool:
        """Return whether what counts before a sequence is durable."""
        return self._safe >= sequence or not self._unsynced

    def write_round(
        self,
        entries: Sequence[tuple[MessageBatch, int]],
        *,
        sync: bool,
        copies: list[JournalPiece] | None = None,
    ) -> list[MessageBatch]:
        """Write batches, each with its first sequence; with ``sync`` they are durable on return.

        Without entries, and with ``sync``, it makes durable what was written before. ``copies``
        gets what was written and is not durable.

        Returns the messages as the log has them, with their sequences.

        Raises:
            OSError: none of them counts. What counted before still does.
        """
        records = join_entries(entries)
        unsynced, count = self._unsynced, len(self._unsynced)
        try:
            if self._is_behind:
                self._write_again(list(unsynced))
            self._append(records, copies, with_room=sync)
            if sync:
                self._sync()
        except OSError:
            if copies is not None:
                copies.clear()
            self._rescue(unsynced[:count], records)
        return records

    def encode_round(
        self, entries: Sequence[tuple[MessageBatch, int]], *, sync: bool
    ) -> RoundWrite | None:
        """Return the one write that makes a small round durable; None if it takes more.

        Without ``sync`` a journal does that, and nothing is written now. `end_write` follows, or
        `rescue_write`.
        """
        if self._file is None or (sync and self._unsynced) or self._offset >= self._max_bytes:
            return None
        offset, end = self._offset, self._offset
        parts: list[bytes] = []
        records = join_entries(entries)
        for batch in records:
            record = b"".join(self._encode(batch, end, offset if parts else None))
            parts.append(record)
            end += len(record)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        room = self._size_with_room(offset, end) - end if sync else 0
        return RoundWrite(self._file, data, offset, room, records)

    def _size_with_room(self, offset: int, end: int) -> int:
        if end <= self._size or end - offset > _MAX_BYTES_WITH_ROOM:
            return end
        return size_with_room(end, self._max_bytes)

    def copy_of(self, data: bytes, offset: int) -> JournalPiece:
        """Return what a journal needs of records of the present segment."""
        assert self.segment is not None
        of = self.segment.header
        return JournalPiece(self._number, of.first_sequence, of.salt, offset, data)

    def end_write(self, ended: RoundWrite, *, sync: bool) -> None:
        """Note that a round of `encode_round` is durable; without ``sync``: in a journal."""
        data, offset = ended.data, ended.offset
        end = self._offset = offset + len(data)
        if sync:
            self._size = max(self._size, end + ended.room)
            self._fsync_s.observe(time.perf_counter() - ended.began_s)
            self._synced = end
            self._safe = end_of(ended.records[-1])
            return
        assert self.segment is not None
        self._unsynced += ended.records
        self.segment.keep_unwritten(data, offset)

    def rescue_write(self, failed: RoundWrite, error: Exception) -> None:
        """Make a round durable whose write failed with ``error``; raises as `write_round`."""
        if failed.room and getattr(error, "errno", None) == errno.ENOSPC:
            with suppress(OSError):
                failed.file.write_durably(failed.data, failed.offset)  # what counts may have space
                failed.room = 0
                self.end_write(failed, sync=True)
                return
        self._rescue(list(self._unsynced), failed.records)

    def sync_round(self, records: Sequence[MessageBatch]) -> None:
        """Make durable what `write_round` has written without that.

        Raises:
            OSError: none of it counts. What counted before still does.
        """
        first = sequences_of(records[0])[0]
        counted = [batch for batch in self._unsynced if sequences_of(batch)[0] < first]
        try:
            self._sync()
        except OSError:
            self._rescue(counted, records)

    def _rescue(self, counted: list[MessageBatch], records: Iterable[MessageBatch]) -> None:
        """Write once more what is not durable; if that fails too, the last round does not count."""
        is_empty = not counted and self._is_named and self._synced == SEGMENT_HEADER_BYTES
        began = self.segment if is_empty and self.segment in self._begun else None
        try:
            # A failed fsync says nothing of what it left undone.
            self._write_again([*counted, *records])
        except OSError:
            self._end_segment()
            self._unsynced = self._not_durable(counted)
            self._is_behind = bool(self._unsynced)
            if began is not None:  # for this round alone
                with suppress(OSError):
                    self._disk.unlink(began.name)
            raise

    def _write_again(self, batches: Iterable[MessageBatch]) -> None:
        """Write what is not durable to a new segment, and make it durable.

        Until then the segment has no name: a stop in between leaves what was there before.
        """
        self._end_segment()
        self._unsynced = []
        self._is_draft = True
        try:
            self._append(self._not_durable(batches))
            self._sync()
        finally:
            self._is_draft = False
        self._is_behind = False

    def probe(self, first: int) -> None:
        """Show that the disk takes messages: begin a segment, from ``first`` on, if there is none.

        Raises:
            OSError: it does not.
        """
        if self._file is None:
            try:
                if self._is_behind:
                    self._write_again(list(self._unsynced))
                else:
                    self._begin_segment(first)
            except OSError:
                self._end_segment()
                raise

    def close(self) -> None:
        """Release the file: nothing is written any more, and what is not durable need not be."""
        self._close_file()
        self._unsynced = []

    def _close_file(self) -> None:
        if self._file is not None:
            close_quietly(self._file)
            self._file = None

    def _not_durable(self, batches: Iterable[MessageBatch]) -> list[MessageBatch]:
        return [batch for batch in batches if sequences_of(batch)[0] >= self._safe]

    def _append(
        self,
        records: Iterable[MessageBatch],
        copies: list[JournalPiece] | None = None,
        *,
        with_room: bool = False,
    ) -> None:
        """Write a round, to one segment: of two, a failure could leave a part that counts."""
        pieces: list[bytes] = []
        nbytes = 0
        began: int | None = None
        for batch in records:
            if self._file is None or (not pieces and self._offset >= self._max_bytes):
                self._begin_segment(sequences_of(batch)[0])
            record = self._encode(batch, self._offset + nbytes, began)
            if began is None and not self._is_draft:  # a draft counts as a whole, or not at all
                began = self._offset
            pieces += record
            nbytes += sum(map(len, record))
            self._unsynced.append(batch)
        self._write(pieces, copies, with_room=with_room)

    def _encode(self, batch: MessageBatch, offset: int, began: int | None) -> list[bytes]:
        """Return the pieces of a record; ``began``: where its round begins, if not with it."""
        segment, sequences = self.segment, batch.sequences
        assert segment is not None
        assert segment.index is not None
        assert sequences is not None
        sequence = sequences[0]
        segment.index.add(sequence, offset)
        return encode_record(batch, sequence, segment.header, round_offset=began)

    def _write(
        self, pieces: list[bytes], copies: list[JournalPiece] | None, *, with_room: bool
    ) -> None:
        """Write records, behind those that are not in the file yet."""
        segment, file = self.segment, self._file
        unwritten = None if file is None or segment is None else segment.unwritten
        if file is None or segment is None or not (pieces or unwritten):
            return
        offset, data = self._offset, b"".join(pieces)
        end = offset + len(data)
        room = self._size_with_room(offset, end) - end if with_room else 0
        start, parts = unwritten or (offset, [])
        room = write_with_room(file, b"".join([*parts, data]), room, start)
        segment.unwritten = None
        self._size = max(self._size, end + room)
        if copies is not None and pieces:
            copies.append(self.copy_of(data, offset))
        self._offset = end

    def _sync(self) -> None:
        if not self._unsynced:
            return
        self._write([], None, with_room=False)
        assert self._file is not None
        began_s = time.perf_counter()
        self._file.sync()
        self._fsync_s.observe(time.perf_counter() - began_s)
        self._name_segment()
        self._synced = self._offset
        self._safe = end_of(self._unsynced[-1])
        self._unsynced = []

    def _begin_segment(self, first: int) -> None:
        previous, end = self.segment, self._offset
        if self._file is not None:
            self._sync()
            self._close_file()
        if previous is not None:
            self._ends.append((previous, end))
        before = (None, None) if previous is None else (previous.named_first, end)
        salt, now_ns = secrets.randbits(32), time.time_ns()
        header = SegmentHeader(self._number, first, salt, now_ns, *before)
        name = segment_name(self._topic, self._number, first)
        draft = draft_name(name)
        with suppress(FileNotFoundError):
            self._disk.unlink(draft)
        file = self._file = self._disk.create(draft)
        self._before, self._before_end = previous, end
        self.segment = SegmentFile(name, header, SEGMENT_HEADER_BYTES, SparseIndex(header))
        self._offset = self._synced = self._size = SEGMENT_HEADER_BYTES
        self._is_named = False
        self._begun.append(self.segment)
        file.write(header.to_bytes(), 0)
        if not self._is_draft:
            file.sync()
            self._name_segment()

    def _name_segment(self) -> None:
        """Give the present segment its name, which takes the place of one that does not count."""
        if self._is_named or self.segment is None:
            return
        self._disk.rename(draft_name(self.segment.name), self.segment.name)
        # The name has to last before anything in the file is acknowledged.
        self._disk.sync_folder()
        self._is_named = True

    def _end_segment(self) -> None:
        """Nothing more goes to the present segment: it ends where it is surely durable."""
        segment = self.segment
        if self._file is None or segment is None:
            return
        self._close_file()
        if not self._is_named:
            with suppress(OSError):
                self._disk.unlink(draft_name(segment.name))
        if self._synced == SEGMENT_HEADER_BYTES:
            # Nothing in it counts, so the next segment follows the one before.
            if segment in self._begun:
                self._begun.remove(segment)
            self.segment = self._before
            self._offset = self._synced = 0 if self._before is None else self._before_end
        else:
            self._offset = self._synced
            self._ends.append((segment, self._offset))
