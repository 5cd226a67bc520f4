"""Message bodies as they came from the socket: many in one buffer, sliced late and in bulk.

Messages of one size lie in one `bytes` object at a fixed stride, with other bytes between them (the
size fields of an MPUB, the command lines of a run of PUBs). Messages of several sizes lie in one
object as well, with a table of their ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from struct import Struct
from typing import Final, Protocol

__all__ = [
    "Bodies",
    "ListBodies",
    "PackedBodies",
    "StridedBodies",
    "join_bodies",
    "slice_fields",
]

# Records unpacked by one call of `Struct`. More gain little, and each count needs its own Struct.
_AT_ONCE: Final = 32


@lru_cache(maxsize=1024)
def _fields(before: int, size: int, after: int, count: int) -> Struct:
    return Struct(f"{before}x{size}s{after}x" * count)


def slice_fields(
    buffer: bytes, before: int, size: int, after: int, first: int, last: int
) -> list[bytes]:
    """Return one field of the records ``first`` to ``last`` (exclusive), each a `bytes` object.

    A record is ``before`` bytes, the field of ``size`` bytes, and ``after`` bytes.
    """
    stride = before + size + after
    whole, rest = divmod(last - first, _AT_ONCE)
    start = first * stride
    if not whole:
        return list(_fields(before, size, after, rest).unpack_from(buffer, start))
    middle = start + whole * _AT_ONCE * stride
    view = memoryview(buffer)[start:middle]
    values = list(chain.from_iterable(_fields(before, size, after, _AT_ONCE).iter_unpack(view)))
    if rest:
        values += _fields(before, size, after, rest).unpack_from(buffer, middle)
    return values


class Bodies(Protocol):
    """An immutable sequence of message bodies.

    Attributes:
        count: number of messages.
        nbytes: sum of the body sizes, in bytes.
        size: the size that all bodies have, in bytes, or 0 if they may differ.
    """

    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def size(self) -> int: ...

    def slice(self, first: int, last: int) -> Sequence[bytes]:
        """Return the bodies ``first`` to ``last`` (exclusive), each a `bytes` object."""

    def body_at(self, index: int) -> bytes:
        """Return the body at ``index``."""

    def copy_range(self, first: int, last: int) -> Bodies:
        """Return the bodies ``first`` to ``last`` (exclusive), without the memory of the others."""

    def joined(self) -> bytes:
        """Return all bodies, one behind the other."""


class StridedBodies:
    """Bodies of one size in one buffer, each after ``gap`` other bytes."""

    __slots__ = ("_buffer", "_gap", "count", "nbytes", "size")

    def __init__(self, buffer: bytes, gap: int, size: int) -> None:
        """``buffer`` is a whole number of records of ``gap + size`` bytes; ``size`` > 0."""
        self._buffer = buffer
        self._gap = gap
        self.size = size
        self.count = len(buffer) // (gap + size)
        self.nbytes = self.count * size

    def slice(self, first: int, last: int) -> list[bytes]:
        return slice_fields(self._buffer, self._gap, self.size, 0, first, last)

    def body_at(self, index: int) -> bytes:
        start = index * (self._gap + self.size) + self._gap
        return self._buffer[start : start + self.size]

    def copy_range(self, first: int, last: int) -> StridedBodies:
        stride = self._gap + self.size
        return StridedBodies(self._buffer[first * stride : last * stride], self._gap, self.size)

    def joined(self) -> bytes:
        if self.count == 1:
            return self._buffer[self._gap :]
        return b"".join(self.slice(0, self.count)) if self._gap else self._buffer


class PackedBodies:
    """Bodies of any size in one buffer, each after ``gap`` other bytes."""

    __slots__ = ("_buffer", "_ends", "_gap", "count", "nbytes", "size")

    def __init__(self, buffer: bytes, ends: Sequence[int], gap: int) -> None:
        """``ends`` has the start of the first record, and the end of each record."""
        self._buffer = buffer
        self._ends = array("I", ends)
        self._gap = gap
        self.count = len(ends) - 1
        self.nbytes = ends[-1] - ends[0] - gap * self.count
        self.size = 0

    def slice(self, first: int, last: int) -> list[bytes]:
        buffer, gap = self._buffer, self._gap
        ends = self._ends[first : last + 1]
        return [buffer[start + gap : end] for start, end in pairwise(ends)]

    def body_at(self, index: int) -> bytes:
        return self._buffer[self._ends[index] + self._gap : self._ends[index + 1]]

    def copy_range(self, first: int, last: int) -> PackedBodies:
        start, end = self._ends[first], self._ends[last]
        ends = [stop - start for stop in self._ends[first : last + 1]]
        return PackedBodies(self._buffer[start:end], ends, self._gap)

    def joined(self) -> bytes:
        if self._gap:
            return b"".join(self.slice(0, self.count))
        return self._buffer[self._ends[0] : self._ends[-1]]


class ListBodies:
    """Bodies of any size, each a `bytes` object."""

    __slots__ = ("_bodies", "count", "nbytes", "size")

    def __init__(self, bodies: list[bytes]) -> None:
        """``bodies`` must not be empty, and may not change afterwards."""
        self._bodies = bodies
        self.count = len(bodies)
        self.nbytes = sum(map(len, bodies))
        self.size = self.nbytes if self.count == 1 else 0

    def slice(self, first: int, last: int) -> list[bytes]:
        return self._bodies[first:last]

    def body_at(self, index: int) -> bytes:
        return self._bodies[index]

    def copy_range(self, first: int, last: int) -> ListBodies:
        return ListBodies(self._bodies[first:last])

    def joined(self) -> bytes:
        return b"".join(self._bodies)


def join_bodies(parts: Sequence[Bodies]) -> Bodies:
    """Return the bodies of all parts, in order: copies in one buffer of their own."""
    data = b"".join([part.joined() for part in parts])
    size = parts[0].size
    if size and {part.size for part in parts} == {size}:
        return StridedBodies(data, 0, size)
    sizes: list[int] = []
    for part in parts:
        if part.size:
            sizes += [part.size] * part.count
        else:
            sizes += map(len, part.slice(0, part.count))
    if sizes[0] > 0 and sizes.count(sizes[0]) == len(sizes):
        return StridedBodies(data, 0, sizes[0])
    return PackedBodies(data, list(accumulate(sizes, initial=0)), 0)
