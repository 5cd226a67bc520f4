"""A small real HTTP server that records requests, and answers as a test says."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import h11
import trio


@dataclass(frozen=True)
class Received:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"thanks"


@dataclass(eq=False)
class Receiver:
    """The server.

    Attributes:
        received: all requests, in the order of their ends.
        connections: how many were ever made.
        answer: decides; may wait.
    """

    address: str = ""
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    answer: Callable[[Received], Awaitable[Answer]] | None = None

    def url(self, path: str = "/", scheme: str = "http") -> str:
        """A URL of the server."""
        return f"{scheme}://{self.address}{path}"

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of all requests."""
        return [one.body for one in self.received]


@asynccontextmanager
async def receiver(
    answer: Callable[[Received], Awaitable[Answer]] | None = None,
    *,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Receiver]:
    """Run a server on 127.0.0.1; its connections are cut at the end."""
    server = Receiver(answer=answer)
    async with trio.open_nursery() as nursery:
        (raw,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
        listener: trio.abc.Listener[trio.abc.Stream] = raw
        if tls is not None:
            listener = trio.SSLListener(raw, tls)
        nursery.start_soon(trio.serve_listeners, partial(_serve, server), [listener])
        server.address = f"127.0.0.1:{raw.socket.getsockname()[1]}"
        yield server
        nursery.cancel_scope.cancel()


async def _serve(server: Receiver, stream: trio.abc.Stream) -> None:
    server.connections += 1
    connection = h11.Connection(h11.SERVER)
    with suppress(trio.BrokenResourceError, h11.RemoteProtocolError):
        while (received := await _next(connection, stream)) is not None:
            server.received.append(received)
            answer = await server.answer(received) if server.answer else Answer()
            response = h11.Response(
                status_code=answer.status,
                headers=[("Content-Length", str(len(answer.body))), *answer.headers],
            )
            data = connection.send(response) or b""
            data += connection.send(h11.Data(data=answer.body)) or b""
            data += connection.send(h11.EndOfMessage()) or b""
            await stream.send_all(data)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                break
            connection.start_next_cycle()
    await trio.aclose_forcefully(stream)


async def _next(connection: h11.Connection, stream: trio.abc.Stream) -> Received | None:
    request: h11.Request | None = None
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(65536)))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert request is not None
            headers = {name.decode(): value.decode() for name, value in request.headers}
            return Received(request.method.decode(), request.target.decode(), headers, body)
        else:
            return None
