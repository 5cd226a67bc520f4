"""Runs of equal commands, recognised with C-speed operations on what a read brought.

Both stop before anything unusual: the parser of single commands decides what that is.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

from trionsq.wire.bodies import Bodies, PackedBodies, StridedBodies

__all__ = ["FIN_LINE_SIZE", "fin_run", "pub_run"]

FIN_LINE_SIZE: Final = len(b"FIN 0123456789abcdef\n")
_HEX: Final = b"0123456789abcdef"
_FIN_RUN: Final = re.compile(rb"(?:FIN [0-9a-f]{16}\n)+")
_FIRST_WINDOW: Final = 16
_FIELD: Final = 4
_INT32 = Struct(">i")


def fin_run(buffer: bytes | bytearray, pos: int) -> list[bytes]:
    """The ids of the FINs that follow each other from ``pos`` on, as far as they look usual."""
    # Looked at in growing windows, so that the cost follows the run and not what lies behind it.
    end = len(buffer)
    window = _FIRST_WINDOW
    start = pos
    while count := min((end - start) // FIN_LINE_SIZE, window):
        run = bytes(buffer[start : start + count * FIN_LINE_SIZE])
        if not _all_fins(run, count):
            match = _FIN_RUN.match(run)
            start += match.end() if match else 0
            break
        start += len(run)
        if count < window:
            break
        window *= 8
    return bytes(buffer[pos + 4 : start - 1]).split(b"\nFIN ") if start > pos else []


def _all_fins(run: bytes, count: int) -> bool:
    # With the hex digits gone, and blank and newline where they belong, all lines are FINs.
    return (
        run.translate(None, _HEX) == b"FIN \n" * count
        and run[3::FIN_LINE_SIZE] == b" " * count
        and run[FIN_LINE_SIZE - 1 :: FIN_LINE_SIZE] == b"\n" * count
    )


def pub_run(
    buffer: bytes | bytearray, start: int, line: bytes, msg_size_max: int
) -> tuple[Bodies, int]:
    """The bodies of the PUBs with this very line from ``start`` on, and where they end.

    The first is known to be whole and valid; the run ends before one that is not.
    """
    head = len(line) + _FIELD
    (size,) = _INT32.unpack_from(buffer, start + len(line))
    stride = head + size
    prefix = buffer[start : start + head]
    end = len(buffer)
    pos = start + stride
    while pos + stride <= end and buffer.startswith(prefix, pos):
        pos += stride
    same = StridedBodies(bytes(buffer[start:pos]), head, size)
    if not (pos + head < end and buffer.startswith(line, pos)):
        return same, pos
    ends = list(range(0, pos - start + 1, stride))
    while pos + head < end and buffer.startswith(line, pos):
        (size,) = _INT32.unpack_from(buffer, pos + len(line))
        stop = pos + head + size
        if not 0 < size <= msg_size_max or stop > end:
            break
        pos = stop
        ends.append(pos - start)
    if len(ends) - 1 == same.count:
        return same, pos
    return PackedBodies(bytes(buffer[start:pos]), ends, head), pos
