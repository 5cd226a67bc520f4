"""Decompression bombs: streams that are small on the wire and large inside.

A bomb is a unit that can be sent over and over: for deflate a run that ends in a full flush, for
snappy chunks, which stand for themselves. So 1 GiB is never held here either.
"""

from __future__ import annotations

import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

import snappy
import trio

from tests.fuzz.watch import MIB
from tests.hostile.target import Attack, Target
from tests.processes import split_address
from trionsq.wire import commands

__all__ = ["ATTACKS"]

_UNIT_NBYTES: Final = 4 * 1024 * 1024
_LEVEL: Final = 9
_OK: Final = b"\0\0\0\6\0\0\0\0OK"
_NSQD_CLOSES = (trio.BrokenResourceError, trio.ClosedResourceError)


def _deflated(data: bytes) -> bytes:
    """A run of raw DEFLATE that refers to nothing before it."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)


def _snapped(data: bytes) -> bytes:
    """Chunks, begun by the identifier, which may be repeated."""
    compressed: bytes = snappy.StreamCompressor().add_chunk(data)
    return compressed


_COMPRESS: Final[dict[str, Callable[[bytes], bytes]]] = {"deflate": _deflated, "snappy": _snapped}


@dataclass(frozen=True, slots=True)
class _Filling:
    """What is inside: a beginning, and a unit that goes on."""

    begin: bytes
    unit: bytes


def _one_body() -> _Filling:
    """One message of 1 GiB of zeros."""
    return _Filling(b"PUB bomb\n" + struct.pack(">i", 2**30), bytes(_UNIT_NBYTES))


def _line() -> _Filling:
    """A command that does not end."""
    return _Filling(b"PUB ", b"x" * _UNIT_NBYTES)


def _nops() -> _Filling:
    return _Filling(b"", commands.nop() * (_UNIT_NBYTES // 4))


def _wordy_nops() -> _Filling:
    """Such as are no run, and are acted on one by one."""
    return _Filling(b"", b"NOP x\n" * (_UNIT_NBYTES // 6))


def _publishes() -> _Filling:
    """As many messages as a command may have, where they are dropped: nobody is subscribed."""
    many = commands.publish_many("bomb#ephemeral", [b"x"] * 200_000)
    return _Filling(b"", many * (_UNIT_NBYTES // len(many)))


def _uneven_publishes() -> _Filling:
    """The same with messages of two sizes, which are walked one by one."""
    many = commands.publish_many("bomb#ephemeral", [b"x", b"xy"] * 100_000)
    return _Filling(b"", many * (_UNIT_NBYTES // len(many)))


_FILLINGS: Final[dict[str, Callable[[], _Filling]]] = {
    "zeros as one message": _one_body,
    "a line without end": _line,
    "NOPs": _nops,
    "NOPs with a parameter": _wordy_nops,
    "MPUBs of 200,000 messages": _publishes,
    "MPUBs of two sizes": _uneven_publishes,
}
# nsqd takes them to the end.
_VALID: Final = frozenset(_FILLINGS) - {"zeros as one message", "a line without end"}


async def _bomb(layer: str, tls: bool, filling: str, warm: bool, target: Target) -> str:
    """One connection that inflates to ``target.nbytes``; how much of it nsqd took."""
    begin, unit, unit_nbytes, end = _made(layer, filling)
    if warm:
        # It has been a client like any other for a while.
        begin = _COMPRESS[layer](commands.publish("bomb#ephemeral", b"tick") * 1000) + begin
    wire_nbytes = inflated_nbytes = 0

    async def send() -> None:
        nonlocal wire_nbytes, inflated_nbytes
        with suppress(*_NSQD_CLOSES):
            await stream.send_all(begin)
            while inflated_nbytes < target.nbytes:
                await stream.send_all(unit)
                wire_nbytes += len(unit)
                inflated_nbytes += unit_nbytes
            await stream.send_all(end)

    async with _upgraded(target, layer, tls) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(send)
        with suppress(*_NSQD_CLOSES):
            async for _ in stream:
                pass
        nursery.cancel_scope.cancel()
    if filling in _VALID:
        assert inflated_nbytes >= target.nbytes, "nsqd did not take what is valid"
    return f"sent {inflated_nbytes / MIB:.0f} MiB in {wire_nbytes / MIB:.2f} MiB"


@cache
def _made(layer: str, filling: str) -> tuple[bytes, bytes, int, bytes]:
    """The beginning, the unit and the end, which nsqd answers when it has acted on all before."""
    compress, inside = _COMPRESS[layer], _FILLINGS[filling]()
    begin = compress(inside.begin) if inside.begin else b""
    return begin, compress(inside.unit), len(inside.unit), compress(b"END\n")


@asynccontextmanager
async def _upgraded(target: Target, layer: str, tls: bool) -> AsyncIterator[trio.abc.Stream]:
    """A connection after IDENTIFY; what is sent there must be compressed already."""
    plain = await trio.open_tcp_stream(*split_address(target.nsqd.tcp_address))
    stream: trio.abc.Stream = plain
    async with plain:
        features: dict[str, object] = {"feature_negotiation": True, "heartbeat_interval": -1}
        features |= {layer: True, "tls_v1": tls}
        await plain.send_all(commands.MAGIC_V2 + commands.identify(features))
        head = await _exactly(plain, 4)
        await _exactly(plain, int.from_bytes(head, "big"))
        if tls:
            context = ssl.create_default_context(cafile=target.papers.ca)
            stream = trio.SSLStream(plain, context, server_hostname="127.0.0.1")
            assert await _exactly(stream, len(_OK)) == _OK
        yield stream


async def _exactly(stream: trio.abc.ReceiveStream, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        more = await stream.receive_some(nbytes - len(data))
        assert more, "nsqd ended the connection"
        data += more
    return data


async def _several(count: int, layer: str, filling: str, target: Target) -> str:
    """Bombs at once that together inflate to ``target.nbytes``."""
    told: list[str] = []
    part = Target(target.nsqd, target.papers, target.nbytes // count, target.patient, target.enough)

    async def one() -> None:
        told.append(await _bomb(layer, False, filling, False, part))

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return f"{count} x {told[0]}"


def _attacks() -> list[Attack]:
    every = []
    for layer in _COMPRESS:
        for filling in _FILLINGS:
            for tls in (False, True):
                over = f"{layer} over TLS" if tls else layer
                run = partial(_bomb, layer, tls, filling, tls)
                every.append(Attack(f"{over}: {filling}", run, starves=filling in _VALID))
        run = partial(_several, 8, layer, "NOPs with a parameter")
        every.append(Attack(f"{layer}: NOPs with a parameter, 8 connections", run, starves=True))
    return every


ATTACKS: Final = tuple(_attacks())
