"""Connections that only read, for the tests of the poller."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Final, TypeAlias

import trio

from trionsq.transports.polled import Input, Step, last_turn, next_turn
from trionsq.transports.poller import Poller
from trionsq.transports.transport import Transport
from trionsq.transports.trio_sockets import SocketTransport

LIMIT_S: Final = 60.0
READ_BYTES: Final = 1_000

WaitAt: TypeAlias = "Callable[[bytes], Awaitable[bool] | None]"


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection, without small delays."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer, listener.accept()[0]


class Reader:
    """A connection that notes what comes; ``wait_at`` says after which reads it has to wait."""

    def __init__(
        self,
        wait_at: WaitAt = lambda data: None,
        pair: tuple[socket.socket, socket.socket] | None = None,
    ) -> None:
        self.peer, ours = pair or tcp_pair()
        self.peer.setblocking(False)
        self.transport: Transport = SocketTransport(ours)
        self.received = b""
        self.readers: set[trio.lowlevel.Task] = set()
        self.has_ended = False
        self.error: Exception | None = None
        self.on_read: Callable[[], None] = lambda: None
        self._wait_at = wait_at

    def advance(self) -> Step:
        data = self.transport.receive_nowait(READ_BYTES)
        if data is None:
            return Input.NOTHING
        self.readers.add(trio.lowlevel.current_task())
        self.on_read()
        if not data:
            self.has_ended = True
            return last_turn()
        self.received += data
        if (step := self._wait_at(data)) is not None:
            return step
        return Input.HANDLED if len(data) < READ_BYTES else next_turn()

    async def serve(self, poller: Poller) -> None:
        try:
            await poller.serve(self)
        except Exception as error:
            self.error = error

    def close(self) -> None:
        self.peer.close()
        self.transport.close()


def opened(
    closing: ExitStack,
    wait_at: WaitAt = lambda data: None,
    pair: tuple[socket.socket, socket.socket] | None = None,
) -> Reader:
    reader = Reader(wait_at, pair)
    closing.callback(reader.close)
    return reader


def have_all(readers: list[Reader], count: int) -> bool:
    return all(len(reader.received) == count for reader in readers)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT_S):
        while not condition():
            await trio.lowlevel.checkpoint()
