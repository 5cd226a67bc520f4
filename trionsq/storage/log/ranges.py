"""Ranges of messages of one log, and how the state keeps them: packed. Pure."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from struct import Struct
from typing import Final, NamedTuple

from trionsq.core.batch import Segment

__all__ = [
    "Gaps",
    "HeldRange",
    "MessageRange",
    "SequenceSet",
    "held_from_bytes",
    "held_to_bytes",
    "join_ranges",
    "pack_held",
    "pack_open",
    "pack_ranges",
    "ranges_of",
    "segment_ranges",
    "unpack_held",
    "unpack_open",
    "unpack_replay",
    "walk_open",
]

_SKIPPED: Final = Struct(">Q")
_REPLAY: Final = Struct(">Q")
_OPEN: Final = Struct(">QIH")
_SWAPPED: Final = sys.byteorder == "little"
_ATTEMPTS_BITS: Final = 16
_MAX_ATTEMPTS: Final = 2**_ATTEMPTS_BITS - 1


class MessageRange(NamedTuple):
    """Consecutive messages with the same number of deliveries so far."""

    sequence: int
    count: int  # type: ignore[assignment]  # tuples have a method of that name
    attempts: int


class HeldRange(NamedTuple):
    """Consecutive messages that are due at one time, in nanoseconds since the epoch."""

    due_ns: int
    sequence: int
    count: int  # type: ignore[assignment]  # tuples have a method of that name
    attempts: int


def ranges_of(sequences: Sequence[int], attempts: int) -> list[MessageRange]:
    """Return the ranges of rising sequences."""
    if isinstance(sequences, range):
        return [MessageRange(sequences.start, len(sequences), attempts)] if sequences else []
    found: list[MessageRange] = []
    first = end = -1
    for sequence in sequences:
        if sequence != end:
            if end > first:
                found.append(MessageRange(first, end - first, attempts))
            first = sequence
        end = sequence + 1
    if end > first:
        found.append(MessageRange(first, end - first, attempts))
    return found


def segment_ranges(segment: Segment) -> list[MessageRange]:
    """Return the ranges of a segment that came from a log."""
    sequences = segment.batch.sequences
    assert sequences is not None, "the messages are of no log"
    return ranges_of(sequences[segment.first : segment.last], segment.attempts)


def join_ranges(ranges: Iterable[MessageRange]) -> Iterator[MessageRange]:
    """Yield ranges that are in order; neighbours with equal attempts are one."""
    first = end = tried = -1
    for sequence, count, attempts in ranges:
        if sequence == end and attempts == tried:
            end += count
            continue
        if first >= 0:
            yield MessageRange(first, end - first, tried)
        first, end, tried = sequence, sequence + count, attempts
    if first >= 0:
        yield MessageRange(first, end - first, tried)


def pack_open(ranges: Iterable[MessageRange], skipped: int = 0, replay_end: int = 0) -> bytes:
    """Return ranges as bytes, 14 for each, behind the number of messages to be skipped.

    ``replay_end``, if it is not 0, stands between the two.
    """
    head = _SKIPPED.pack(skipped)
    if replay_end:
        head += _REPLAY.pack(replay_end)
    return head + pack_ranges(ranges)


def pack_ranges(ranges: Iterable[MessageRange]) -> bytes:
    """Return ranges as `pack_open` does, for behind what it returns."""
    packed = [
        _OPEN.pack(sequence, count, attempts if attempts < _MAX_ATTEMPTS else _MAX_ATTEMPTS)
        for sequence, count, attempts in ranges
    ]
    return b"".join(packed)


def unpack_open(data: bytes) -> tuple[list[MessageRange], int]:
    """Return what `pack_open` packed; nothing of an empty text."""
    if not data:
        return [], 0
    return list(walk_open(data)), _SKIPPED.unpack_from(data)[0]


def walk_open(data: bytes) -> Iterator[MessageRange]:
    """Yield the ranges that `pack_open` packed."""
    begin = _SKIPPED.size + (_REPLAY.size if _has_replay(data) else 0)
    return starmap(MessageRange, _OPEN.iter_unpack(memoryview(data)[begin:]))


def unpack_replay(data: bytes) -> int:
    """Return the ``replay_end`` that `pack_open` packed; 0 if it packed none."""
    return _REPLAY.unpack_from(data, _SKIPPED.size)[0] if _has_replay(data) else 0


def _has_replay(data: bytes) -> bool:
    return len(data) % _OPEN.size == _SKIPPED.size + _REPLAY.size - _OPEN.size


def pack_held(ranges: Iterable[HeldRange]) -> array[int]:
    """Return ranges as three numbers each."""
    packed = array("q")
    for due_ns, sequence, count, attempts in ranges:
        packed.extend((due_ns, sequence, count << _ATTEMPTS_BITS | min(attempts, _MAX_ATTEMPTS)))
    return packed


def unpack_held(packed: Sequence[int], at: int) -> HeldRange:
    """Return the range number ``at`` of what `pack_held` packed."""
    due_ns, sequence, rest = packed[3 * at : 3 * at + 3]
    return HeldRange(due_ns, sequence, rest >> _ATTEMPTS_BITS, rest & _MAX_ATTEMPTS)


def held_to_bytes(packed: array[int]) -> bytes:
    """Return packed ranges as the state keeps them, big-endian."""
    if _SWAPPED:
        packed = packed[:]
        packed.byteswap()
    return packed.tobytes()


def held_from_bytes(data: bytes) -> array[int]:
    """Return what `held_to_bytes` returned as packed ranges."""
    packed = array("q", data)
    if _SWAPPED:
        packed.byteswap()
    return packed


class SequenceSet:
    """The sequences of ranges that do not overlap: takes memory by the range."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, ranges: Iterable[MessageRange]) -> None:
        ordered = sorted(ranges)
        self._firsts = [one.sequence for one in ordered]
        self._ends = [one.sequence + one.count for one in ordered]

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self._firsts, sequence) - 1
        return at >= 0 and sequence < self._ends[at]


class Gaps:
    """Sequences of a log that nobody gets: refused, emptied, damaged, or never given."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """``ranges``: ``(first, end)``, in any order; they may overlap."""
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.add(first, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._ends, strict=True)

    def __len__(self) -> int:
        return len(self._firsts)

    def end_at(self, sequence: int) -> int | None:
        """Return the end of the range that has a sequence; None if none has it."""
        at = bisect_right(self._firsts, sequence) - 1
        return self._ends[at] if at >= 0 and sequence < self._ends[at] else None

    def begin_from(self, sequence: int) -> int:
        """Return where the range with a sequence begins, or else the next one; 2**63: none does."""
        at = bisect_right(self._ends, sequence)
        return self._firsts[at] if at < len(self._firsts) else 2**63

    def add(self, first: int, end: int) -> None:
        """Add a range; those that it touches become one with it."""
        if first >= end:
            return
        kept = [(one, other) for one, other in self if other < first or one > end]
        joined = [(one, other) for one, other in self if other >= first and one <= end]
        first = min([first, *(one for one, _ in joined)])
        end = max([end, *(other for _, other in joined)])
        ranges = sorted([*kept, (first, end)])
        self._firsts = [one for one, _ in ranges]
        self._ends = [other for _, other in ranges]

    def count(self, first: int, end: int) -> int:
        """Return how many sequences from ``first`` to ``end`` (exclusive) have no message."""
        if not self._firsts or first >= end:
            return 0
        at = max(bisect_right(self._firsts, first) - 1, 0)
        missing = 0
        while at < len(self._firsts) and self._firsts[at] < end:
            missing += max(0, min(end, self._ends[at]) - max(first, self._firsts[at]))
            at += 1
        return missing

    def drop_before(self, first: int) -> None:
        """Forget the gaps before a sequence that is no longer read."""
        self.__init__([(max(first, one), end) for one, end in self])  # type: ignore[misc]
