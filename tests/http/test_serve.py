"""HTTP on real sockets: connections, their limits, and their end (trionsq.http.serve)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from trionsq.broker.broker import Broker
from trionsq.daemon.listener import open_sockets
from trionsq.http.serve import serve_http
from trionsq.web import framework, limits
from trionsq.web.framework import HttpConnection

LIMIT_S = 60.0
"""Nothing here takes so long unless it hangs."""

PING = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"


@dataclass
class Server:
    """Where it listens, what ends it, and the clients that tests opened."""

    address: str | tuple[str, int]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)
    clients: ExitStack = field(default_factory=ExitStack)

    async def connect(self) -> trio.SocketStream:
        family = socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET
        sock = self.clients.enter_context(trio.socket.socket(family))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await sock.connect(self.address)
        return trio.SocketStream(sock)


@asynccontextmanager
async def serving(broker: Broker, address: str = "127.0.0.1:0") -> AsyncIterator[Server]:
    """The HTTP API on a real socket."""
    (sock,) = await open_sockets(address)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server = Server(sock.getsockname())

    async def run(task_status: trio.TaskStatus[None]) -> None:
        with server.scope:
            await serve_http(broker, sock, task_status=task_status)
        server.ended.set()

    with trio.fail_after(LIMIT_S), server.clients:
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            yield server
            server.scope.cancel()


async def to_the_end(stream: trio.SocketStream) -> bytes:
    """All that comes until the server closes; a reset is an error."""
    return b"".join([data async for data in stream])


async def one_answer(stream: trio.SocketStream) -> tuple[bytes, bytes]:
    """Head and body of the next answer on a connection that stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await stream.receive_some(65536)
        assert piece, data
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    (length,) = (line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    while len(rest) < int(length.partition(b":")[2]):
        rest += await stream.receive_some(65536)
    return head, rest


def descriptors() -> list[str]:
    """What this process has open."""
    return os.listdir("/dev/fd")


def post(target: str, content: bytes, more: str = "") -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    return head.encode() + content


async def test_a_connection_is_kept(broker: Broker) -> None:
    """Many requests on one connection, also sent ahead of their answers."""
    async with serving(broker) as server:
        stream = await server.connect()
        for _ in range(3):
            await stream.send_all(post("/pub?topic=t", b"hi"))
            head, answer = await one_answer(stream)
            assert (head[:12], answer) == (b"HTTP/1.1 200", b"OK")
        await stream.send_all(
            PING * 2 + PING.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        )
        assert (await to_the_end(stream)).count(b"HTTP/1.1 200") == 3
        assert broker.topics["t"].core.depth == 3


async def test_headers_are_those_of_nsqd(broker: Broker) -> None:
    """Beside them only Date and Content-Length: nothing that names the server."""
    async with serving(broker) as server:
        stream = await server.connect()
        await stream.send_all(PING)
        head, _ = await one_answer(stream)
        names = {line.partition(b":")[0] for line in head.split(b"\r\n")[1:]}
        assert names == {b"content-type", b"content-length", b"date"}


async def test_a_unix_socket_is_served_and_removed(broker: Broker, tmp_path: Path) -> None:
    """Its file goes with the listener."""
    path = str(tmp_path / "http.sock")
    async with serving(broker, path) as server:
        stream = await server.connect()
        await stream.send_all(PING)
        assert (await one_answer(stream))[1] == b"OK"
    assert os.listdir(tmp_path) == []


async def test_a_chunked_message_is_one_message(broker: Broker) -> None:
    """Whatever its chunks."""
    async with serving(broker) as server:
        stream = await server.connect()
        head = b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        for piece in (head, b"2\r\nab\r\n", b"3\r\ncde\r\n", b"0\r\n\r\n"):
            await stream.send_all(piece)
        assert (await one_answer(stream))[1] == b"OK"
        assert broker.topics["t"].core.message_bytes == 5


@pytest.mark.parametrize(
    ("target", "code"), [("/pub", b"MSG_TOO_BIG"), ("/mpub", b"BODY_TOO_BIG"), ("/nope", b"FOUND")]
)
async def test_an_answer_reaches_a_client_that_still_sends(
    broker: Broker, target: str, code: bytes
) -> None:
    """The refusal comes before the body does, and no reset takes it away."""
    async with serving(broker) as server:
        stream = await server.connect()
        await stream.send_all(post(target, bytes(1_000_000)))
        answer = await to_the_end(stream)
        assert answer.endswith(b'"}')
        assert code in answer


async def test_an_endless_body_is_not_kept(broker: Broker) -> None:
    """A chunked body is refused at its limit, not at its end."""
    async with serving(broker) as server:
        stream = await server.connect()
        await stream.send_all(
            b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"65\r\n" + bytes(101) + b"\r\n"
        )
        assert b"MSG_TOO_BIG" in await to_the_end(stream)


async def test_a_client_may_close_its_half_first(broker: Broker) -> None:
    """It still gets its answer."""
    async with serving(broker) as server:
        stream = await server.connect()
        await stream.send_all(post("/pub?topic=t", b"x"))
        await stream.send_eof()
        assert (await to_the_end(stream)).endswith(b"OK")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"garbage\r\n\r\n",
        b"GET /ping HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_not_http_is_refused(broker: Broker, request_bytes: bytes) -> None:
    """With a 4xx and the end of the connection, and no word in the log."""
    async with serving(broker) as server:
        stream = await server.connect()
        await stream.send_all(request_bytes)
        assert (await to_the_end(stream)).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("wish", [b"websocket", b"h2c"])
async def test_upgrades_are_passed_over(broker: Broker, wish: bytes) -> None:
    """The request is answered as if it had no such wish."""
    async with serving(broker) as server:
        stream = await server.connect()
        upgrade = b"\r\nConnection: upgrade\r\nUpgrade: " + wish + b"\r\n\r\n"
        await stream.send_all(PING.replace(b"\r\n\r\n", upgrade))
        head, answer = await one_answer(stream)
        assert (head[:12], answer) == (b"HTTP/1.1 200", b"OK")


@pytest.mark.parametrize("begun", [b"", b"GET /ping HT", PING])
async def test_a_silent_connection_is_closed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """Before a request, amid its head, or after its answer."""
    monkeypatch.setattr(limits, "KEEP_ALIVE_S", 0.1)
    async with serving(broker) as server:
        stream = await server.connect()
        await stream.send_all(begun)
        await to_the_end(stream)


async def test_a_sender_that_stalls_is_given_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amid a body it gets an error, and nothing is queued."""
    monkeypatch.setattr(limits, "STALL_S", 0.1)
    async with serving(broker) as server:
        stream = await server.connect()
        await stream.send_all(post("/pub?topic=t", b"12345")[:-1])
        assert b"INTERNAL_ERROR" in await to_the_end(stream)
        assert broker.topics == {}


async def ask_and_read_nothing(broker: Broker, server: Server) -> None:
    """Ask for a document that the sockets cannot hold, and wait until they are full."""
    for number in range(1000):
        broker.topic(f"topic_number_{number}")
    stream = await server.connect()
    await stream.send_all(b"GET /stats?format=json HTTP/1.1\r\nHost: a\r\n\r\n")
    await trio.testing.wait_all_tasks_blocked(0.02)


async def test_a_reader_that_stalls_is_given_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is closed after a bounded time, though it never was idle."""
    ended = trio.Event()

    class Watched(HttpConnection):
        async def run(self) -> None:
            await super().run()
            ended.set()

    monkeypatch.setattr(framework, "HttpConnection", Watched)
    monkeypatch.setattr(limits, "WRITE_STALL_S", 0.2)
    async with serving(broker) as server:
        await ask_and_read_nothing(broker, server)
        await ended.wait()


async def test_the_end_waits_for_nobody_who_is_idle(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grace is not for connections without a request."""
    monkeypatch.setattr(limits, "GRACE_S", 2 * LIMIT_S)
    async with serving(broker) as server:
        silent, idle = await server.connect(), await server.connect()
        await idle.send_all(PING)
        await one_answer(idle)
        server.scope.cancel()
        assert await to_the_end(silent) == await to_the_end(idle) == b""
        await server.ended.wait()


async def test_the_end_is_prompt(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Stalled and half-sent connections do not hold it beyond the grace, and are no errors."""
    with caplog.at_level(logging.WARNING):
        async with serving(broker) as server:
            idle, sending = await server.connect(), await server.connect()
            await idle.send_all(PING)
            await one_answer(idle)
            await sending.send_all(post("/pub?topic=t", b"12345")[:-1])
            await ask_and_read_nothing(broker, server)
            server.scope.cancel()
            assert await to_the_end(idle) == b""
            await server.ended.wait()
            with pytest.raises(OSError, match="refused"):
                await server.connect()
    assert caplog.records == []


async def test_a_request_under_way_is_answered_at_the_end(broker: Broker) -> None:
    """Its body may still come during the grace."""
    async with serving(broker) as server:
        stream = await server.connect()
        request = post("/mpub?topic=t", b"a\nb")
        await stream.send_all(request[:-1])
        await trio.testing.wait_all_tasks_blocked()
        server.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all(request[-1:])
        assert (await to_the_end(stream)).endswith(b"OK")
    assert broker.topics["t"].core.depth == 2


async def test_closed_connections_leave_nothing(broker: Broker) -> None:
    """A client that goes takes its descriptor along, long before the idle time is over."""
    async with serving(broker) as server:
        before: set[str] = set()
        for _ in range(20):
            stream = await server.connect()
            await stream.send_all(PING)
            await one_answer(stream)
            await stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
            before = before or set(descriptors())  # the poller's own one was made
        assert set(descriptors()) == before


async def test_a_client_that_goes_amid_its_body_is_no_error(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is queued and nothing is logged."""
    with caplog.at_level(logging.WARNING):
        async with serving(broker) as server:
            stream = await server.connect()
            await stream.send_all(post("/pub?topic=t", b"12345")[:-1])
            await trio.testing.wait_all_tasks_blocked()
            await stream.aclose()
    assert broker.topics == {}
    assert caplog.records == []
