"""What the writer of a topic's log and others both see: segments, and rounds that are one write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trionsq.core.batch import MessageBatch
from trionsq.storage.folder import DiskWrite
from trionsq.storage.log.format import SegmentHeader
from trionsq.storage.log.names import parse_segment_name
from trionsq.storage.log.segments import SparseIndex

__all__ = ["RoundWrite", "SegmentFile", "end_of", "sequences_of", "size_with_room"]

_MAX_ROOM_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 4096


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
    """

    name: str
    header: SegmentHeader
    end: int
    index: SparseIndex | None
    kept: int | None = None
    is_replaced: bool = False
    unsynced_from: int | None = None
    last: tuple[int, int] | None = None

    @property
    def first(self) -> int:
        return self.header.first_sequence

    @property
    def named_first(self) -> int:
        """The first sequence in its name; that of a remainder is higher than `first`."""
        place = parse_segment_name(self.name)
        assert place is not None
        return place[2]


class RoundWrite(NamedTuple):
    """The one write that brings a round to its segment, see `SegmentWriter.encode_round`.

    Attributes:
        write: what to do; it may also make room.
        end: of what counts.
        records: the messages as the log has them.
        began_s: when it began.
    """

    write: DiskWrite
    end: int
    records: list[MessageBatch]
    began_s: float


def sequences_of(batch: MessageBatch) -> Sequence[int]:
    """Return the sequences of a batch in the log."""
    assert batch.sequences is not None, "the messages are of no log"
    return batch.sequences


def end_of(batch: MessageBatch) -> int:
    """Return the sequence behind a batch in the log."""
    return sequences_of(batch)[-1] + 1


def size_with_room(end: int, max_bytes: int) -> int:
    """Return the size of a segment when a round that ends there has made room behind itself.

    That are zeros, as many bytes as the segment has up to a limit.
    """
    size = end + min(end, _MAX_ROOM_BYTES)
    return min(size + -size % _BLOCK_BYTES, max(end, max_bytes))
