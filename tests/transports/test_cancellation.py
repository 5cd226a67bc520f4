"""Each await of a stream over a transport is cancelled once, and each of a connection by TCP."""

from __future__ import annotations

import os

import pytest
import trio

from tests.cancellation import CancelAt, Scenario, When, run_counted, sweep_awaits
from trionsq.client.handshake import dial_tcp
from trionsq.testing.streams import MemoryStream, MemoryTransport, Pipe
from trionsq.transports.transport import Transport
from trionsq.transports.trio_sockets import TransportStream

CAPACITY_BYTES = 300
DATA = bytes(range(200)) * 10


async def echo(stream: trio.abc.HalfCloseableStream) -> None:
    """Return what comes, until its end; then close."""
    try:
        while data := await stream.receive_some(100):
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass
    await trio.aclose_forcefully(stream)


async def talk(transport: Transport, sock: trio.socket.SocketType) -> None:
    """Send and receive at once, then end."""
    async with TransportStream(transport, sock) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, DATA)
        received = b""
        while len(received) < len(DATA):
            received += await stream.receive_some(50)
        assert received == DATA
        await stream.wait_send_all_might_not_block()
        await stream.send_eof()
        assert await stream.receive_some() == b""


async def in_memory(cancel_at: CancelAt) -> None:
    with trio.socket.socket() as unused:
        up, down = Pipe(CAPACITY_BYTES), Pipe(CAPACITY_BYTES)
        transport = MemoryTransport(down, up)
        async with trio.open_nursery() as peers:
            peers.start_soon(echo, MemoryStream(up, down))
            await run_counted(cancel_at, lambda: talk(transport, unused))
            assert transport.is_closed


async def by_tcp(cancel_at: CancelAt) -> None:
    before = os.listdir("/proc/self/fd")
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    is_complete = False

    async def connect() -> None:
        nonlocal is_complete
        transport = await dial_tcp("127.0.0.1", port, "")
        with trio.socket.socket() as unused:
            await talk(transport, unused)
        is_complete = True

    async with trio.open_nursery() as peers:
        peers.start_soon(trio.serve_listeners, echo, [listener])
        await run_counted(cancel_at, connect)
        assert is_complete or cancel_at.has_fired
        peers.cancel_scope.cancel()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("scenario", [in_memory, by_tcp])
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_stream_cancelled_at_any_await(scenario: Scenario, when: When) -> None:
    """It is closed, and its peer hears of it."""
    sweep_awaits(scenario, when, least=10)
