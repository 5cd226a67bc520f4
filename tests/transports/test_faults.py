"""Streams that are none, are broken, or would become far too long."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.ends import STACKS, memory_pair, receive
from trionsq.testing.streams import Pipe
from trionsq.transports.compression import DeflateLayer, SnappyLayer
from trionsq.transports.transport import BrokenStreamError, Layer, LayeredTransport

MEBIBYTE = 2**20
READ_NBYTES = 128 * 1024
CHUNK_NBYTES = 64 * 1024
BEGIN = b"\xff\x06\x00\x00sNaPpY"
LAYERS: dict[str, Callable[[], Layer]] = {
    "deflate": lambda: DeflateLayer(9),
    "snappy": SnappyLayer,
}


def framed(data: bytes) -> bytes:
    """A whole snappy stream."""
    return bytes(snappy.StreamCompressor().add_chunk(data))


def chunk(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


def decode_all(layer: Layer, data: bytes) -> bytes:
    """All that a layer makes of it, in reads of the usual size."""
    parts = [layer.decode(data, READ_NBYTES)]
    while layer.has_more:
        parts.append(layer.decode(b"", READ_NBYTES))
    return b"".join(parts)


@pytest.mark.parametrize("name", LAYERS)
def test_a_bomb_comes_out_in_small_pieces(name: str) -> None:
    """64 MiB of nothing, in a few KiB or MiB: a read gives no more than it may, all arrives."""
    bomb = LAYERS[name]().encode(bytes(64 * MEBIBYTE))
    assert len(bomb) < 4 * MEBIBYTE
    layer = LAYERS[name]()
    total = 0
    for start in range(0, len(bomb), CHUNK_NBYTES):
        plain = layer.decode(bomb[start : start + CHUNK_NBYTES], READ_NBYTES)
        assert len(plain) <= READ_NBYTES
        total += len(plain)
        while layer.has_more:
            plain = layer.decode(b"", READ_NBYTES)
            assert len(plain) <= READ_NBYTES
            total += len(plain)
    assert total == 64 * MEBIBYTE


@pytest.mark.parametrize("name", LAYERS)
@given(data=st.binary(max_size=300), begins=st.booleans())
def test_garbage_is_refused_or_waited_for(name: str, data: bytes, begins: bool) -> None:
    """Bytes of any kind are no stream, or not the whole of one; nothing else goes wrong."""
    layer = LAYERS[name]()
    try:
        decode_all(layer, BEGIN + data if begins and name == "snappy" else data)
    except BrokenStreamError:
        return
    assert not layer.has_more


@pytest.mark.parametrize("name", LAYERS)
@given(
    place=st.integers(0, 10**6), bit=st.integers(0, 7), message=st.binary(min_size=1, max_size=5000)
)
def test_a_flipped_bit_is_survived(name: str, place: int, bit: int, message: bytes) -> None:
    """Snappy's checksums find it; deflate has none, and what comes out is bounded all the same."""
    stream = bytearray(LAYERS[name]().encode(message))
    stream[place % len(stream)] ^= 1 << bit
    layer = LAYERS[name]()
    try:
        plain = decode_all(layer, bytes(stream))
    except BrokenStreamError:
        return
    if name == "snappy":
        # A part that makes no whole chunk any more, or nothing that counts.
        assert message.startswith(plain)


@pytest.mark.parametrize("name", LAYERS)
@given(message=st.binary(max_size=3000), keep=st.integers(0, 10**6))
def test_a_truncated_stream_waits(name: str, message: bytes, keep: int) -> None:
    """What is there of it is given out, in order; the rest may still come."""
    stream = LAYERS[name]().encode(message)
    at = keep % (len(stream) + 1)
    layer = LAYERS[name]()
    plain = decode_all(layer, stream[:at])
    assert message.startswith(plain)
    assert plain + decode_all(layer, stream[at:]) == message


def test_what_can_be_skipped_is_skipped() -> None:
    """Padding, reserved chunks and further identifiers may stand anywhere, also very long."""
    stream = b"".join(
        [
            BEGIN,
            chunk(0xFE, bytes(100_000)),
            framed(b"a" * 70_000),
            chunk(0x80, b""),
            BEGIN,
            chunk(0xFD, b"what is this"),
            framed(b"b"),
            chunk(0xFE, bytes(2**24 - 1)),
            framed(b"c"),
        ]
    )
    layer = SnappyLayer()
    plain = b"".join(
        decode_all(layer, stream[start : start + 5000]) for start in range(0, len(stream), 5000)
    )
    assert plain == b"a" * 70_000 + b"b" + b"c"
    assert len(layer._tail) < 10


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (framed(b"x")[10:], "no stream identifier"),
        (chunk(0xFE, b"") + framed(b"x"), "no stream identifier"),
        (b"\xff\x05\x00\x00sNaPp", "bad stream identifier"),
        (b"\xff\x06\x00\x00sNaPpX", "bad stream identifier"),
        (BEGIN + chunk(0x02, b"?"), "unknown chunk 0x2"),
        (BEGIN + chunk(0x7F, b"?"), "unknown chunk 0x7f"),
        (BEGIN + b"\x00\xff\xff\xff", "chunk too long"),
        (BEGIN + b"\x01\x05\x00\x01", "chunk too long"),
        (BEGIN + chunk(0x00, b"abc"), "without a length"),
        (BEGIN + chunk(0x01, b"abc"), "snappy: "),
        (BEGIN + chunk(0x01, b"abcdx"), "checksum"),
        (BEGIN + chunk(0x00, b"abcd\x80\x80\x08"), "chunk too long"),
        (BEGIN + chunk(0x00, b"abcd\xff\xff\xff\xff\x0f"), "without a length"),
    ],
)
def test_chunks_that_are_refused(stream: bytes, why: str) -> None:
    """Each with its reason, and before a chunk that is too long has come."""
    layer = SnappyLayer()
    with pytest.raises(BrokenStreamError, match=why):
        decode_all(layer, stream)


def test_what_follows_the_end_of_deflate_is_not_read() -> None:
    """A stream that ends itself ends the connection's input."""
    inner, peer = memory_pair(MEBIBYTE)
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    peer.send_nowait(compressor.compress(b"all") + compressor.flush() + b"garbage")
    ended = LayeredTransport(inner, DeflateLayer(6))
    assert receive(ended) == (b"all", True)
    peer.send_nowait(b"more garbage")
    assert receive(ended) == (b"", True)


class Chatty:
    """A layer whose peer asks for answers: a KiB for each byte."""

    has_more = at_end = False

    def __init__(self) -> None:
        self._owed = 0

    def encode(self, data: bytes | memoryview) -> bytes:
        return bytes(data)

    def decode(self, data: bytes, nbytes_max: int) -> bytes:
        self._owed += len(data)
        return b""

    def take_reply(self) -> bytes:
        owed, self._owed = self._owed, 0
        return bytes(owed * 1024)

    def end_stream(self) -> bytes:
        return b""


def test_answers_that_nobody_takes_are_bounded() -> None:
    """A peer that only asks, and never reads, is given up (in TLS, by key updates)."""
    asked, answers = Pipe(MEBIBYTE), Pipe(1000)
    inner, _ = memory_pair(MEBIBYTE)
    inner.incoming, inner.outgoing = asked, answers
    upgraded = LayeredTransport(inner, Chatty())
    asked.write(b"?" * 10)
    assert upgraded.receive_nowait(100) is None
    asked.write(b"?" * 1000)
    with pytest.raises(ConnectionAbortedError):
        upgraded.receive_nowait(100)


def test_a_broken_record_is_told() -> None:
    """TLS sends the alert that says why before the connection is given up."""
    inner, peer = memory_pair(MEBIBYTE)
    server, _ = STACKS["tls"](inner, peer)
    peer.send_nowait(b"\x17\x03\x03\x00\x30" + bytes(48))
    with pytest.raises(BrokenStreamError, match="TLS: "):
        server.receive_nowait(100)
    assert peer.receive_nowait(100)
