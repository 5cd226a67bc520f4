"""The writing half of a connection."""

from __future__ import annotations

from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.core.helpers import WALL_NS, MemoryBackend, body_of, message_ids, segment, wall_ns
from trionsq.broker.output import MessagePump, Output
from trionsq.core.channel import ChannelState
from trionsq.testing.streams import memory_connection
from trionsq.transports.turn import Turn
from trionsq.wire.frames import message_frame


async def test_writes_at_once_what_fits() -> None:
    """While the socket takes everything, nothing is kept and nobody needs to wait."""
    stream, transport = memory_connection(capacity_bytes=10)
    output = Output(transport)
    output.write(b"0123456789")
    assert (output.pending, output.blocked_since_s) == (0, None)
    assert await stream.receive_some() == b"0123456789"


async def test_keeps_the_order_of_what_did_not_fit(autojump_clock: MockClock) -> None:
    """What the socket refuses follows later, all in the order of writing."""
    stream, transport = memory_connection(capacity_bytes=4)
    output = Output(transport)
    written = [b"abcdef", b"g", b"hijklmnop"]
    for data in written:
        output.write(data)
    assert output.pending == 16 - 4
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.drain)
        while len(received) < 16:
            received += await stream.receive_some(3)
    assert received == b"".join(written)
    assert (output.pending, output.blocked_since_s) == (0, None)


async def test_an_empty_write_does_not_block_what_follows(autojump_clock: MockClock) -> None:
    """Nothing written behind something pending is nothing: the rest still goes out."""
    stream, transport = memory_connection(capacity_bytes=4)
    output = Output(transport)
    for data in (b"abcdef", b"", b"gh"):
        output.write(data)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.drain)
        assert await stream.receive_some() == b"abcd"
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert output.pending == 0
    assert await stream.receive_some() == b"efgh"


async def test_what_comes_after_the_end_goes_nowhere() -> None:
    """A task that has something to write when the connection ends is no error, nor is it sent."""
    stream, transport = memory_connection(capacity_bytes=10)
    output = Output(transport)
    output.write(b"all")
    output.end_stream()
    assert output.write(b"more")
    assert output.pending == 0
    assert [await stream.receive_some(), await stream.receive_some()] == [b"all", b""]


async def test_an_end_reaches_who_reads_until_the_end(autojump_clock: MockClock) -> None:
    """After the last frame comes the end of the stream, and not only when the time for it is up."""
    stream, transport = memory_connection(capacity_bytes=4)
    output = Output(transport)
    output.write(b"last frame")
    began_s = trio.current_time()
    received = bytearray()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(output.end, transport)
            while data := await stream.receive_some():
                received += data
            await stream.aclose()
    assert received == b"last frame"
    assert trio.current_time() == began_s


async def test_knows_since_when_it_is_blocked(mock_clock: MockClock) -> None:
    """The time counts from the last byte that was taken, not from the first that was refused."""
    stream, transport = memory_connection(capacity_bytes=4)
    output = Output(transport)
    output.write(b"abcdefghijkl")
    start_s = trio.current_time()
    assert output.blocked_since_s == start_s
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.drain)
        await wait_all_tasks_blocked()
        mock_clock.jump(3)
        await stream.receive_some(2)
        await wait_all_tasks_blocked()
        assert output.blocked_since_s == start_s + 3
        assert output.pending == 6
        nursery.cancel_scope.cancel()


async def test_a_cancelled_drain_loses_nothing(autojump_clock: MockClock) -> None:
    """After a cancelled drain the rest is pending, and another drain writes it."""
    stream, transport = memory_connection(capacity_bytes=4)
    output = Output(transport)
    output.write(b"abcdefgh")
    with trio.move_on_after(1) as scope:
        await output.drain()
    assert scope.cancelled_caught
    assert output.pending == 4
    assert await stream.receive_some() == b"abcd"
    await output.drain()
    assert await stream.receive_some() == b"efgh"


async def test_two_tasks_may_drain(autojump_clock: MockClock) -> None:
    """Both siblings of a connection may wait until all is written."""
    stream, transport = memory_connection(capacity_bytes=4)
    output = Output(transport)
    output.write(b"abcdefgh")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.drain)
        nursery.start_soon(output.drain)
        await wait_all_tasks_blocked()
        assert await stream.receive_some() == b"abcd"
        assert await stream.receive_some() == b"efgh"


async def test_whoever_writes_to_a_broken_connection_hears_of_it() -> None:
    """A write that goes out at once raises what the connection broke with."""
    _, transport = memory_connection(capacity_bytes=4)
    output = Output(transport)
    transport.outgoing.break_with(ConnectionResetError("reset"))
    with pytest.raises(ConnectionResetError):
        output.write(b"abcdefgh")
    assert transport.outgoing.faults == 1


async def test_whoever_drains_a_broken_connection_hears_of_it() -> None:
    """So does the drain of what was pending."""
    _, transport = memory_connection(capacity_bytes=4)
    output = Output(transport)
    output.write(b"abcdefgh")
    transport.outgoing.break_with(ConnectionResetError("reset"))
    with pytest.raises(ConnectionResetError):
        await output.drain()
    assert transport.outgoing.faults == 1


async def test_a_message_that_left_before_it_was_written_is_not_written() -> None:
    """The others of its delivery are, with the attempts of this one."""
    stream, transport = memory_connection()
    pump = MessagePump(Output(transport), 10.0, Turn(), print)
    channel = ChannelState("c", 10, MemoryBackend(), Random(1))
    channel.add_subscription(pump.subscription)
    channel.set_ready(pump.subscription, 4, 0.0)
    channel.put(segment(0, 4, attempts=2), 0.0, wall_ns(0.0))
    ids = message_ids(0, 4)
    assert channel.requeue(pump.subscription, ids[1], 1000, 0.0, wall_ns(0.0))
    pump.write_deliveries(await pump.inbox.receive())
    assert await stream.receive_some() == b"".join(
        message_frame(WALL_NS, 3, ids[place], body_of(ids[place])) for place in (0, 2, 3)
    )


async def test_replies_of_a_turn_are_one_write_in_their_order() -> None:
    """With the messages that came meanwhile; too many bytes are written before its end."""
    sent: list[bytes] = []

    class NotedOutput(Output):
        def write(self, data: bytes) -> bool:
            sent.append(data)
            return True

    output, turn = NotedOutput(memory_connection()[1]), Turn()
    pump = MessagePump(output, 10.0, turn, lambda error: None)
    channel = ChannelState("c", 10, MemoryBackend(), Random(1))
    channel.add_subscription(pump.subscription)
    with turn:
        pump.write_soon(b"a")
        pump.write_soon(b"b")
        channel.set_ready(pump.subscription, 4, 0.0)
        channel.put(segment(0, 1), 0.0, wall_ns(0.0))
        pump.write_soon(b"c")
        assert sent == []
    id_ = message_ids(0, 1)[0]
    assert sent == [b"abc" + message_frame(WALL_NS, 1, id_, body_of(id_))]
    with turn:
        pump.write_soon(b"a")
        pump.write_soon(bytes(20_000))
        pump.write_soon(b"b")
        assert sent[1:] == [b"a" + bytes(20_000)]
    pump.write_soon(b"c")
    assert sent[2:] == [b"b", b"c"]
