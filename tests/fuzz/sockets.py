"""Nonsense over unix sockets to a real nsqd process: TCP's protocol and HTTP."""

from __future__ import annotations

import re
import ssl
import tempfile
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

import snappy
import trio

from tests.drill.connection import HttpConnection
from tests.fuzz.http_cases import LOGGED, http_case
from tests.fuzz.mutate import cut, mutated
from tests.fuzz.parser import FuzzError
from tests.fuzz.steady import TOPIC, SteadyPair, Talk
from tests.fuzz.tcp_cases import tcp_case
from tests.fuzz.watch import MIB, bounded_growth, without_groups
from tests.processes import NsqdProcess, running_nsqd
from tests.secured import make_papers
from trionsq.wire import commands

# So many connections are open at any time.
_TOGETHER: Final = 50
_CLEAN_EVERY: Final = 400
_GROWTH_NBYTES_MAX: Final = 150 * MIB
# A connection that is answered, or closed, later than this counts as hanging.
_ANSWER_LIMIT_S: Final = 30.0
_TRACE: Final = re.compile(r"Traceback|client\(\S*\) - failed$|HTTP: .* failed$|FATAL|CRITICAL")
_CODE: Final = re.compile(rb"\bE_[A-Z_]+")
_FLAGS: Final = (
    "--mem-queue-size=100",
    "--max-msg-size=100000",
    "--max-body-size=400000",
    "--log-level=info",
)


@asynccontextmanager
async def _nsqd(folder: Path, kind: str) -> AsyncIterator[tuple[NsqdProcess, SteadyPair]]:
    """A process whose listener for ``kind`` is a unix socket, with a steady pair beside it.

    Afterwards: the pair got everything, memory is bounded, the log has no trace.
    """
    flags = [*_FLAGS, f"--tcp-address={folder}/tcp.sock"]
    if kind == "http":
        flags.append(f"--http-address={folder}/http.sock")
    if kind == "upgraded":
        flags += [f"--https-address={folder}/https.sock", *make_papers(folder).nsqd_flags[:2]]
    async with running_nsqd(folder, flags) as nsqd:
        nsqd.log = deque(nsqd.log)  # all of it
        async with (
            Talk.on_socket(nsqd.tcp_address) as producer,
            Talk.on_socket(nsqd.tcp_address) as consumer,
            trio.open_nursery() as nursery,
        ):
            pair = SteadyPair(producer, consumer)
            await nursery.start(pair.run)
            assert nsqd.process.pid is not None
            with bounded_growth(_GROWTH_NBYTES_MAX, nsqd.process.pid):
                yield nsqd, pair
            rounds = pair.rounds
            with trio.fail_after(_ANSWER_LIMIT_S):
                while pair.rounds < rounds + 3:  # noqa: ASYNC110 - nobody tells
                    await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
    assert nsqd.process.returncode == 0
    traces = [line for line in nsqd.log if _TRACE.search(line)]
    assert not traces, traces[:5]


async def run_cases(
    count: int, one: Callable[[int], Awaitable[None]], tidy: Callable[[], Awaitable[None]]
) -> None:
    """Call ``one`` with each number, some at a time, and ``tidy`` now and then."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await one(number)
            if number % _CLEAN_EVERY == 0:
                await tidy()

    async with trio.open_nursery() as nursery:
        for _ in range(_TOGETHER):
            nursery.start_soon(worker)


async def _tcp_connection(path: str, seed: int, number: int) -> str:
    """One case of TCP; the code of the first error frame, or what there was instead."""
    random, data = tcp_case(seed, number)
    stream = await trio.open_unix_socket(path)
    async with stream:
        await _speak(random, data, stream)
        way = random.random()
        if way < 0.3:
            return "closed"
        # An error frame ends the connection; else the end of what is said does.
        found = _CODE.search(await _to_the_end(stream))
        return found[0].decode() if found else "no error"


def _hello() -> bytes:
    """What a TLS client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            incoming, outgoing, server_hostname="x"
        ).do_handshake()
    return outgoing.read()


def _encoded(layer: str, data: bytes) -> bytes:
    """As a client sends it that has agreed on ``layer``."""
    if layer == "snappy":
        compressed: bytes = snappy.StreamCompressor().add_chunk(data)
        return compressed
    if layer == "deflate":
        compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)
    return _hello() + data


async def _upgraded_connection(path: str, seed: int, number: int) -> str:
    """One case of TCP after an upgrade: commands in it, or what is no such stream."""
    random, data = tcp_case(seed, number)
    layer = random.choice(("snappy", "deflate", "tls_v1"))
    said = _encoded(layer, data[len(commands.MAGIC_V2) :])
    if random.random() < 0.5:
        said = mutated(random, said)
    identify = commands.identify({"feature_negotiation": True, layer: True})
    stream = await trio.open_unix_socket(path)
    async with stream:
        await stream.send_all(commands.MAGIC_V2 + identify)
        await stream.receive_some()
        await _speak(random, said, stream)
        if random.random() < 0.3:
            return f"{layer}, closed"
        await _to_the_end(stream)
        return layer


async def http_connection(path: str, seed: int, number: int) -> str:
    """One case of HTTP; the status of the first answer, or what there was instead.

    Raises:
        AssertionError: there was something else than an answer.
        trio.TooSlowError: nothing for very long.
    """
    random, data = http_case(seed, number)
    stream = await trio.open_unix_socket(path)
    async with stream:
        await _speak(random, data, stream)
        if random.random() < 0.2:
            return "closed"
        answer = await _to_the_end(stream)
        assert not answer or answer.startswith(b"HTTP/1."), answer[:100]
        return answer[9:12].decode() or "nothing"


_CONNECTIONS: Final[dict[str, Callable[[str, int, int], Awaitable[str]]]] = {
    "tcp": _tcp_connection,
    "upgraded": _upgraded_connection,
    "http": http_connection,
}


async def _speak(random: Random, data: bytes, stream: trio.SocketStream) -> None:
    with trio.move_on_after(_ANSWER_LIMIT_S) as scope:
        for piece in cut(random, data):
            try:
                await stream.send_all(piece)
            except trio.BrokenResourceError:
                return
            if random.random() < 0.5:
                await trio.lowlevel.checkpoint()
    assert not scope.cancelled_caught or len(data) > 10_000, "it does not read"


async def _to_the_end(stream: trio.SocketStream) -> bytes:
    answer = b""
    try:
        await stream.send_eof()
        with trio.fail_after(_ANSWER_LIMIT_S):
            async for some in stream:
                answer += some
    except trio.BrokenResourceError:
        pass
    return answer


async def _clean(nsqd: NsqdProcess) -> None:
    """Delete the topics that were made, or their messages would be the growth."""
    stream = (
        await trio.open_unix_socket(nsqd.http_address)
        if nsqd.http_address.startswith("/")
        else await trio.open_tcp_stream(*_split(nsqd.http_address))
    )
    async with HttpConnection(stream) as connection:
        status, text = await connection.request("GET", "/stats?include_clients=0&include_mem=0")
        assert status == 200
        for line in text.decode().splitlines():
            name = line.partition("[")[2].partition("]")[0].strip()
            if (
                line.lstrip().startswith("[")
                and ":" not in name
                and name not in (TOPIC, LOGGED, "")
            ):
                path = f"/topic/delete?topic={name.replace('#', '%23')}"
                await connection.request("POST", path)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def _run(kind: str, count: int, seed: int, folder: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    async with _nsqd(folder, kind) as (nsqd, pair):

        async def one(number: int) -> None:
            try:
                address = nsqd.http_address if kind == "http" else nsqd.tcp_address
                counts[await _CONNECTIONS[kind](address, seed, number)] += 1
            except Exception as error:
                raise FuzzError(f"{kind}, seed {seed}, case {number}: {error!r}") from error

        async def tidy() -> None:
            await _clean(nsqd)

        await run_cases(count, one, tidy)
        counts["rounds of the pair"] = pair.rounds
    return counts


def fuzz_process(kind: str, count: int, seed: int) -> Counter[str]:
    """Run ``count`` connections of "tcp", "upgraded" or "http" against a process.

    Raises:
        FuzzError: with the seed and the number of the case.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder, without_groups():
        return trio.run(_run, kind, count, seed, Path(folder))
