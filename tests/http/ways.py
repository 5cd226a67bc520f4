"""The same bytes sent to both ways, short and through the framework, with what came back.

Each has a broker of its own. Connections are socket pairs; trio's clock is a mock one that leaps,
so nothing waits for a time limit.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

import trio
from trio.testing import MockClock

from trionsq.broker.broker import Broker
from trionsq.http.serve import HttpServer
from trionsq.testing.memory import nsqd_in_memory

__all__ = ["LIMITS", "Outcome", "Way", "answers_of", "both_ways", "cut", "run", "way"]

P = ParamSpec("P")
T = TypeVar("T")

LIMITS: dict[str, Any] = {"max_msg_size": 100, "max_body_size": 1000, "mem_queue_size": 1000}
_DATE = re.compile(rb"date: [^\r]+\r\n")
_ANSWER = re.compile(rb"HTTP/1\.1 [0-9]{3} [A-Z][A-Za-z -]*\r\n")


@dataclass
class Outcome:
    """What came back, and what the broker has afterwards.

    Attributes:
        answers: all bytes up to the end of the connection, without dates.
        topics: number of messages and bytes, by topic.
    """

    answers: bytes
    topics: dict[str, tuple[int, int]]


class Way:
    """A server, and the means to talk to it."""

    def __init__(
        self, broker: Broker, server: HttpServer, connections: trio.Nursery, *, by_tcp: bool = False
    ) -> None:
        """``by_tcp``: connections are made to a loopback address."""
        self._by_tcp = by_tcp
        self.broker = broker
        self.server = server
        self._connections = connections

    def connect(self) -> trio.SocketStream:
        """A new connection."""
        ours, theirs = loopback_pair() if self._by_tcp else socket.socketpair()
        self._connections.start_soon(self.server.serve, theirs)
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    async def exchange(self, pieces: Iterable[bytes]) -> Outcome:
        """Send the pieces one by one on a new connection, half close it, and read to the end."""
        stream = self.connect()
        async with stream:
            try:
                for piece in pieces:
                    await stream.send_all(piece)
                    await trio.testing.wait_all_tasks_blocked()
                await stream.send_eof()
            except trio.BrokenResourceError:
                pass  # refused before all was sent
            came = b"".join([data async for data in stream])
        await trio.testing.wait_all_tasks_blocked()
        topics = {
            name: (topic.core.message_count, topic.core.message_bytes)
            for name, topic in sorted(self.broker.topics.items())
        }
        return Outcome(_DATE.sub(b"", came), topics)


def loopback_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection to 127.0.0.1, that which was accepted last."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        return ours, listening.accept()[0]


@asynccontextmanager
async def way(*, fast_path: bool, by_tcp: bool = False, **options: Any) -> AsyncIterator[Way]:
    """A broker and its HTTP server."""
    async with nsqd_in_memory(**{**LIMITS, **options}) as broker, trio.open_nursery() as nursery:
        server = HttpServer(broker, fast_path=fast_path)
        connections = await nursery.start(server.hold_connections)
        try:
            yield Way(broker, server, connections, by_tcp=by_tcp)
        finally:
            # A test that failed must not wait for connections that nobody ends.
            with trio.CancelScope(shield=True):
                await server.end_connections()


async def _both_ways(
    conversations: Sequence[Sequence[bytes]], by_tcp: bool
) -> tuple[Outcome, Outcome]:
    outcomes = []
    for fast_path in (True, False):
        async with way(fast_path=fast_path, by_tcp=by_tcp) as server:
            for pieces in conversations:
                outcome = await server.exchange(pieces)
        outcomes.append(outcome)
    short, framework = outcomes
    return short, framework


def both_ways(*conversations: Sequence[bytes], by_tcp: bool = False) -> tuple[Outcome, Outcome]:
    """The outcome of the last conversation: on the fast path, and through the framework.

    ``by_tcp``: on connections to a loopback address.
    """
    return run(_both_ways, conversations, by_tcp)


def run(function: Callable[P, Awaitable[T]], *args: P.args, **_: P.kwargs) -> T:
    """`trio.run` with a clock that leaps."""
    return trio.run(function, *args, clock=MockClock(autojump_threshold=0))


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """``data`` cut at these places, which are taken modulo its length."""
    ends = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(ends)]


def answers_of(came: bytes) -> list[bytes]:
    """The answers one by one."""
    starts = [found.start() for found in _ANSWER.finditer(came)]
    return [came[start:end] for start, end in pairwise([*starts, len(came)])]
