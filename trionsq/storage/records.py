"""The records of a disk queue file: messages are encoded and parsed in bulk.

A record is ``[length:int32][timestamp:8][attempts:2][id:16][body]``; the length counts all that
follows it. Records of one size lie at a fixed stride: whole columns of them are compared and sliced
at once. Records of several sizes need a table of their ends.

Spec: nsqd-internals, section 7.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, groupby
from struct import Struct
from struct import error as StructError
from typing import Final

from trionsq.core.batch import MessageBatch, Segment
from trionsq.wire.bodies import PackedBodies, StridedBodies, slice_fields

__all__ = [
    "RECORD_OVERHEAD_BYTES",
    "EncodedRecords",
    "RecordBatch",
    "RecordBlock",
    "Run",
    "encode",
    "parse",
]

RECORD_OVERHEAD_BYTES: Final = 4 + 8 + 2 + 16
"""Bytes of a record before its body."""

_FIELD: Final = 4
_STAMP_AT: Final = 4
_STAMP: Final = 8
_ATTEMPTS_AT: Final = 12
_ATTEMPTS: Final = 2
_ID_AT: Final = 14
_ID: Final = 16
# The length counts the fields behind it: without a body it has the least valid value.
_MIN_LENGTH: Final = RECORD_OVERHEAD_BYTES - _FIELD
_ATTEMPTS_MASK: Final = 0xFFFF

_INT32: Final = Struct(">i")
_UINT16: Final = Struct(">H")
_HEADER: Final = Struct(">iqH")
_STAMP_AND_ATTEMPTS: Final = Struct(">qH")
_LENGTH_AND_ATTEMPTS: Final = Struct(">i8xH")

# Length fields of small bodies come from a table: packing one costs more than a look-up.
_MAX_SMALL_BODY: Final = 4096
_LENGTHS: Final = [_INT32.pack(_MIN_LENGTH + size) for size in range(_MAX_SMALL_BODY)]

Run = tuple[int, int, int]
"""Index of the first record, index after the last one, attempts of all of them."""


@lru_cache(maxsize=256)
def _attempts(stride: int) -> Struct:
    return Struct(f">{_ATTEMPTS_AT}xH{stride - _ID_AT}x")


class _StridedColumn:
    """One field of records of equal size."""

    __slots__ = ("_buffer", "_offset", "_size", "_stride")

    def __init__(self, buffer: bytes, offset: int, size: int, stride: int) -> None:
        self._buffer = buffer
        self._offset = offset
        self._size = size
        self._stride = stride

    def slice(self, first: int, last: int) -> list[bytes]:
        stride = self._stride
        if last - first == 1:
            start = first * stride + self._offset
            return [self._buffer[start : start + self._size]]
        after = stride - self._offset - self._size
        return slice_fields(self._buffer, self._offset, self._size, after, first, last)


class _PackedColumn:
    """One field of records of any size."""

    __slots__ = ("_buffer", "_ends", "_offset", "_size")

    def __init__(self, buffer: bytes, offset: int, size: int, ends: array[int]) -> None:
        """``ends``: the offset where the first record begins, then where each one ends."""
        self._buffer = buffer
        self._offset = offset
        self._size = size
        self._ends = ends

    def slice(self, first: int, last: int) -> list[bytes]:
        buffer, start = self._buffer, self._offset
        end = start + self._size
        return [buffer[at + start : at + end] for at in self._ends[first:last]]


class RecordBatch(MessageBatch):
    """Messages that are in memory as the records that were read.

    Attributes:
        runs: consecutive records with equal attempts; together all records.
        stride: size of each record in bytes, or 0 if sizes differ.
    """

    __slots__ = ("_buffer", "_ends", "runs", "stride")

    def __init__(self, buffer: bytes, stride: int, ends: list[int], runs: list[Run]) -> None:
        """``buffer`` holds whole records only, at least one.

        Each has ``stride`` bytes, more than RECORD_OVERHEAD_BYTES. Or ``stride`` is 0, and ``ends``
        has the offset where the first one begins, then where each one ends.
        """
        self._buffer = buffer
        self.stride = stride
        self.runs = runs
        first_ns = int.from_bytes(buffer[_STAMP_AT:_ATTEMPTS_AT], "big", signed=True)
        if stride:
            self._ends = array("I")
            bodies = StridedBodies(buffer, RECORD_OVERHEAD_BYTES, stride - RECORD_OVERHEAD_BYTES)
            equal = _equal_column(buffer, _STAMP_AT, _STAMP, stride)
            stamps = None if equal else _StridedColumn(buffer, _STAMP_AT, _STAMP, stride)
            super().__init__(
                bodies, _StridedColumn(buffer, _ID_AT, _ID, stride), first_ns, stamps=stamps
            )
        else:
            self._ends = array("I", ends)
            super().__init__(
                PackedBodies(buffer, ends, RECORD_OVERHEAD_BYTES),
                _PackedColumn(buffer, _ID_AT, _ID, self._ends),
                first_ns,
                stamps=_PackedColumn(buffer, _STAMP_AT, _STAMP, self._ends),
            )

    def end(self, index: int) -> int:
        """Return the offset where the first ``index`` records end."""
        return index * self.stride if self.stride else self._ends[index]

    def raw(self, first: int, last: int) -> bytes:
        """Return the records ``first`` to ``last`` (exclusive) as they were read."""
        return self._buffer[self.end(first) : self.end(last)]

    def has_attempts(self, first: int, last: int, attempts: int) -> bool:
        """Return whether the records ``first`` to ``last`` (exclusive) all have ``attempts``."""
        runs = self.runs
        index = 0 if len(runs) == 1 else bisect_right(runs, first, key=lambda run: run[0]) - 1
        _, end, stored = runs[index]
        return stored == attempts and last <= end


class EncodedRecords:
    """Encoded records in a row.

    Attributes:
        data: the bytes.
        count: number of records.
        size: size of ``data``.
    """

    __slots__ = ("_ends", "_stride", "count", "data", "size")

    def __init__(self, data: bytes, count: int, stride: int) -> None:
        """``stride`` is the size of each record, or 0 if sizes differ."""
        self.data = data
        self.count = count
        self.size = len(data)
        self._stride = stride
        self._ends: list[int] = []

    def __repr__(self) -> str:
        return f"<EncodedRecords: {self.count}, {self.size} bytes>"

    def end(self, count: int) -> int:
        """Return the size of the first ``count`` records in bytes."""
        if count == self.count:
            return self.size
        return count * self._stride if self._stride else self._table()[count]

    def count_within(self, max_bytes: int) -> int:
        """Return how many of the first records fit into ``max_bytes``."""
        if self.size <= max_bytes:
            return self.count
        if max_bytes <= 0:
            return 0
        if self._stride:
            return max_bytes // self._stride
        return bisect_right(self._table(), max_bytes) - 1

    def _table(self) -> list[int]:
        # Only needed if the records do not fit into one file.
        if not self._ends:
            ends, at = [0], 0
            for _ in range(self.count):
                at += _FIELD + _INT32.unpack_from(self.data, at)[0]
                ends.append(at)
            self._ends = ends
        return self._ends


def encode(segment: Segment) -> EncodedRecords:
    """Encode the messages of a segment, with the segment's attempts modulo 2**16.

    Records that were read from a disk queue and not attempted since are copied unchanged.
    """
    batch, first, last = segment.batch, segment.first, segment.last
    attempts = segment.attempts & _ATTEMPTS_MASK
    if isinstance(batch, RecordBatch) and batch.has_attempts(first, last, attempts):
        return EncodedRecords(batch.raw(first, last), last - first, batch.stride)
    if last - first == 1:
        return _encode_one(batch, first, attempts)
    size = batch.bodies.size
    if batch.stamps is None and size:
        header = _HEADER.pack(_MIN_LENGTH + size, batch.timestamp_ns, attempts)
        parts = [header] * (3 * (last - first))
        parts[1::3] = batch.ids.slice(first, last)
        parts[2::3] = batch.bodies.slice(first, last)
        return EncodedRecords(b"".join(parts), last - first, RECORD_OVERHEAD_BYTES + size)
    return _encode_varied(batch, first, last, attempts)


def _encode_one(batch: MessageBatch, index: int, attempts: int) -> EncodedRecords:
    body = batch.bodies.body_at(index)
    (id_,) = batch.ids.slice(index, index + 1)
    length = _MIN_LENGTH + len(body)
    if batch.stamps is None:
        data = _HEADER.pack(length, batch.timestamp_ns, attempts) + id_ + body
    else:
        (stamp,) = batch.stamps.slice(index, index + 1)
        data = _INT32.pack(length) + stamp + _UINT16.pack(attempts) + id_ + body
    return EncodedRecords(data, 1, len(data))


def _encode_varied(batch: MessageBatch, first: int, last: int, attempts: int) -> EncodedRecords:
    count = last - first
    bodies = batch.bodies.slice(first, last)
    size = batch.bodies.size
    lengths = [_INT32.pack(_MIN_LENGTH + size)] * count if size else _lengths(bodies)
    if batch.stamps is None:
        parts = [_STAMP_AND_ATTEMPTS.pack(batch.timestamp_ns, attempts)] * (4 * count)
        parts[0::4] = lengths
        parts[2::4] = batch.ids.slice(first, last)
        parts[3::4] = bodies
    else:
        parts = [_UINT16.pack(attempts)] * (5 * count)
        parts[0::5] = lengths
        parts[1::5] = batch.stamps.slice(first, last)
        parts[3::5] = batch.ids.slice(first, last)
        parts[4::5] = bodies
    return EncodedRecords(b"".join(parts), count, RECORD_OVERHEAD_BYTES + size if size else 0)


def _lengths(bodies: Sequence[bytes]) -> list[bytes]:
    sizes = list(map(len, bodies))
    if max(sizes) < _MAX_SMALL_BODY:
        return list(map(_LENGTHS.__getitem__, sizes))
    return [_INT32.pack(_MIN_LENGTH + size) for size in sizes]


class RecordBlock:
    """The whole records at the beginning of data from a file.

    Attributes:
        batch: their messages; None if there is no whole record.
        count: number of whole records.
        size: their size in bytes.
        runs: consecutive records with equal attempts; together all records.
        needed: size of the record that begins behind them (of its length field, if not even that is
            whole); 0 if the data ends there.
        corrupt: whether the record behind them has an invalid length; ``needed`` is 0 then.
    """

    __slots__ = ("batch", "corrupt", "count", "needed", "runs", "size")

    def __init__(self, batch: RecordBatch | None, size: int, needed: int, corrupt: bool) -> None:
        self.batch = batch
        self.count = 0 if batch is None else batch.count
        self.size = size
        self.runs: list[Run] = [] if batch is None else batch.runs
        self.needed = needed
        self.corrupt = corrupt

    def __repr__(self) -> str:
        return f"<RecordBlock of {self.count}, {self.size} bytes>"

    def end(self, index: int) -> int:
        """Return the offset in the data where the first ``index`` records end."""
        return 0 if self.batch is None else self.batch.end(index)


def parse(data: bytes, max_body_bytes: int) -> RecordBlock:
    """Parse the whole records at the beginning of ``data``, up to the first invalid length.

    A length is valid for bodies of 0 to ``max_body_bytes`` bytes.
    """
    max_length = _MIN_LENGTH + max_body_bytes
    count, stride = _equal_sizes(data, max_length)
    at = count * stride
    needed = _needed(data, at, max_length)
    batch: RecordBatch | None = None
    if count and (0 < needed <= len(data) - at or stride == RECORD_OVERHEAD_BYTES):
        # Sizes differ, or bodies are empty: strided bodies must have a size.
        ends = list(range(0, at + 1, stride))
        attempts = _strided_attempts(data[:at], stride)
        at = _walk(data, max_length, ends, attempts)
        needed = _needed(data, at, max_length)
        batch = RecordBatch(data[:at], 0, ends, _runs(attempts))
    elif count:
        records = data[:at]
        batch = RecordBatch(records, stride, [], _strided_runs(records, stride))
    return RecordBlock(batch, at, max(needed, 0), needed < 0)


def _needed(data: bytes, at: int, max_length: int) -> int:
    """Return the size of the record at ``at``: 0 at the end of the data, -1 if it is invalid."""
    if at == len(data):
        return 0
    if len(data) - at < _FIELD:
        return _FIELD
    (length,) = _INT32.unpack_from(data, at)
    return _FIELD + length if _MIN_LENGTH <= length <= max_length else -1


def _equal_sizes(data: bytes, max_length: int) -> tuple[int, int]:
    """Return how many records from the first on have its size, and that size; 0 if not whole."""
    stride = _needed(data, 0, max_length)
    if stride < RECORD_OVERHEAD_BYTES:
        return 0, 0
    count = len(data) // stride
    if count < 2:
        return count, stride
    for at in reversed(range(_FIELD)):  # sizes differ in their last bytes first
        column = data[at : count * stride : stride]
        count -= len(column.lstrip(data[at : at + 1]))
    return count, stride


def _equal_column(records: bytes, offset: int, size: int, stride: int) -> bool:
    """Return whether this field is equal in all records, each of ``stride`` bytes.

    Compares the last byte first: that usually differs if any does.
    """
    count = len(records) // stride
    return count == 1 or all(
        records[at::stride] == records[at : at + 1] * count
        for at in reversed(range(offset, offset + size))
    )


def _walk(data: bytes, max_length: int, ends: list[int], attempts: list[int]) -> int:
    """Add the ends and attempts of the whole records behind the last end; return the new one."""
    at = ends[-1]
    unpack, add_end, add_attempts = _LENGTH_AND_ATTEMPTS.unpack_from, ends.append, attempts.append
    try:
        while True:
            length, record_attempts = unpack(data, at)
            if not _MIN_LENGTH <= length <= max_length:
                break
            at += _FIELD + length
            add_end(at)
            add_attempts(record_attempts)
    except StructError:
        pass  # the rest is shorter than any record
    if at > len(data):
        ends.pop()
        attempts.pop()
    return ends[-1]


def _strided_runs(records: bytes, stride: int) -> list[Run]:
    if _equal_column(records, _ATTEMPTS_AT, _ATTEMPTS, stride):
        (attempts,) = _UINT16.unpack_from(records, _ATTEMPTS_AT)
        return [(0, len(records) // stride, attempts)]
    return _runs(_strided_attempts(records, stride))


def _strided_attempts(records: bytes, stride: int) -> list[int]:
    return list(chain.from_iterable(_attempts(stride).iter_unpack(records)))


def _runs(attempts: list[int]) -> list[Run]:
    if attempts.count(attempts[0]) == len(attempts):
        return [(0, len(attempts), attempts[0])]
    runs: list[Run] = []
    first = 0
    for value, group in groupby(attempts):
        last = first + sum(1 for _ in group)
        runs.append((first, last, value))
        first = last
    return runs
