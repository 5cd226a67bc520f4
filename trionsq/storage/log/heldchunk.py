"""A chunk of the deferred messages of a channel of a log, as the state keeps it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from trionsq.storage.log.ranges import HeldRange, pack_held, unpack_held

__all__ = ["HeldChunk", "without"]


class HeldChunk:
    """Ranges in the order of their due times, 24 bytes each; those before ``at`` have left."""

    __slots__ = ("at", "min_sequence", "number", "packed")

    def __init__(self, number: int, packed: array[int], at: int = 0) -> None:
        self.number = number
        self.packed = packed
        self.at = at
        self.min_sequence = min(packed[1::3], default=0)

    @property
    def next_ns(self) -> int | None:
        return self.packed[3 * self.at] if 3 * self.at < len(self.packed) else None

    @property
    def max_due_ns(self) -> int:
        return self.packed[-3]

    def ranges(self) -> Iterator[HeldRange]:
        """Yield those that have not left."""
        for at in range(self.at, len(self.packed) // 3):
            yield unpack_held(self.packed, at)

    def ranges_at(self, due_ns: int) -> Iterator[HeldRange]:
        """Yield those that have not left and are due at a time."""
        count = len(self.packed) // 3
        begin = bisect_left(range(count), due_ns, self.at, key=lambda at: self.packed[3 * at])
        for at in range(begin, count):
            one = unpack_held(self.packed, at)
            if one.due_ns != due_ns:
                return
            yield one

    def remove(self, due_ns: int, sequence: int) -> bool:
        """Forget one message; False if it is not here."""
        for one in self.ranges_at(due_ns):
            if one.sequence <= sequence < one.sequence + one.count:
                kept = [other for other in self.ranges() if other != one]
                kept += without(one, sequence)
                # A new one: a thread may read the old one.
                self.packed, self.at = pack_held(sorted(kept)), 0
                return True
        return False


def without(one: HeldRange, sequence: int) -> list[HeldRange]:
    """Return what is left of a range without one of its messages."""
    before, behind = sequence - one.sequence, one.sequence + one.count - sequence - 1
    found = [one._replace(count=before), one._replace(sequence=sequence + 1, count=behind)]
    return [part for part in found if part.count]
