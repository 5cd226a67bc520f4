"""Messages as the records of a disk queue file, made and read in bulk.

A record is ``[length:int32][timestamp:8][attempts:2][id:16][body]``; the length counts all that
follows it. Records of one size lie at a fixed stride, so that whole columns of them are compared
and cut out at once; records of several sizes need a table of their ends.

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

__all__ = ["RECORD_NBYTES_EXTRA", "Block", "RecordBatch", "Records", "Run", "encode", "parse"]

RECORD_NBYTES_EXTRA: Final = 4 + 8 + 2 + 16
"""What a record has before its body, in bytes."""

_FIELD: Final = 4
_STAMP_AT: Final = 4
_STAMP: Final = 8
_ATTEMPTS_AT: Final = 12
_ATTEMPTS: Final = 2
_ID_AT: Final = 14
_ID: Final = 16
# What the length counts besides the body: the least that it may be.
_LENGTH_MIN: Final = RECORD_NBYTES_EXTRA - _FIELD
_ATTEMPTS_MASK: Final = 0xFFFF

_INT32: Final = Struct(">i")
_UINT16: Final = Struct(">H")
_HEADER: Final = Struct(">iqH")
_STAMP_AND_ATTEMPTS: Final = Struct(">qH")
_LENGTH_AND_ATTEMPTS: Final = Struct(">i8xH")

# Length fields of small bodies come from a table: packing one costs more than looking it up.
_SMALL: Final = 4096
_LENGTHS: Final = [_INT32.pack(_LENGTH_MIN + size) for size in range(_SMALL)]

Run = tuple[int, int, int]
"""Index of the first record, index after the last one, the attempts that all of them have."""


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
        """``ends`` is where the first record begins, and where each one ends."""
        self._buffer = buffer
        self._offset = offset
        self._size = size
        self._ends = ends

    def slice(self, first: int, last: int) -> list[bytes]:
        buffer, start = self._buffer, self._offset
        end = start + self._size
        return [buffer[at + start : at + end] for at in self._ends[first:last]]


class RecordBatch(MessageBatch):
    """Messages that lie in memory as the records they were read as.

    Attributes:
        runs: consecutive records with equal attempts, together all of them.
        stride: the size that all records have, in bytes, or 0 if they may differ.
    """

    __slots__ = ("_buffer", "_ends", "runs", "stride")

    def __init__(self, buffer: bytes, stride: int, ends: list[int], runs: list[Run]) -> None:
        """``buffer`` holds whole records only, at least one.

        They are ``stride`` bytes each, more than RECORD_NBYTES_EXTRA; or ``stride`` is 0 and
        ``ends`` is where the first one begins, and where each one ends.
        """
        self._buffer = buffer
        self.stride = stride
        self.runs = runs
        first_ns = int.from_bytes(buffer[_STAMP_AT:_ATTEMPTS_AT], "big", signed=True)
        if stride:
            self._ends = array("I")
            bodies = StridedBodies(buffer, RECORD_NBYTES_EXTRA, stride - RECORD_NBYTES_EXTRA)
            equal = _equal_column(buffer, _STAMP_AT, _STAMP, stride)
            stamps = None if equal else _StridedColumn(buffer, _STAMP_AT, _STAMP, stride)
            super().__init__(
                bodies, _StridedColumn(buffer, _ID_AT, _ID, stride), first_ns, stamps=stamps
            )
        else:
            self._ends = array("I", ends)
            super().__init__(
                PackedBodies(buffer, ends, RECORD_NBYTES_EXTRA),
                _PackedColumn(buffer, _ID_AT, _ID, self._ends),
                first_ns,
                stamps=_PackedColumn(buffer, _STAMP_AT, _STAMP, self._ends),
            )

    def end(self, index: int) -> int:
        """Where the first ``index`` records end, in bytes."""
        return index * self.stride if self.stride else self._ends[index]

    def raw(self, first: int, last: int) -> bytes:
        """The records ``first`` to ``last`` (exclusive), as they were read."""
        return self._buffer[self.end(first) : self.end(last)]

    def attempted(self, first: int, last: int, attempts: int) -> bool:
        """Whether the records ``first`` to ``last`` (exclusive) all say ``attempts``."""
        runs = self.runs
        place = 0 if len(runs) == 1 else bisect_right(runs, first, key=lambda run: run[0]) - 1
        _, end, stored = runs[place]
        return stored == attempts and last <= end


class Records:
    """Encoded records, one behind the other.

    Attributes:
        data: the bytes.
        count: number of records.
        nbytes: size of ``data``.
    """

    __slots__ = ("_ends", "_stride", "count", "data", "nbytes")

    def __init__(self, data: bytes, count: int, stride: int) -> None:
        """``stride`` is the size that all records have, or 0 if they may differ."""
        self.data = data
        self.count = count
        self.nbytes = len(data)
        self._stride = stride
        self._ends: list[int] = []

    def __repr__(self) -> str:
        return f"<Records: {self.count}, {self.nbytes} bytes>"

    def end(self, count: int) -> int:
        """Size of the first ``count`` records, in bytes."""
        if count == self.count:
            return self.nbytes
        return count * self._stride if self._stride else self._table()[count]

    def fit(self, nbytes_max: int) -> int:
        """How many leading records lie within ``nbytes_max``."""
        if self.nbytes <= nbytes_max:
            return self.count
        if nbytes_max <= 0:
            return 0
        if self._stride:
            return nbytes_max // self._stride
        return bisect_right(self._table(), nbytes_max) - 1

    def _table(self) -> list[int]:
        # Rarely needed: only when the records do not all go into one file.
        if not self._ends:
            ends, at = [0], 0
            for _ in range(self.count):
                at += _FIELD + _INT32.unpack_from(self.data, at)[0]
                ends.append(at)
            self._ends = ends
        return self._ends


def encode(segment: Segment) -> Records:
    """The messages of a segment as records, with the segment's attempts modulo 2**16.

    What came from a disk queue and was not attempted since is copied as it stands.
    """
    batch, first, last = segment.batch, segment.first, segment.last
    attempts = segment.attempts & _ATTEMPTS_MASK
    if isinstance(batch, RecordBatch) and batch.attempted(first, last, attempts):
        return Records(batch.raw(first, last), last - first, batch.stride)
    if last - first == 1:
        return _encode_one(batch, first, attempts)
    size = batch.bodies.size
    if batch.stamps is None and size:
        header = _HEADER.pack(_LENGTH_MIN + size, batch.timestamp_ns, attempts)
        parts = [header] * (3 * (last - first))
        parts[1::3] = batch.ids.slice(first, last)
        parts[2::3] = batch.bodies.slice(first, last)
        return Records(b"".join(parts), last - first, RECORD_NBYTES_EXTRA + size)
    return _encode_varied(batch, first, last, attempts)


def _encode_one(batch: MessageBatch, index: int, attempts: int) -> Records:
    body = batch.bodies.body_at(index)
    (id_,) = batch.ids.slice(index, index + 1)
    length = _LENGTH_MIN + len(body)
    if batch.stamps is None:
        data = _HEADER.pack(length, batch.timestamp_ns, attempts) + id_ + body
    else:
        (stamp,) = batch.stamps.slice(index, index + 1)
        data = _INT32.pack(length) + stamp + _UINT16.pack(attempts) + id_ + body
    return Records(data, 1, len(data))


def _encode_varied(batch: MessageBatch, first: int, last: int, attempts: int) -> Records:
    count = last - first
    bodies = batch.bodies.slice(first, last)
    size = batch.bodies.size
    lengths = [_INT32.pack(_LENGTH_MIN + size)] * count if size else _lengths(bodies)
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
    return Records(b"".join(parts), count, RECORD_NBYTES_EXTRA + size if size else 0)


def _lengths(bodies: Sequence[bytes]) -> list[bytes]:
    sizes = list(map(len, bodies))
    if max(sizes) < _SMALL:
        return list(map(_LENGTHS.__getitem__, sizes))
    return [_INT32.pack(_LENGTH_MIN + size) for size in sizes]


class Block:
    """The whole records at the beginning of data that was read from a file.

    Attributes:
        batch: their messages; None if there is no whole record.
        count: number of whole records.
        nbytes: their size.
        runs: consecutive records with equal attempts, together all of them.
        needed: size of the record behind the whole ones, if it begins in the data (the size of
            the length field if not even that is there), else 0.
        corrupt: whether what follows the whole records has a length out of range; ``needed`` is
            0 then.
    """

    __slots__ = ("batch", "corrupt", "count", "nbytes", "needed", "runs")

    def __init__(self, batch: RecordBatch | None, nbytes: int, needed: int, corrupt: bool) -> None:
        self.batch = batch
        self.count = 0 if batch is None else batch.count
        self.nbytes = nbytes
        self.runs: list[Run] = [] if batch is None else batch.runs
        self.needed = needed
        self.corrupt = corrupt

    def __repr__(self) -> str:
        return f"<Block of {self.count}, {self.nbytes} bytes>"

    def end(self, index: int) -> int:
        """Where the first ``index`` records end in the data, in bytes."""
        return 0 if self.batch is None else self.batch.end(index)


def parse(data: bytes, body_nbytes_max: int) -> Block:
    """The whole records from the beginning of ``data`` on, as far as their lengths are valid.

    A length is valid if the body has 0 to ``body_nbytes_max`` bytes.
    """
    length_max = _LENGTH_MIN + body_nbytes_max
    count, stride = _equal_sizes(data, length_max)
    at = count * stride
    needed = _needed(data, at, length_max)
    batch: RecordBatch | None = None
    if count and (0 < needed <= len(data) - at or stride == RECORD_NBYTES_EXTRA):
        # Of several sizes, or without bodies, which have no stride of their own.
        ends = list(range(0, at + 1, stride))
        attempts = _strided_attempts(data[:at], stride)
        at = _walk(data, length_max, ends, attempts)
        needed = _needed(data, at, length_max)
        batch = RecordBatch(data[:at], 0, ends, _runs(attempts))
    elif count:
        records = data[:at]
        batch = RecordBatch(records, stride, [], _strided_runs(records, stride))
    return Block(batch, at, max(needed, 0), needed < 0)


def _needed(data: bytes, at: int, length_max: int) -> int:
    """Size of the record at ``at``: 0 if nothing is there, -1 if its length is out of range."""
    if at == len(data):
        return 0
    if len(data) - at < _FIELD:
        return _FIELD
    (length,) = _INT32.unpack_from(data, at)
    return _FIELD + length if _LENGTH_MIN <= length <= length_max else -1


def _equal_sizes(data: bytes, length_max: int) -> tuple[int, int]:
    """How many records from the first on have its size, and that size; 0 if it is not whole."""
    stride = _needed(data, 0, length_max)
    if stride < RECORD_NBYTES_EXTRA:
        return 0, 0
    count = len(data) // stride
    if count < 2:
        return count, stride
    for at in reversed(range(_FIELD)):  # sizes differ in their last bytes first
        column = data[at : count * stride : stride]
        count -= len(column.lstrip(data[at : at + 1]))
    return count, stride


def _equal_column(records: bytes, offset: int, size: int, stride: int) -> bool:
    """Whether all records have the same in this field; one look is enough if the last byte differs.

    ``records`` is a whole number of records of ``stride`` bytes.
    """
    count = len(records) // stride
    return count == 1 or all(
        records[at::stride] == records[at : at + 1] * count
        for at in reversed(range(offset, offset + size))
    )


def _walk(data: bytes, length_max: int, ends: list[int], attempts: list[int]) -> int:
    """Add the ends and attempts of the whole records behind the last end; the new last end."""
    at = ends[-1]
    unpack, add_end, add_attempts = _LENGTH_AND_ATTEMPTS.unpack_from, ends.append, attempts.append
    try:
        while True:
            length, tries = unpack(data, at)
            if not _LENGTH_MIN <= length <= length_max:
                break
            at += _FIELD + length
            add_end(at)
            add_attempts(tries)
    except StructError:
        pass  # less is left than any record has
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
