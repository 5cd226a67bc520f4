"""What a client keeps in memory is bounded, whatever its peer does."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.client.network import ADDRESS, Network, Peer
from trionsq.client import Config, ConnectError, Consumer, NotConnectedError, Producer, connection
from trionsq.client.message import Batch
from trionsq.wire import frames
from trionsq.wire.client import ColumnDecoder, FrameError

BODY = b"x" * 4000
READ_BYTES = 128 * 1024


async def flood(peer: Peer) -> int:
    """Deliver without regard to RDY until the client closes, or a million; how many were sent."""
    burst = frames.message_frame(1, 1, b"0" * 16, BODY) * 50
    sent = 0
    try:
        while sent < 1_000_000:
            await peer.say(burst)
            sent += 50
    except trio.BrokenResourceError:
        pass
    return sent


def queued(consumer: Consumer) -> list[Batch]:
    """What waits for the program."""
    return [batch for batch, _ in consumer._arrivals._batches]


@pytest.mark.parametrize("max_in_flight", [1, 200, 10**9])
async def test_a_peer_that_floods_is_given_up(
    max_in_flight: int,
    autojump_clock: MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A consumer holds at most 4 x RDY + 256 messages and those of one read, also if its
    max_in_flight is huge: RDY is at most what nsqd allows. A line of the log says why the
    connection is closed, and its messages are dropped, however often it comes back."""
    network = Network().held()
    sent: list[int] = []

    async def serve() -> None:
        while True:
            peer = await (await network.peer()).subscribe()
            assert (await peer.line()).startswith(b"RDY ")
            sent.append(await flood(peer))

    nursery.start_soon(serve)
    config = Config(max_in_flight=max_in_flight)
    async with Consumer(
        "t", "c", nsqd_tcp_addresses=[ADDRESS], config=config, dial=network.dial
    ) as consumer:
        await trio.sleep(4)
        assert sum(map(len, queued(consumer))) == 0
        assert consumer.stats().received > 0
        assert consumer.stats().in_flight == 0
    most = 4 * min(max_in_flight, 2500) + 256 + READ_BYTES // len(BODY)
    assert len(sent) > 2
    assert max(sent) < most + 200  # on their way
    assert "messages without an answer, and RDY was" in caplog.text


async def test_what_a_slow_program_gets_again_is_not_too_much(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """A program that is slow gets each message again after its time-out, three times over, and the
    connection is kept."""
    network = Network().held()

    async def serve() -> None:
        peer = await (await network.peer()).subscribe()
        assert await peer.line() == b"RDY 2500"
        for _ in range(4):
            await peer.say(frames.message_frame(1, 1, b"0" * 16, b"x") * 2500)
            await trio.sleep(59)

    nursery.start_soon(serve)
    config = Config(max_in_flight=2500)
    async with Consumer(
        "t", "c", nsqd_tcp_addresses=[ADDRESS], config=config, dial=network.dial
    ) as consumer:
        await trio.sleep(200)
        assert sum(map(len, queued(consumer))) == 10_000
        assert consumer.stats().connections == 1


async def test_a_producer_without_answers_waits(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an nsqd that reads, sends heartbeats and never answers, 65,536 messages are unconfirmed
    at most; then `begin_publish` waits. One answer makes room for one message."""
    assert connection._MAX_REPLIES == 65_536
    monkeypatch.setattr(connection, "_MAX_REPLIES", 1_000)
    network = Network().held()
    begun = 0
    async with Producer(ADDRESS, dial=network.dial) as producer, trio.open_nursery() as nursery:

        async def publish() -> None:
            nonlocal begun
            while True:
                await producer.begin_publish("t", b"x")
                begun += 1
                if begun % 100 == 0:
                    await trio.lowlevel.checkpoint()

        async def read(peer: Peer) -> None:
            while await peer.stream.receive_some():
                pass

        nursery.start_soon(publish)
        peer = await network.peer()
        await peer.identify()
        nursery.start_soon(read, peer)
        await trio.sleep(10)
        assert begun == 1_000
        await peer.say(frames.HEARTBEAT)
        await trio.sleep(10)
        assert begun == 1_000
        await peer.say(frames.OK * 3)
        await trio.sleep(10)
        assert begun == 1_003
        nursery.cancel_scope.cancel()


async def test_publishes_that_wait_for_room_fail_with_the_connection(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a silent nsqd is given up, whoever waits for an answer or for room is told."""
    monkeypatch.setattr(connection, "_MAX_REPLIES", 1_000)
    network = Network().held()
    async with Producer(ADDRESS, dial=network.dial) as producer:
        replies = []
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                replies.extend([await producer.begin_publish("t", b"x") for _ in range(1_000)])
                with pytest.raises((NotConnectedError, ConnectError)):
                    await producer.publish("t", b"too much")

            nursery.start_soon(publish)
            peer = await network.peer()
            await peer.identify()
            while await peer.stream.receive_some():
                pass
        for reply in replies:
            with pytest.raises(NotConnectedError):
                await reply.wait()


def test_a_decoder_keeps_one_frame() -> None:
    """A frame larger than the limit is refused by its size, before any of it is kept; of a frame
    within the limit the decoder keeps what has come, and of whole ones nothing."""
    decoder = ColumnDecoder(1_000_000)
    decoder.feed((1_000_001).to_bytes(4) + bytes(100))
    with pytest.raises(FrameError, match="frame size 1000001 is not within"):
        next(decoder)
    assert decoder.pending == 0
    decoder = ColumnDecoder(1_000_000)
    whole = frames.message_frame(1, 1, b"0" * 16, b"x" * 900_000)
    for at in range(0, len(whole), 1000):
        decoder.feed(whole[at : at + 1000])
        assert decoder.pending <= len(whole)
    assert decoder.pending == 0
    assert len(decoder.pop_columns().ids) == 1
    assert decoder.pop_columns().ids == []
