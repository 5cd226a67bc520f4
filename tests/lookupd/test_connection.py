"""A session on a stream (lookupd.daemon): slow, silent and vanishing peers."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair

from lookupd import daemon
from lookupd.registry import Registry
from lookupd.session import MAGIC, Session
from tests.lookupd.support import IDENTITY, frames, identify

PEER = "127.0.0.1:50001"
DAY_S = 86_400.0


@pytest.fixture
def registry() -> Registry:
    return Registry(10**18, 10**18)


async def serve(stream: trio.abc.HalfCloseableStream, registry: Registry) -> None:
    """A connection's life."""
    session = Session(registry, PEER, IDENTITY)
    await daemon.serve_session(stream, session, lambda: 0)


async def all_answers(stream: trio.abc.ReceiveStream) -> list[bytes]:
    """What comes until the connection is closed."""
    return frames(b"".join([bytes(data) async for data in stream]))


async def test_a_silent_peer_is_kept(
    registry: Registry, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """After the magic there is no read time-out, not even amid a command."""
    ours, theirs = memory_stream_pair()
    nursery.start_soon(serve, theirs, registry)
    await ours.send_all(MAGIC + b"PI")
    await trio.sleep(DAY_S)
    await ours.send_all(b"NG\n")
    assert frames(bytes(await ours.receive_some())) == [b"OK"]
    await ours.aclose()


async def test_half_open_connections_go_while_others_are_served(
    registry: Registry, autojump_clock: MockClock
) -> None:
    """200 that never send the whole magic, some dripping it, are closed in a minute; nsqds stay."""
    async with trio.open_nursery() as nursery:
        nsqd, theirs = memory_stream_pair()
        nursery.start_soon(serve, theirs, registry)
        await nsqd.send_all(MAGIC + identify())
        await nsqd.receive_some()
        streams = []
        for _ in range(200):
            ours, theirs = memory_stream_pair()
            nursery.start_soon(serve, theirs, registry)
            streams.append(ours)
        for place in range(3):
            for ours in streams[place::2]:
                await ours.send_all(MAGIC[place : place + 1])
            await trio.sleep(19)
            await nsqd.send_all(b"PING\n")
            assert frames(bytes(await nsqd.receive_some())) == [b"OK"]
        for ours in streams:
            assert await ours.receive_some() == b""
        assert trio.current_time() == daemon.MAGIC_S
        assert len(list(registry.active_producers(0))) == 1
        await nsqd.aclose()


async def test_a_peer_that_takes_no_answers_is_given_up(
    registry: Registry, autojump_clock: MockClock
) -> None:
    """After a bounded time its connection is closed and its producer is gone."""
    ours, theirs = lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, theirs, registry)
        await ours.send_all(MAGIC)
        await ours.send_all(identify())
        await trio.testing.wait_all_tasks_blocked()
        assert len(list(registry.active_producers(0))) == 1
    assert trio.current_time() == daemon.WRITE_STALL_S
    assert list(registry.active_producers(0)) == []


async def test_the_last_answer_is_not_lost(registry: Registry, autojump_clock: MockClock) -> None:
    """After a fatal error what still comes is read for a while, then the connection is closed."""
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, theirs, registry)
        await ours.send_all(MAGIC + b"NOPE\n")
        await ours.send_all(b"PING\n" * 1000)
        assert await all_answers(ours) == [b"E_INVALID invalid command NOPE"]
        assert trio.current_time() == 0, "the end is sent at once"
    assert trio.current_time() == daemon.LINGER_S


async def test_a_half_closed_connection_gets_its_answers(registry: Registry) -> None:
    """EOF ends it after what was asked before."""
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, theirs, registry)
        await ours.send_all(MAGIC + b"PING\nIDENTIFY\n\x00")
        await ours.send_eof()
        assert await all_answers(ours) == [
            b"OK",
            b"E_BAD_BODY IDENTIFY failed to read body size",
        ]
        await ours.aclose()


async def test_what_a_command_leaves_void_is_swept_at_once(
    registry: Registry, nursery: trio.Nursery
) -> None:
    """Not only when the connection ends, which may be in months."""
    ours, theirs = memory_stream_pair()
    nursery.start_soon(serve, theirs, registry)
    await ours.send_all(MAGIC + identify())
    await ours.receive_some()
    names = registry.names
    await ours.send_all(b"REGISTER t#ephemeral c\n")
    await ours.receive_some()
    assert registry.names > names
    await ours.send_all(b"UNREGISTER t#ephemeral\n")
    await ours.receive_some()
    assert not registry._sweeps
    await ours.aclose()


async def test_a_reset_is_no_failure(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that vanishes is gone from the database, and the log has no trace of it."""
    ours, theirs = memory_stream_pair()
    with caplog.at_level(logging.WARNING, "trionsq"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, theirs, registry)
            await ours.send_all(MAGIC + identify())
            await ours.receive_some()
            await trio.testing.wait_all_tasks_blocked()
            assert len(list(registry.active_producers(0))) == 1
            await ours.aclose()
    assert list(registry.active_producers(0)) == []
    assert not caplog.records


@pytest.mark.parametrize("sent", [b"", MAGIC, MAGIC + identify(), MAGIC + b"NOPE\n"])
async def test_cancellation_anywhere_leaves_nothing(registry: Registry, sent: bytes) -> None:
    """Waiting to read, to be read, or lingering: the stream is closed, the producer gone."""
    for ours, theirs in (lockstep_stream_pair(), memory_stream_pair()):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, theirs, registry)
            if sent:
                await ours.send_all(sent)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert list(registry.active_producers(0)) == []
        with pytest.raises(trio.ClosedResourceError):
            await theirs.send_all(b"x")
