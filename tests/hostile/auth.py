"""Auth servers that hang, lie or die, while many clients come at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final
from urllib.parse import quote

import trio

from tests.drill.connection import ConnectionEndedError, NsqConnection
from tests.hostile.target import PAIRS_SECRET, Attack, Target
from tests.secured import EVERYTHING
from trionsq.wire import commands
from trionsq.wire.client import ErrorFrame

__all__ = ["ATTACKS"]

CLIENTS: Final = 200
_HUGE_NBYTES: Final = 10 * 1024 * 1024
_PIECE_NBYTES: Final = 64 * 1024
_REQUEST_LIMIT: Final = "--http-client-request-timeout=2s"

Answer = Callable[[trio.SocketStream], Awaitable[None]]


def _http(body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, more, len(body), body)


def _granted(*entries: object, ttl: object = 3600) -> bytes:
    return json.dumps({"ttl": ttl, "authorizations": list(entries)}).encode()


def _entry(*topics: str) -> list[dict[str, object]]:
    return [{"topic": t, "channels": [".*"], "permissions": ["publish"]} for t in topics]


async def _hang(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def _die(stream: trio.SocketStream) -> None:
    whole = _http(_granted(EVERYTHING))
    await stream.send_all(whole[: len(whole) // 2])


async def _slowly(stream: trio.SocketStream) -> None:
    for byte in _http(_granted(EVERYTHING)) * 100:
        await stream.send_all(bytes([byte]))
        await trio.sleep(0.1)


async def _huge(stream: trio.SocketStream) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % _HUGE_NBYTES)
    for _ in range(_HUGE_NBYTES // _PIECE_NBYTES):
        await stream.send_all(b" " * _PIECE_NBYTES)


def _says(data: bytes) -> Answer:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(data)

    return answer


_NESTED: Final = b'{"ttl":1,"authorizations":' + b"[" * 1_000_000
_OBJECTS: Final = b'{"ttl":60,"authorizations":[' + b"{}," * 340_000 + b"{}]}"
_CATASTROPHIC: Final = ("^(a+)+$", "^(a|aa)+$", "^(.*a){20}$", "^((a{1,20}){1,20})$")
_BIG: Final = [f"^x{number}[a-z]{{1,40}}$" for number in range(300)]
_REFUSED: Final[dict[str, Answer]] = {
    "is well and refuses, to compare": _says(_http(b"", b"403 Forbidden")),
    "hangs": _hang,
    "dies within its answer": _die,
    "answers byte by byte": _slowly,
    "answers 10 MB": _huge,
    "answers no JSON": _says(_http(b"{nonsense" * 50_000)),
    "answers a million brackets": _says(_http(_NESTED)),
    "answers 340,000 empty objects": _says(_http(_OBJECTS)),
    "answers wrong types": _says(_http(_granted({"topic": 1, "channels": "x"}, ttl="60"))),
    "redirects to itself": _says(_http(b"", b"302 Found", b"Location: /auth\r\n")),
    "is no HTTP server": _says(b"\0\xff" * 100_000),
    "grants a pattern that is none": _says(_http(_granted(*_entry("(((")))),
    "grants 5,000 patterns": _says(_http(_granted(*_entry(*map(str, range(5000)))))),
}
_GRANTED: Final[dict[str, Answer]] = {
    "grants catastrophic patterns": _says(_http(_granted(*_entry(*_CATASTROPHIC)))),
    "grants 300 large patterns": _says(_http(_granted(*_entry(*_BIG)))),
}


@asynccontextmanager
async def _lying(answer: Answer) -> AsyncIterator[Sequence[str]]:
    """A server that is honest to the pair only."""

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with stream:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += await stream.receive_some() or b"\r\n\r\n"
                if quote(PAIRS_SECRET).replace("%20", "+").encode() in request:
                    await stream.send_all(_http(_granted(EVERYTHING)))
                else:
                    await answer(stream)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=1024)
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        yield (f"--auth-http-address=127.0.0.1:{port}", _REQUEST_LIMIT)
        nursery.cancel_scope.cancel()


async def _authenticate(expected: str, target: Target) -> str:
    """All at once; each must be refused, at AUTH or, if that succeeds, at what it does next."""
    told: Counter[str] = Counter()

    async def one() -> None:
        try:
            async with await NsqConnection.open(target.nsqd.tcp_address) as connection:
                # The topic that keeps a backtracking matcher busy for ever.
                publish = commands.publish("a" * 50 + "-" + "x", b"x")
                await connection.send(commands.auth("guess") + publish)
                frames = await connection.frames()
                while not isinstance(frames[-1], ErrorFrame):
                    frames = await connection.frames()
                told[frames[-1].code] += 1
                # All of them are connected until the last is answered.
                await answered.wait()
        except ConnectionEndedError as error:
            told[str(error)] += 1
        if told.total() == CLIENTS:
            answered.set()

    answered = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(one)
        while told.total() < CLIENTS:  # noqa: ASYNC110 - counted by all
            await trio.sleep(0.02)
        answered.set()
    # On a busy machine some wait too long for their turn. Nobody is let in.
    assert told.keys() <= {expected, "E_AUTH_FAILED"}, told
    return ", ".join(f"{count} clients {code}" for code, count in told.items())


def _attacks() -> list[Attack]:
    every = []
    for answers, expected in ((_REFUSED, "E_AUTH_FAILED"), (_GRANTED, "E_UNAUTHORIZED")):
        for name, answer in answers.items():
            run = partial(_authenticate, expected)
            every.append(Attack(f"auth server {name}", run, partial(_lying, answer)))
    return every


ATTACKS: Final = tuple(_attacks())
