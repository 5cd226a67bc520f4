"""Message ids: 64 bits of time tick, node and sequence, as 16 hex digits, made in ranges.

The first 13 digits are a tick of 1.048576 ms and the node, the last 3 digits the sequence in the
tick. So a range of ids is a prefix and two numbers, and its text is joined from a table.

Spec: tcp-protocol, section 5 (message id).
"""

from __future__ import annotations

from typing import Final

from trionsq.wire.bodies import slice_fields

__all__ = [
    "SEQUENCES",
    "IdRange",
    "IdSource",
    "RangeIds",
    "can_be_named",
    "is_valid_id",
    "ns_after_id",
]

_TICK_SHIFT: Final = 20
_TICK_EPOCH: Final = 1288834974288
_NODE_BITS: Final = 10
SEQUENCES: Final = 4096
_SUFFIXES: Final = [b"%03x" % sequence for sequence in range(SEQUENCES)]

IdRange = tuple[bytes, int, int]
"""Prefix of 13 digits, first sequence, end of the sequences (exclusive)."""


_HEX_DIGITS: Final = b"0123456789abcdef"
_SEPARATORS: Final = (b" ", b"\r", b"\n")


def is_valid_id(ids: bytes) -> bool:
    """Return whether these 16 bytes are a message id as nsqd makes them, or several of them."""
    return not ids.strip(_HEX_DIGITS)


def can_be_named(ids: bytes) -> bool:
    """Return whether FIN, REQ and TOUCH can name the messages with these ids, 16 bytes each.

    A space or the end of a line would cut the id.
    """
    return not any(byte in ids for byte in _SEPARATORS)


def ns_after_id(number: int) -> int:
    """Return the time before which an id was made, as `IdSource.until_ns`."""
    return ((number >> (_NODE_BITS + 12)) + _TICK_EPOCH + 1) << _TICK_SHIFT


class RangeIds:
    """The ids of one batch: almost always one range.

    Attributes:
        ranges: the ids in order.
    """

    __slots__ = ("ranges",)

    def __init__(self, ranges: list[IdRange]) -> None:
        self.ranges = ranges

    def slice(self, first: int, last: int) -> list[bytes]:
        if last - first == 1 and len(self.ranges) == 1:
            prefix, start, _ = self.ranges[0]
            return [prefix + _SUFFIXES[start + first]]
        ids: list[bytes] = []
        for prefix, start, end in self.ranges:
            if first < end - start:
                suffixes = _SUFFIXES[start + first : min(start + last, end)]
                if len(suffixes) == 1:
                    ids.append(prefix + suffixes[0])
                else:
                    ids += slice_fields(prefix + prefix.join(suffixes), 0, 16, 0, 0, len(suffixes))
                if last <= end - start:
                    break
                first = end - start
            first -= end - start
            last -= end - start
        return ids


class IdSource:
    """The ids of one topic. They rise strictly, also when the clock steps back.

    A burst of more than 4,096 messages in a tick uses ids of later ticks.
    """

    __slots__ = ("_node", "_prefix", "_sequence", "_tick")

    def __init__(self, node_id: int, after_ns: int = 0) -> None:
        """``node_id`` is 0..1023 (--node-id); the first id is later than ids of ``after_ns``."""
        self._node = node_id
        # 0 is the tick of 1970, where a machine without a clock starts.
        self._tick = (after_ns >> _TICK_SHIFT) - _TICK_EPOCH - 1
        self._sequence = SEQUENCES
        self._prefix = b""

    @property
    def until_ns(self) -> int:
        """The time up to which ids may have been used, in nanoseconds since the epoch."""
        return (self._tick + _TICK_EPOCH + 1) << _TICK_SHIFT

    def next_ids(self, count: int, now_ns: int) -> RangeIds:
        """Return the next ``count`` ids at wall clock time ``now_ns``."""
        tick = (now_ns >> _TICK_SHIFT) - _TICK_EPOCH
        if tick > self._tick:
            self._start(tick)
        ranges: list[IdRange] = []
        while True:
            first = self._sequence
            end = min(first + count, SEQUENCES)
            if end > first:
                ranges.append((self._prefix, first, end))
                self._sequence = end
                count -= end - first
            if not count:
                return RangeIds(ranges)
            self._start(self._tick + 1)

    def _start(self, tick: int) -> None:
        self._tick = tick
        self._sequence = 0
        self._prefix = b"%013x" % (((tick << _NODE_BITS) | self._node) & (2**52 - 1))
