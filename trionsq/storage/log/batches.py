"""Batches of messages as records, and records as batches, in bulk. Pure.

The section of a record has columns: ids and timestamps if they must be there, sizes if they differ,
then all bodies, one behind the other. So a batch is written and read without work for each message
if its bodies have one size, and with little if they differ.
"""

from __future__ import annotations

import sys
from array import array
from binascii import Error as HexError
from binascii import hexlify, unhexlify
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final
from zlib import crc32

from trionsq.core.batch import Column, MessageBatch
from trionsq.core.ids import SEQUENCES, IdRange, RangeIds
from trionsq.storage.log.format import (
    EQUAL_SIZES,
    IDS_IN_SECTION,
    MAX_RANGES,
    STAMPS_IN_SECTION,
    FormatError,
    RecordHead,
    SegmentHeader,
    encode_extra,
    encode_head,
)
from trionsq.storage.log.origins import origin_of
from trionsq.wire.bodies import Bodies, PackedBodies, StridedBodies, join_bodies, slice_fields

__all__ = ["MAX_JOINED_BYTES", "encode_record", "join_batches", "join_entries", "parse_batch"]

MAX_JOINED_BYTES: Final = 1 << 20
"""Single publishes of one round become one record up to this size. A larger batch is one record."""

_ID: Final = 16
_STAMP: Final = 8
_SIZE: Final = 4
_SWAPPED: Final = sys.byteorder == "little"


class _PlainColumn:
    """Values of one size in one buffer, one behind the other."""

    __slots__ = ("buffer", "size")

    def __init__(self, buffer: bytes, size: int) -> None:
        self.buffer = buffer
        self.size = size

    def slice(self, first: int, last: int) -> list[bytes]:
        return slice_fields(self.buffer, 0, self.size, 0, first, last)


def encode_record(
    batch: MessageBatch,
    sequence: int,
    header: SegmentHeader,
    *,
    round_offset: int | None = None,
) -> list[bytes]:
    """Return the pieces of the record that holds ``batch``, to be written one behind the other.

    Args:
        batch: the messages.
        sequence: of the first one.
        header: of the segment that the record is for.
        round_offset: where the first record of its round begins, if that is another one.

    Raises:
        FormatError: the batch does not fit into a record.
    """
    count, bodies, flags = batch.count, batch.bodies, 0
    pieces: list[bytes] = []
    ranges = _id_ranges(batch.ids, count)
    if ranges is None:
        flags |= IDS_IN_SECTION
        pieces.append(_column_bytes(batch.ids, count))
    if batch.stamps is not None:
        flags |= STAMPS_IN_SECTION
        pieces.append(_column_bytes(batch.stamps, count))
    if bodies.size:
        flags |= EQUAL_SIZES
        pieces.append(bodies.joined())
    else:
        values = bodies.slice(0, count)
        sizes = list(map(len, values))
        if _are_equal(sizes):
            flags |= EQUAL_SIZES
        else:
            pieces.append(_pack_sizes(sizes))
        pieces.append(b"".join(values))
    nbytes, crc = 0, header.salt
    for piece in pieces:
        nbytes += len(piece)
        crc = crc32(piece, crc)
    origin = origin_of(batch.key)
    key, digest = (None, None) if batch.key is None or origin else batch.key
    extra = encode_extra(ranges, key, digest, round_offset, origin)
    stamp, delay = batch.timestamp_ns, batch.defer_ms
    head = encode_head(header, nbytes, crc, sequence, count, flags, stamp, delay, extra)
    return [head, *pieces]


def parse_batch(head: RecordHead, section: bytes, header: SegmentHeader) -> MessageBatch:
    """Return the messages of a record. ``section`` is what stands behind its head.

    Raises:
        FormatError: the section is damaged.
    """
    if crc32(section, header.salt) != head.body_crc:
        raise FormatError("the CRC of the record's messages is wrong")
    count, at = head.count, 0
    ids: Column
    if head.ids is None:
        at = _ID * count
        ids = _PlainColumn(section[:at], _ID)
    else:
        ids = _range_ids(head.ids)
    stamps: Column | None = None
    if head.flags & STAMPS_IN_SECTION:
        stamps = _PlainColumn(section[at : at + _STAMP * count], _STAMP)
        at += _STAMP * count
    bodies: Bodies
    if head.flags & EQUAL_SIZES:
        size, rest = divmod(len(section) - at, count)
        if rest or size <= 0:
            raise FormatError("the messages of the record do not have one size")
        bodies = StridedBodies(section[at:] if at else section, 0, size)
    else:
        bodies = _packed_bodies(section, at, count)
    sequences = range(head.sequence, head.next_sequence)
    return MessageBatch(bodies, ids, head.timestamp_ns, head.defer_ms, stamps, sequences)


def join_batches(batches: Sequence[MessageBatch], sequence: int | None = None) -> MessageBatch:
    """Return the messages of batches as one batch: of several, copies in memory of its own.

    Args:
        batches: at least one, all with one delay; one alone if it has a key.
        sequence: of the first message; None: the batch has no sequences.
    """
    first = batches[0]
    bodies, ids, stamps = first.bodies, first.ids, first.stamps
    if len(batches) > 1:
        assert all((it.defer_ms, it.key) == (first.defer_ms, None) for it in batches)
        bodies, ids = join_bodies([batch.bodies for batch in batches]), _join_ids(batches)
        stamps = _join_stamps(batches)
    sequences = None if sequence is None else range(sequence, sequence + bodies.count)
    return MessageBatch(
        bodies, ids, first.timestamp_ns, first.defer_ms, stamps, sequences, first.key
    )


def join_entries(entries: Sequence[tuple[MessageBatch, int]]) -> list[MessageBatch]:
    """Return the records of a round: single publishes with one delay and no key become one."""
    if len(entries) == 1:
        batch, sequence = entries[0]
        return [batch.placed_at(sequence)]
    records: list[MessageBatch] = []
    together: list[MessageBatch] = []
    first = nbytes = 0

    for batch, sequence in entries:
        size = batch.bodies.nbytes
        if together and (
            nbytes + size > MAX_JOINED_BYTES
            or batch.defer_ms != together[0].defer_ms
            or batch.key is not together[0].key
        ):
            records.append(join_batches(together, first))
            together, nbytes = [], 0
        if not together:
            first = sequence
        together.append(batch)
        nbytes += size
    if together:
        records.append(join_batches(together, first))
    return records


def _join_ids(batches: Sequence[MessageBatch]) -> Column:
    ranges: list[IdRange] = []
    for batch in batches:
        if not isinstance(batch.ids, RangeIds):
            return _PlainColumn(b"".join([_column_bytes(it.ids, it.count) for it in batches]), _ID)
        for one in batch.ids.ranges:
            if ranges and ranges[-1][0] == one[0] and ranges[-1][2] == one[1]:
                ranges[-1] = (one[0], ranges[-1][1], one[2])
            else:
                ranges.append(one)
    return RangeIds(ranges)


def _join_stamps(batches: Sequence[MessageBatch]) -> Column | None:
    first_ns = batches[0].timestamp_ns
    if all(batch.stamps is None and batch.timestamp_ns == first_ns for batch in batches):
        return None
    parts = [
        batch.timestamp_ns.to_bytes(_STAMP, signed=True) * batch.count
        if batch.stamps is None
        else _column_bytes(batch.stamps, batch.count)
        for batch in batches
    ]
    return _PlainColumn(b"".join(parts), _STAMP)


def _column_bytes(column: Column, count: int) -> bytes:
    if isinstance(column, _PlainColumn):
        return column.buffer
    return b"".join(column.slice(0, count))


def _are_equal(sizes: Sequence[int]) -> bool:
    # Empty bodies have a table of sizes: so a record never has more messages than bytes.
    return sizes[0] > 0 and sizes.count(sizes[0]) == len(sizes)


def _pack_sizes(sizes: Sequence[int]) -> bytes:
    values = array("I", sizes)
    if _SWAPPED:
        values.byteswap()
    return values.tobytes()


def _packed_bodies(section: bytes, at: int, count: int) -> PackedBodies:
    start = at + _SIZE * count
    if start > len(section):
        raise FormatError("the record is too short for the sizes of its messages")
    sizes = array("I", section[at:start])
    if _SWAPPED:
        sizes.byteswap()
    ends = list(accumulate(sizes, initial=start))
    if ends[-1] != len(section):
        raise FormatError("the sizes of the messages are not those of the record")
    return PackedBodies(section, ends, 0)


def _id_ranges(ids: Column, count: int) -> tuple[tuple[int, int], ...] | None:
    """Return the first id and the count of each range; None if the ids are no few ranges."""
    if isinstance(ids, RangeIds):
        ranges = ids.ranges
        if len(ranges) == 1:
            prefix, start, end = ranges[0]
            return ((int(prefix, 16) * SEQUENCES + start, end - start),)
        found = [
            (int(prefix, 16) * SEQUENCES + start, end - start) for prefix, start, end in ranges
        ]
    else:
        numbers = _id_numbers(_column_bytes(ids, count))
        if numbers is None:
            return None
        breaks = [at for at, (one, two) in enumerate(pairwise(numbers), 1) if two != one + 1]
        found = [(numbers[first], last - first) for first, last in pairwise([0, *breaks, count])]
    return tuple(found) if len(found) <= MAX_RANGES else None


def _id_numbers(text: bytes) -> array[int] | None:
    try:
        data = unhexlify(text)
    except HexError:
        return None
    if hexlify(data) != text:  # upper case: a number does not say so
        return None
    numbers = array("Q", data)
    if _SWAPPED:
        numbers.byteswap()
    return numbers


def _range_ids(ranges: Sequence[tuple[int, int]]) -> RangeIds:
    found: list[IdRange] = []
    for first, count in ranges:
        while count:
            tick, start = divmod(first, SEQUENCES)
            taken = min(count, SEQUENCES - start)
            found.append((b"%013x" % tick, start, start + taken))
            first += taken
            count -= taken
    return RangeIds(found)
