"""Runs of FIN and PUB (trionsq.wire.lines): never more than a plain reading would take."""

from __future__ import annotations

import re
from struct import pack

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trionsq.wire.lines import FIN_LINE_BYTES, fin_run, pub_run

ID = b"0123456789abcdef"
FIN = b"FIN " + ID + b"\n"


def plain_fin_run(buffer: bytes, pos: int) -> list[bytes]:
    ids = []
    while re.fullmatch(rb"FIN [0-9a-f]{16}\n", buffer[pos : pos + FIN_LINE_BYTES]):
        ids.append(buffer[pos + 4 : pos + FIN_LINE_BYTES - 1])
        pos += FIN_LINE_BYTES
    return ids


tails = st.one_of(
    st.text("FIN 09af\nREQ", max_size=60).map(str.encode),
    st.sampled_from([b"REQ " + ID + b" 0\n", FIN[:-1] + b"\r\n", b"FIN " + ID.upper() + b"\n"]),
)


@given(st.integers(0, 3), st.integers(0, 1200), tails, st.booleans())
@example(0, 1, b"REQ " + ID + b" 0\n", False)
@example(0, 15, b"FIN 0123456789abcde\nfFIN 0123456789abcdef\n", True)
@settings(deadline=None)
def test_a_fin_run_is_what_reading_line_by_line_finds(
    pos: int, count: int, tail: bytes, gathered: bool
) -> None:
    """All usual FINs from the position on, in order, and nothing of what follows them."""
    buffer = b"\n" * pos + FIN * count + tail + FIN
    found = fin_run(bytearray(buffer) if gathered else buffer, pos)
    assert found == plain_fin_run(buffer, pos)


@given(st.data())
@settings(deadline=None)
def test_a_byte_out_of_place_ends_the_fin_run(data: st.DataObject) -> None:
    """Any changed byte of any line leaves the lines before it a run, whatever the byte is."""
    buffer = bytearray(FIN * data.draw(st.integers(1, 40)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(buffer) - 1))
        buffer[at] = data.draw(st.sampled_from(b"FIN 0a\nZ\r"))
    assert fin_run(bytes(buffer), 0) == plain_fin_run(bytes(buffer), 0)


@pytest.mark.parametrize(
    "odd",
    [
        b"F0IN 123456789abcdef\n",
        b"0FIN 123456789abcdef\n",
        b"FIN0 123456789abcdef\n",
        b"FIN 0123456789abcd\nef",
        b"FIN 0123456789abcdeF\n",
        b"IFN 0123456789abcdef\n",
    ],
)
def test_letters_in_the_wrong_column_are_no_fin(odd: bytes) -> None:
    """Also where a line has the right letters and the right length."""
    assert len(odd) == FIN_LINE_BYTES
    assert fin_run(odd * 40, 0) == []
    assert fin_run(FIN * 3 + odd + FIN * 40, 0) == [ID] * 3


@pytest.mark.parametrize("count", [15, 16, 17, 143, 144, 145, 3000])
def test_long_fin_runs_are_whole(count: int) -> None:
    """The windows that a run is looked at in do not show in the result."""
    ids = [b"%016x" % number for number in range(count)]
    lines = b"".join(b"FIN " + id_ + b"\n" for id_ in ids)
    assert fin_run(lines, 0) == ids
    assert fin_run(lines + FIN[:-1], 0) == ids


def plain_pub_run(buffer: bytes, at: int, line: bytes, size_max: int) -> tuple[list[bytes], int]:
    bodies = []
    while buffer.startswith(line, at):
        field = buffer[at + len(line) : at + len(line) + 4]
        size = int.from_bytes(field, "big", signed=True)
        start = at + len(line) + 4
        if len(field) < 4 or not 0 < size <= size_max or start + size > len(buffer):
            break
        bodies.append(buffer[start : start + size])
        at = start + size
    return bodies, at


SIZE_MAX = 9
sizes = st.one_of(st.just(3), st.just(3), st.integers(1, SIZE_MAX))


@given(
    st.sampled_from([b"PUB t\n", b"PUB t x\r\n"]),
    st.lists(sizes, min_size=1, max_size=30),
    st.sampled_from([b"", b"PUB t\n", b"PUB tt\n\x00\x00\x00\x01a", b"NOP\n"]),
    st.sampled_from([pack(">i", size) + b"x" * 12 for size in (0, -1, 10)] + [b"", b"\0\0\0\3ab"]),
    st.integers(0, 4),
    st.booleans(),
)
@settings(deadline=None)
def test_a_pub_run_is_what_reading_one_by_one_finds(
    line: bytes, run: list[int], tail: bytes, broken: bytes, start: int, gathered: bool
) -> None:
    """The bodies of the PUBs with the very same line, up to the first that is not whole and valid.

    Their bytes say nothing: here each body looks like a command.
    """
    records = [line + pack(">i", size) + b"PUB t\n\x00\x00\x00"[:size] for size in run]
    buffer = b" " * start + b"".join(records) + (line + broken if broken else tail)
    bodies, end = pub_run(bytearray(buffer) if gathered else buffer, start, line, SIZE_MAX)
    assert (bodies.slice(0, bodies.count), end) == plain_pub_run(buffer, start, line, SIZE_MAX)
    assert all(type(body) is bytes for body in bodies.slice(0, bodies.count))
