"""The connection in memory that other tests rely on."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, check_half_closeable_stream, wait_all_tasks_blocked

from trionsq.testing.streams import MemoryStream, Pipe, memory_connection
from trionsq.transports.transport import Transport


async def test_the_clients_end_is_a_trio_stream(autojump_clock: MockClock) -> None:
    """It passes trio's own checks for streams, at both ends."""

    async def two_streams() -> tuple[MemoryStream, MemoryStream]:
        there, back = Pipe(1000), Pipe(1000)
        return MemoryStream(there, back), MemoryStream(back, there)

    async def clogged() -> tuple[MemoryStream, MemoryStream]:
        one, other = await two_streams()
        for stream in (one, other):
            stream.send_nowait(b"x" * 1000)
        return one, other

    await check_half_closeable_stream(two_streams, clogged)


async def test_a_pipe_is_bounded(autojump_clock: MockClock) -> None:
    """A write accepts no more than the capacity; the rest waits for the reader."""
    stream, transport = memory_connection(capacity_bytes=10)
    broker_side: Transport = transport
    assert broker_side.send_nowait(b"0123456789abc") == 10
    assert broker_side.send_nowait(b"abc") == 0
    assert await stream.receive_some(4) == b"0123"
    await transport.wait_writable()
    assert transport.send_nowait(b"abcdef") == 4
    assert len(transport.outgoing) == 10
    with trio.move_on_after(1) as scope:
        await stream.send_all(b"x" * 11)
    assert scope.cancelled_caught
    assert len(transport.incoming) == 10


async def test_waiting_ends_when_there_is_something(autojump_clock: MockClock) -> None:
    """wait_readable wakes for bytes, for the end, and for an error."""
    for act in ("send", "end", "break"):
        stream, transport = memory_connection()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.wait_readable)
            await wait_all_tasks_blocked()
            if act == "send":
                stream.send_nowait(b"x")
            elif act == "end":
                stream.end_sending()
            else:
                transport.incoming.break_with(OSError("broken"))


async def test_one_task_at_a_time_may_wait(autojump_clock: MockClock) -> None:
    """As with a socket, a second task gets BusyResourceError."""
    _, transport = memory_connection()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.wait_readable)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await transport.wait_readable()
        with pytest.raises(RuntimeError, match="while a task waits"):
            transport.close()
        nursery.cancel_scope.cancel()


async def test_a_clean_end_keeps_what_is_under_way() -> None:
    """The peer reads all bytes, then the end."""
    stream, transport = memory_connection()
    transport.send_nowait(b"last words")
    transport.close()
    assert await stream.receive_some() == b"last words"
    assert await stream.receive_some() == b""
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"too late")


@pytest.mark.parametrize("who", ["broker", "client"])
async def test_closing_with_unread_input_resets(who: str) -> None:
    """Bytes on their way to the peer are lost, as they may be with a kernel."""
    stream, transport = memory_connection()
    stream.send_nowait(b"unread")
    transport.send_nowait(b"unread")
    if who == "broker":
        transport.close()
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
    else:
        stream.close()
        with pytest.raises(ConnectionResetError):
            transport.receive_nowait(100)
        with pytest.raises(BrokenPipeError):
            transport.send_nowait(b"x")


async def test_a_stall_holds_everything_back(autojump_clock: MockClock) -> None:
    """Until `resume` nothing arrives, not even the end; each affected call is counted."""
    stream, transport = memory_connection()
    transport.incoming.stall()
    stream.send_nowait(b"x")
    stream.end_sending()
    assert transport.receive_nowait(1) is None
    assert transport.incoming.faults == 1
    with trio.move_on_after(5) as scope:
        await transport.wait_readable()
    assert scope.cancelled_caught
    transport.incoming.resume()
    await transport.wait_readable()
    assert transport.receive_nowait(1) == b"x"
    assert transport.receive_nowait(1) == b""


async def test_a_break_is_felt_at_both_ends() -> None:
    """The broker gets the error itself, the client trio's; each affected call is counted."""
    stream, transport = memory_connection()
    error = TimeoutError("no route")
    transport.outgoing.break_with(error)
    with pytest.raises(TimeoutError) as caught:
        transport.send_nowait(b"x")
    assert caught.value is error
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    assert transport.outgoing.faults == 2
