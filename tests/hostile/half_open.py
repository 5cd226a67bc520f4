"""Slow loris: connections that begin something and do not go on."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from statistics import median
from typing import Final

import trio

from tests.hostile.target import Attack, Target
from tests.processes import NsqdProcess, split_address
from trionsq.wire import commands

__all__ = ["ATTACKS"]

COUNT: Final = 200
_TRICKLE_S: Final = 0.05
_PUB: Final = b"POST /pub?topic=slow%%23ephemeral HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


def _half_hello() -> bytes:
    """The first half of what a TLS client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="nsqd").do_handshake()
    hello = outgoing.read()
    return hello[: len(hello) // 2]


_TLS: Final = commands.MAGIC_V2 + commands.identify({"feature_negotiation": True, "tls_v1": True})
# Where it connects to, what it says, and whether it goes on with a byte now and then.
_KINDS: Final[dict[str, tuple[Callable[[NsqdProcess], str], bytes, bool]]] = {
    "TCP without magic": (lambda nsqd: nsqd.tcp_address, b"", False),
    "TCP, half the magic": (lambda nsqd: nsqd.tcp_address, b"  ", False),
    "TCP, half a command": (lambda nsqd: nsqd.tcp_address, commands.MAGIC_V2 + b"SUB half", False),
    "TCP, half a message": (
        lambda nsqd: nsqd.tcp_address,
        commands.MAGIC_V2 + commands.publish("slow#ephemeral", bytes(100_000))[:50_000],
        False,
    ),
    "TCP, half a TLS handshake": (lambda nsqd: nsqd.tcp_address, _TLS + _half_hello(), False),
    "HTTP, half a head": (lambda nsqd: nsqd.http_address, b"GET /ping HTTP/1.1\r\nHo", False),
    "HTTPS, half a handshake": (lambda nsqd: nsqd.https_address, _half_hello(), False),
    "HTTP, a body that trickles": (lambda nsqd: nsqd.http_address, _PUB % 100_000, True),
}
# nsqd ends these never, as long as a byte comes in time.
_ENDLESS: Final = frozenset({"HTTP, a body that trickles"})


async def _half_open(names: tuple[str, ...], target: Target) -> str:
    """``COUNT`` connections of each kind, until the pair has done enough, or nsqd has ended all."""
    ends_s: dict[str, list[float]] = {name: [] for name in names}
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        began_s = trio.current_time()

        async def watch(name: str, stream: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
            ends_s[name].append(trio.current_time() - began_s)

        for name in names:
            where, said, trickles = _KINDS[name]
            for _ in range(COUNT):
                stream = await trio.open_tcp_stream(*split_address(where(target.nsqd)))
                await stack.enter_async_context(stream)
                await stream.send_all(said)
                nursery.start_soon(watch, name, stream)
                if trickles:
                    nursery.start_soon(_trickle, stream)
        await target.enough.wait()
        told = f"{COUNT * len(names)} connections"
        if target.patient:
            waited_for = [ends for name, ends in ends_s.items() if name not in _ENDLESS]
            while any(len(ends) < COUNT for ends in waited_for):  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.1)
            times = (f"{median(ends):.0f} s" for ends in waited_for)
            told += f", ended by nsqd after {', '.join(times) or 'no time'}"
        nursery.cancel_scope.cancel()
    return told


async def _trickle(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while True:
            await stream.send_all(b"x")
            await trio.sleep(_TRICKLE_S)


ATTACKS: Final = (
    *(Attack(f"half open: {name}", partial(_half_open, (name,))) for name in _KINDS),
    Attack("half open: all kinds at once", partial(_half_open, tuple(_KINDS))),
)
