"""What is sent through a layer comes out of the other end, however it is cut."""

from __future__ import annotations

import random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.ends import (
    STACKS,
    client_engine,
    memory_pair,
    receive,
    send,
    server_context,
    shaken,
)
from trionsq.transports.compression import DeflateLayer
from trionsq.transports.tls import Engine, SslEngine, TlsLayer
from trionsq.transports.transport import LayeredTransport

CAPACITY_BYTES = 2**20
# A TLS record: 16 KiB of text, its header and what makes it tamper-proof.
RECORD_NBYTES_MAX = 16 * 1024 + 256

# Long ones, which take several pieces, chunks and records, are made of short ones.
messages = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=40),
        st.sampled_from([1, 1, 1, 7, 3000, 9000]),
    ),
    max_size=6,
)


@pytest.mark.parametrize("stack", STACKS)
@given(parts=messages, sizes=st.lists(st.integers(100, 200_000), min_size=1, max_size=8))
def test_all_arrives_in_order(stack: str, parts: list[tuple[bytes, int]], sizes: list[int]) -> None:
    """Whatever a peer takes at once, and whatever one read gives: not a byte more, less or other.

    The pipe takes a few bytes, then nothing, then some more: what was not taken is offered again.
    """
    sent = [part * times for part, times in parts]
    inner, peer = memory_pair(sizes[0])
    sender, receiver = STACKS[stack](inner, peer)
    came = b""
    turn = 0
    for message in sent:
        for _ in send(sender, message):
            turn += 1
            data, _ = receive(receiver, sizes[turn % len(sizes)])
            came += data
            inner.outgoing.capacity_bytes = sizes[turn % len(sizes)]
    data, is_end = receive(receiver)
    assert (came + data, is_end) == (b"".join(sent), False)


@pytest.mark.parametrize("stack", STACKS)
def test_what_was_written_can_be_read_at_once(stack: str) -> None:
    """Nothing is kept back for a better compression: a small message arrives without another."""
    sender, receiver = STACKS[stack](*memory_pair(CAPACITY_BYTES))
    for number in range(100):
        assert sender.send_nowait(b"%d" % number) == len(b"%d" % number)
        assert receive(receiver) == (b"%d" % number, False)


@pytest.mark.parametrize("stack", STACKS)
def test_a_peer_that_takes_nothing_gets_each_byte_once(stack: str) -> None:
    """What is offered again is not sent again; what is held meanwhile does not grow."""
    inner, peer = memory_pair(0)
    sender, receiver = STACKS[stack](inner, peer)
    message = bytes(range(256)) * 2000
    for _ in range(50):
        assert sender.send_nowait(message) == 0
    held = len(sender._unsent)
    assert 0 < held < 140_000
    inner.outgoing.capacity_bytes = CAPACITY_BYTES
    taken = sender.send_nowait(message)
    assert taken == len(message)
    assert receive(receiver) == (message, False)


@pytest.mark.parametrize("stack", STACKS)
def test_progress_is_told(stack: str) -> None:
    """A peer that takes little at a time is slow, not stuck; the last byte is told at the last."""
    inner, peer = memory_pair(0)
    sender, receiver = STACKS[stack](inner, peer)
    message = random.Random(1).randbytes(100_000)
    assert sender.send_nowait(message) == 0
    view, came, idle = memoryview(message), b"", 0
    while view:
        inner.outgoing.capacity_bytes = len(inner.outgoing) + 5_000
        taken = sender.send_nowait(view)
        idle = 0 if taken else idle + 1
        assert idle < 3
        view = view[taken:]
        came += receive(receiver)[0]
    assert came == message
    assert not sender._unsent


@pytest.mark.parametrize("stack", STACKS)
def test_both_ways_at_once(stack: str) -> None:
    """The directions do not mix."""
    one, other = STACKS[stack](*memory_pair(CAPACITY_BYTES))
    for _ in range(3):
        one.send_nowait(b"from one" * 1000)
        other.send_nowait(b"from other" * 1000)
        assert receive(one) == (b"from other" * 1000, False)
        assert receive(other) == (b"from one" * 1000, False)


@pytest.mark.parametrize("stack", STACKS)
def test_the_end_of_sending_is_the_end_for_the_peer(stack: str) -> None:
    """What was sent before it is read first; the end is told as often as asked."""
    one, other = STACKS[stack](*memory_pair(CAPACITY_BYTES))
    one.send_nowait(b"last")
    one.end_sending()
    one.end_sending()
    assert receive(other) == (b"last", True)
    assert other.receive_nowait(100) == b""


@pytest.mark.parametrize("stack", STACKS)
def test_a_ragged_end_is_an_end(stack: str) -> None:
    """A peer that goes without the layer's own end: what it sent counts, and no error."""
    inner, peer = memory_pair(CAPACITY_BYTES)
    one, other = STACKS[stack](inner, peer)
    one.send_nowait(b"last")
    inner.end_sending()
    assert receive(other) == (b"last", True)


@pytest.mark.parametrize("stack", STACKS)
async def test_whoever_waits_is_woken(stack: str) -> None:
    """Also for what was read from below already, and for the layer's own end."""
    inner, peer = memory_pair(CAPACITY_BYTES)
    one, other = STACKS[stack](inner, peer)
    one.send_nowait(b"x" * 100_000)
    one.end_sending()
    came = b""
    while True:
        await other.wait_readable()
        data = other.receive_nowait(1000)
        if data == b"":
            break
        came += data or b""
    assert came == b"x" * 100_000


@pytest.mark.parametrize("stack", [stack for stack in STACKS if not stack.endswith("snappy")])
async def test_the_end_of_a_layer_wakes_too(stack: str) -> None:
    """A peer may end its stream and keep the connection; snappy has no end of its own."""
    one, other = STACKS[stack](*memory_pair(CAPACITY_BYTES))
    one.send_nowait(b"last")
    one._inner.send_nowait(one._layer.end_stream())
    assert other.receive_nowait(100) == b"last"
    with trio.fail_after(30):
        await other.wait_readable()
    assert other.receive_nowait(100) == b""


async def test_what_was_read_before_comes_first() -> None:
    """It wakes whoever waits, though nothing more arrives from below."""
    inner, _ = memory_pair(CAPACITY_BYTES)
    upgraded = LayeredTransport(inner, DeflateLayer(6), DeflateLayer(6).encode(b"early"))
    with trio.fail_after(30):
        await upgraded.wait_readable()
    assert upgraded.receive_nowait(100) == b"early"


def test_tls_buffers_stay_as_small_as_a_record() -> None:
    """OpenSSL keeps buffers of the size that they once had: none ever gets more than a record."""
    server, client = shaken(SslEngine(server_context(), server_side=True), client_engine())
    sender, receiver = Watched(client), Watched(server)
    there, here = TlsLayer(sender), TlsLayer(receiver)
    plain = b"x" * 1_000_000
    encoded = there.encode(plain)
    received = b""
    for at in range(0, len(encoded), 128 * 1024):
        received += here.decode(encoded[at : at + 128 * 1024], 128 * 1024)
        while here.has_more:
            received += here.decode(b"", 128 * 1024)
    assert received == plain
    assert max(sender.taken) <= RECORD_NBYTES_MAX
    assert max(receiver.fed) <= RECORD_NBYTES_MAX


class Watched:
    """An engine that notes how much goes through its buffers at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.fed: list[int] = []
        self.taken: list[int] = []
        self.handshake, self.read, self.write = engine.handshake, engine.read, engine.write
        self.shutdown, self.info = engine.shutdown, engine.info

    def put_received(self, data: bytes) -> None:
        self.fed.append(len(data))
        self._engine.put_received(data)

    def take_unsent(self) -> bytes:
        data = self._engine.take_unsent()
        self.taken.append(len(data))
        return data
