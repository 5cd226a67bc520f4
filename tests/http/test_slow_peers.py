"""HTTP peers who send slowly, or nothing, or never read: bounded time and memory, both ways."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.http.ways import Way, way
from trionsq.web import limits

HEAD = b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 90\r\n\r\n"
PING = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
# Waits are looked at now and then, and a peer is listened to for a moment after the last answer.
LATE_S = 3.0

both = pytest.mark.parametrize("fast_path", [True, False], ids=["short", "framework"])


@asynccontextmanager
async def serving(*, fast_path: bool, **options: Any) -> AsyncIterator[Way]:
    """A broker and its HTTP server, which also ends when the test fails."""
    async with way(fast_path=fast_path, **options) as server:
        try:
            yield server
        finally:
            await server.server.end_connections()


async def ok(stream: trio.SocketStream) -> None:
    """Expect an answer that ends in OK, in however many pieces it comes."""
    came = b""
    while not came.endswith(b"OK"):
        piece = await stream.receive_some()
        assert piece, came
        came += piece


async def ended_s(stream: trio.SocketStream) -> tuple[bytes, float]:
    """What came until the server closed, and when that was. A reset is an end."""
    came = b""
    try:
        async for data in stream:
            came += data
    except trio.BrokenResourceError:
        pass
    return came, trio.current_time()


async def trickle(stream: trio.SocketStream, data: bytes, pause_s: float) -> None:
    """Send byte by byte, as long as the server takes it."""
    for place in range(len(data)):
        await trio.sleep(pause_s)
        try:
            await stream.send_all(data[place : place + 1])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


@both
@pytest.mark.parametrize("begun", [b"", b"G", b"GET /pi", PING[:-2], HEAD[:-1]])
async def test_a_head_that_does_not_come_ends_the_connection(
    autojump_clock: MockClock, fast_path: bool, begun: bytes
) -> None:
    """Nothing, or a part of it: the connection is given the idle time, and no answer."""
    async with serving(fast_path=fast_path) as server, server.connect() as stream:
        start_s = trio.current_time()
        await stream.send_all(begun)
        _, end_s = await ended_s(stream)
        assert end_s - start_s <= limits.KEEP_ALIVE_S + LATE_S


@both
async def test_a_head_that_trickles_in_gets_no_more_time(
    autojump_clock: MockClock, fast_path: bool
) -> None:
    """A byte now and then does not hold the connection: the time counts from its begin."""
    head = b"GET /ping HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 1000
    async with serving(fast_path=fast_path) as server, server.connect() as stream:
        start_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle, stream, head, 1.0)
            _, end_s = await ended_s(stream)
            nursery.cancel_scope.cancel()
        assert end_s - start_s <= limits.KEEP_ALIVE_S + LATE_S


@both
async def test_an_idle_connection_ends_after_its_answer(
    autojump_clock: MockClock, fast_path: bool
) -> None:
    """The idle time counts from the last answer."""
    async with serving(fast_path=fast_path) as server, server.connect() as stream:
        for _ in range(5):
            await trio.sleep(limits.KEEP_ALIVE_S / 2)
            await stream.send_all(PING)
            await ok(stream)
        start_s = trio.current_time()
        came, end_s = await ended_s(stream)
        assert came == b""
        assert end_s - start_s <= limits.KEEP_ALIVE_S + LATE_S


@both
@pytest.mark.parametrize("begin", [HEAD, HEAD + b"half", CHUNKED, CHUNKED + b"5\r\nhal"])
async def test_a_body_that_stalls_is_refused(
    autojump_clock: MockClock, fast_path: bool, begin: bytes
) -> None:
    """With an error, after a bounded time, and nothing of it is published."""
    async with serving(fast_path=fast_path) as server, server.connect() as stream:
        start_s = trio.current_time()
        await stream.send_all(begin)
        came, end_s = await ended_s(stream)
        assert b"INTERNAL_ERROR" in came
        assert end_s - start_s <= limits.STALL_S + LATE_S
        assert not any(topic.core.message_count for topic in server.broker.topics.values())


@both
@pytest.mark.parametrize(
    "request_bytes",
    [HEAD + b"x" * 90, CHUNKED + b"5a\r\n" + b"x" * 90 + b"\r\n0\r\n\r\n"],
    ids=["length", "chunked"],
)
async def test_a_slow_sender_is_served(
    autojump_clock: MockClock, fast_path: bool, request_bytes: bytes
) -> None:
    """As long as its body goes on, at one byte a second if need be."""
    async with serving(fast_path=fast_path) as server, server.connect() as stream:
        head, mark, content = request_bytes.partition(b"\r\n\r\n")
        await stream.send_all(head + mark)
        await trickle(stream, content, 1.0)
        await ok(stream)
        assert server.broker.topics["t"].core.message_bytes == 90


# Bodies are to be ended by their pace, not by their size.
ANY_SIZE = {"max_msg_size": 1 << 20, "max_body_size": 1 << 20}
TRICKLE_S = limits.PACE.window_s + LATE_S
LONG = b"Content-Length: 9000\r\n\r\n"


@both
@pytest.mark.parametrize(
    ("begin", "each"),
    [
        (b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\n" + LONG, b"x"),
        (b"POST /mpub?topic=t HTTP/1.1\r\nHost: a\r\n" + LONG, b"\n"),
        (b"PUT /config/log_level HTTP/1.1\r\nHost: a\r\n" + LONG, b"d"),
        (CHUNKED, b"1\r\nx\r\n"),
    ],
    ids=["pub", "mpub", "config", "chunked"],
)
@pytest.mark.parametrize("pause_s", [1.0, limits.STALL_S - 2])
async def test_a_body_that_trickles_is_refused(
    autojump_clock: MockClock, fast_path: bool, begin: bytes, each: bytes, pause_s: float
) -> None:
    """A piece now and then does not hold a connection, and nothing of it is published."""
    async with serving(fast_path=fast_path, **ANY_SIZE) as server, server.connect() as stream:
        start_s = trio.current_time()
        await stream.send_all(begin)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle_pieces, stream, each, pause_s)
            came, end_s = await ended_s(stream)
            nursery.cancel_scope.cancel()
        assert came.startswith(b"HTTP/1.1 500 ")
        assert b"INTERNAL_ERROR" in came
        assert end_s - start_s <= TRICKLE_S
        assert not any(topic.core.message_count for topic in server.broker.topics.values())


async def trickle_pieces(stream: trio.SocketStream, piece: bytes, pause_s: float) -> None:
    """Send ``piece`` again and again, as long as the server takes it."""
    while True:
        try:
            await stream.send_all(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        await trio.sleep(pause_s)


@both
async def test_a_body_that_nobody_reads_does_not_hold_a_connection(
    autojump_clock: MockClock, fast_path: bool
) -> None:
    """The answer ends the connection, and says so, whatever was still to come."""
    begin = b"POST /topic/create?topic=t HTTP/1.1\r\nHost: a\r\n" + LONG
    async with serving(fast_path=fast_path, **ANY_SIZE) as server, server.connect() as stream:
        start_s = trio.current_time()
        await stream.send_all(begin)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle_pieces, stream, b"x", 1.0)
            came, end_s = await ended_s(stream)
            nursery.cancel_scope.cancel()
        assert came.startswith(b"HTTP/1.1 200 ")
        assert came.lower().count(b"\r\nconnection: close\r\n") == 1
        assert end_s - start_s <= LATE_S


@both
async def test_a_large_body_may_take_its_time(autojump_clock: MockClock, fast_path: bool) -> None:
    """At a modem's pace it is served, for longer than any body that trickles."""
    size = 300 * 1024
    begin = b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size
    async with serving(fast_path=fast_path, **ANY_SIZE) as server, server.connect() as stream:
        await stream.send_all(begin)
        start_s = trio.current_time()
        for _ in range(size // 1024):
            await trio.sleep(3.0)
            await stream.send_all(b"x" * 1024)
        await ok(stream)
        assert trio.current_time() - start_s > 3 * TRICKLE_S
        assert server.broker.topics["t"].core.message_bytes == size


async def flood(server: Way, request_bytes: bytes) -> tuple[int, float]:
    """Send one request after the other and read nothing; the bytes taken, and when it ended."""
    sent = 0
    stream = server.connect()
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    async with stream:
        try:
            while True:
                sent += await stream.socket.send(request_bytes * 20)
        except OSError:
            return sent, trio.current_time()


@both
@pytest.mark.parametrize("target", [b"/ping", b"/stats?format=json", b"/nothing"])
async def test_requests_whose_answers_nobody_reads(
    autojump_clock: MockClock, fast_path: bool, target: bytes
) -> None:
    """They are not read beyond what the sockets and one read hold, and the connection ends."""
    async with serving(fast_path=fast_path) as server:
        for number in range(50):
            server.broker.topic(f"topic{number}")
        start_s = trio.current_time()
        request_bytes = b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n"
        sent, end_s = await flood(server, request_bytes)
        assert sent <= 4 * 1024 * 1024
        assert end_s - start_s <= limits.WRITE_STALL_S + LATE_S + 1


@both
async def test_half_open_connections_go_while_others_are_served(
    autojump_clock: MockClock, fast_path: bool
) -> None:
    """200 that say nothing or half a head: a publisher beside them goes on, then all are gone."""
    async with serving(fast_path=fast_path, mem_queue_size=10_000) as server:
        streams = [server.connect() for _ in range(200)]
        for stream in streams[::2]:
            await stream.send_all(HEAD[:20])
        async with server.connect() as publisher:
            for _ in range(100):
                await publisher.send_all(HEAD + b"x" * 90)
                await ok(publisher)
                await trio.sleep(1)
        assert server.broker.topics["t"].core.message_count == 100
        start_s = trio.current_time()
        for stream in streams:
            assert (await ended_s(stream))[1] == start_s
            await stream.aclose()
