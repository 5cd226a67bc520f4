"""Decisions of the wire, without a network."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deploy.link_reset import checksum, resets
from tests.deploy.link_wire import HELD_MAX, Direction

ETHERNET = struct.Struct("!6s6sH")
IPV4 = struct.Struct("!BBHHHBBH4s4s")
TCP = struct.Struct("!HHIIBBHHH")
NEAR, FAR = b"\x0a\xcf\x00\x0a", b"\x0a\xcf\x00\x0b"
NEAR_MAC, FAR_MAC = b"near--", b"far---"
HEAD_BYTES = ETHERNET.size + IPV4.size + TCP.size
NUMBERS = st.integers(0, 2**32 - 1)


def segment(number: int, acked: int, flags: int, body: bytes = b"", protocol: int = 6) -> bytes:
    """A frame from the near side's port 1000 to the far side's port 4150."""
    tcp = TCP.pack(1000, 4150, number, acked, 8 << 4, flags, 0, 0, 0) + bytes(12) + body
    ip = IPV4.pack(0x45, 0, 20 + len(tcp), 0, 0, 64, protocol, 0, NEAR, FAR)
    return ETHERNET.pack(FAR_MAC, NEAR_MAC, 0x0800) + ip + tcp


@given(NUMBERS, NUMBERS, st.binary(max_size=100))
def test_a_reset_has_the_number_that_its_reader_expects_next(
    number: int, acked: int, body: bytes
) -> None:
    """Of the sender what it acknowledged, of the receiver what it was sent; checksums hold."""
    pair = resets(segment(number, acked, 0x10, body))
    assert pair is not None
    after = (number + len(body)) % 2**32
    to_sender, to_receiver = pair
    assert told(to_sender) == (NEAR_MAC, NEAR, 4150, 1000, acked, after)
    assert told(to_receiver) == (FAR_MAC, FAR, 1000, 4150, number, acked)


def test_a_reset_acknowledges_a_syn() -> None:
    """The SYN counts as a byte: a connecting kernel accepts no other reset."""
    pair = resets(segment(7, 0, 0x02))
    assert pair is not None
    assert told(pair[0]) == (NEAR_MAC, NEAR, 4150, 1000, 0, 8)


def told(frame: bytes) -> tuple[bytes, bytes, int, int, int, int]:
    """Of a reset: to which MAC and address, its ports, its numbers."""
    to_mac, _, kind = ETHERNET.unpack_from(frame)
    *_, protocol, _, source, target = IPV4.unpack_from(frame, 14)
    from_port, to_port, number, acked, _, flags, *_ = TCP.unpack_from(frame, 34)
    assert (kind, protocol, flags, len(frame)) == (0x0800, 6, 0x14, 54)
    assert checksum(frame[14:34]) == 0
    assert checksum(source + target + struct.pack("!HH", 6, 20) + frame[34:]) == 0
    return to_mac, target, from_port, to_port, number, acked


@pytest.mark.parametrize(
    "frame",
    [b"", segment(1, 2, 0x04), segment(1, 2, 0x10, protocol=17), segment(1, 2, 0x10)[:40]],
    ids=["empty", "reset", "udp", "short"],
)
def test_what_is_no_segment_of_a_connection_gets_no_reset(frame: bytes) -> None:
    """Resets are not answered by resets, which would never end."""
    assert resets(frame) is None


WHOLE = segment(1, 2, 0x10, b"data")


@given(st.integers(0, len(WHOLE)), st.integers(14, len(WHOLE) - 1), st.integers(0, 255))
def test_no_frame_troubles_the_wire(size: int, at: int, byte: int) -> None:
    """Also a frame that is cut short or has a wrong byte gets two resets with right checksums, or
    none."""
    frame = bytearray(WHOLE)
    frame[at] = byte
    pair = resets(bytes(frame[:size]))
    if size < HEAD_BYTES:
        assert pair is None
    elif size == len(WHOLE) and at >= HEAD_BYTES:
        assert pair is not None
    for reset in pair or ():
        told(reset)


def test_a_frame_waits_as_long_as_it_should_and_none_overtakes() -> None:
    """Frames stay in order, also when the delay changes."""
    way = Direction(0)
    way.set_bad(0.2, 0)
    way.take(b"first", 10.0)
    assert way.due_in_s(10.1) == pytest.approx(0.1)
    way.set_bad(0, 0)
    way.take(b"second", 10.1)
    assert way.take_due(10.19) == []
    assert way.take_due(10.2) == [b"first", b"second"]
    assert way.due_in_s(10.3) is None


def test_the_same_seed_loses_the_same_frames() -> None:
    """About the configured share is lost, and the same frames for the same seed."""
    lost = []
    for _ in range(2):
        way = Direction(5)
        way.set_bad(0, 0.05)
        for number in range(10_000):
            way.take(b"%d" % number, 0)
        lost.append(way.take_due(0))
        assert 400 < way.counts["lost"] < 600
    assert lost[0] == lost[1]


def test_what_waits_is_bounded() -> None:
    """A stall holds a bounded number of frames; further ones are discarded and counted."""
    way = Direction(0)
    for number in range(HELD_MAX + 3):
        way.take(b"%d" % number, 0)
    assert way.counts["overflowed"] == 3
    assert way.take_due(0)[-1] == b"%d" % (HELD_MAX - 1)


def test_a_reset_ends_what_waits_and_lets_the_rest_pass() -> None:
    """Waiting segments become resets, other frames pass."""
    way = Direction(0)
    way.take(segment(1, 2, 0x10, b"data"), 0)
    way.take(b"an ARP question", 0)
    back, on = way.take_resets()
    assert told(back[0])[0] == NEAR_MAC
    assert told(on[0])[0] == FAR_MAC
    assert (len(back), on[1:]) == (1, [b"an ARP question"])
    assert way.due_in_s(0) is None
    assert way.counts["reset"] == 1
