"""``python -m benchmarks.dashboard``: nsqadmin in front of a simulated cluster, with viewers.

Prints for each page the time to its first byte and its size, then for each number of viewers the
times of their pages, the CPU and memory of nsqadmin, and the requests to nodes. A viewer does what
a browser does: it listens to /events, and after each tick fetches the live part of its page.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from tests.admin.simulated import size_arguments
from tests.processes import DaemonProcess, running_nsqadmin

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_START_S: Final = 60.0
_LIMIT_S: Final = 120.0
_LOOK_S: Final = 0.1
_PAUSE_S: Final = 3.0
# Of a page: how often it is fetched one after the other.
_TIMES: Final = 9
_PAGES: Final = (
    "/",
    "/topics",
    "/topics?show=channels&sort=-depth",
    "/topics?q=topic-01&size=100",
    "/topics?group=yes",
    "/topics/topic-00001",
    "/topics/topic-00001/channel-00003",
    "/nodes",
    "/nodes/NODE",
    "/clients",
    "/clients?size=100",
    "/search?q=topic-0100",
    "/lookup",
    "/counter",
)
# Pages that are watched, in turn.
_WATCHED: Final = (
    "/",
    "/topics",
    "/topics?show=channels&sort=-depth",
    "/topics/topic-00001",
    "/topics/topic-00002/channel-00005",
    "/nodes",
    "/nodes/NODE",
    "/clients",
)


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer: times are seconds since the request; ``wire`` bytes are those of the body."""

    status: int
    first_byte_s: float
    whole_s: float
    wire: int
    size: int
    body: bytes


class Connection:
    """A browser's connection to nsqadmin, which stays open."""

    def __init__(self, address: str, stream: trio.SocketStream) -> None:
        self._address = address
        self._stream = stream

    async def get(self, path: str, *, live: bool = False) -> Fetched:
        """Fetch a page, or its live part alone."""
        began_s = time.perf_counter()
        await self._stream.send_all(self._request(path, "HX-Request: true\r\n" if live else ""))
        unread = await self._stream.receive_some(65536)
        first_byte_s = time.perf_counter() - began_s
        while b"\r\n\r\n" not in unread:
            unread += await self._more()
        head, _, body = unread.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers["content-length"])
        while len(body) < length:
            body += await self._more()
        whole_s = time.perf_counter() - began_s
        shown = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        status = int(first.split()[1])
        return Fetched(status, first_byte_s, whole_s, length, len(shown), shown)

    async def ticks(self) -> AsyncIterator[None]:
        """Listen to /events."""
        await self._stream.send_all(self._request("/events"))
        unread = b""
        while True:
            unread = unread[-20:] + await self._more()
            while b"event: tick" in unread:
                unread = unread.partition(b"event: tick")[2]
                yield

    def _request(self, path: str, more: str = "") -> bytes:
        lines = f"GET {path} HTTP/1.1\r\nHost: {self._address}\r\nAccept-Encoding: gzip\r\n"
        return f"{lines}Accept: text/html\r\n{more}\r\n".encode()

    async def _more(self) -> bytes:
        received = await self._stream.receive_some(65536)
        if not received:
            raise EOFError("nsqadmin closed the connection")
        return bytes(received)


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Connection]:
    """A new connection to nsqadmin."""
    host, _, port = address.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        yield Connection(address, stream)


@asynccontextmanager
async def _simulated(flags: Sequence[str]) -> AsyncIterator[str]:
    """The simulated cluster; yields the address of its nsqlookupd."""
    command = [sys.executable, "-m", "tests.admin.simulated", *flags]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        text = ""
        with trio.fail_after(_START_S):
            while "lookupd " not in text or "\n" not in text.partition("lookupd ")[2]:
                received = await process.stdout.receive_some()
                if not received:
                    raise SystemExit(f"the simulated cluster has ended: {text}")
                text += received.decode()
        yield text.partition("lookupd ")[2].split()[0]
    finally:
        process.terminate()
        with trio.CancelScope(shield=True):
            await process.wait()


@dataclass(slots=True)
class Used:
    """What nsqadmin and the nodes have done until now."""

    at_s: float
    cpu_s: float
    requests: list[int]

    @classmethod
    async def read(cls, pid: int, lookupd: str) -> Used:
        """Read it from /proc and from the simulated cluster."""
        async with connected(lookupd) as cluster:
            counted = json.loads((await cluster.get("/simulated")).body)
        return cls(time.perf_counter(), _cpu_s(pid), counted["by_node"])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


@dataclass(slots=True)
class Watched:
    """What viewers saw. ``paused_s``: the machine stood still for so long; this does not count."""

    first_byte_s: list[float] = field(default_factory=list)
    bad: int = 0
    paused_s: float = 0.0

    async def note_pauses(self) -> None:
        """Look for gaps in the time, for ever."""
        while True:
            began_s = time.perf_counter()
            await trio.sleep(_LOOK_S)
            if (gap_s := time.perf_counter() - began_s) > _PAUSE_S:
                self.paused_s += gap_s


async def _watch(address: str, path: str, seen: Watched) -> None:
    """One viewer. A tick that comes while its page is under way is left out, as in a browser."""
    async with connected(address) as events, connected(address) as pages:
        answer = await pages.get(path)
        seen.bad += answer.status != 200
        latest, wake = 0, trio.Event()

        async def listen() -> None:
            nonlocal latest, wake
            async for _ in events.ticks():
                latest += 1
                wake.set()
                wake = trio.Event()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            fetched = 0
            while True:
                if latest == fetched:
                    await wake.wait()
                fetched, paused_s = latest, seen.paused_s
                answer = await pages.get(path, live=True)
                seen.bad += answer.status != 200
                if seen.paused_s == paused_s:
                    seen.first_byte_s.append(answer.first_byte_s)


def _ms(values: Sequence[float], share: float) -> str:
    ordered = sorted(values) or [float("nan")]
    return f"{1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]:.0f}"


async def _print_pages(pid: int, address: str, node: str) -> None:
    print("| page | first byte, first time | median | longest | CPU | on the wire | HTML |")
    print("|---|---|---|---|---|---|---|")
    async with connected(address) as browser:
        for path in _PAGES:
            began_s = _cpu_s(pid)
            answers = [await browser.get(path.replace("NODE", node)) for _ in range(_TIMES)]
            cpu_ms = 1000 * (_cpu_s(pid) - began_s) / _TIMES
            last = answers[-1]
            assert {each.status for each in answers} == {200}, path
            times = [each.first_byte_s for each in answers[1:]]
            print(
                f"| `{path}` | {1000 * answers[0].first_byte_s:.0f} ms | {_ms(times, 0.5)} ms"
                f" | {_ms(times, 1)} ms | {cpu_ms:.0f} ms"
                f" | {last.wire / 1000:.1f} kB | {last.size / 1000:.0f} kB |",
                flush=True,
            )


async def _print_viewers(
    admin: DaemonProcess, lookupd: str, node: str, numbers: Sequence[int], seconds: float
) -> None:
    print(f"\nfor {seconds:g} s each:\n")
    print("| viewers | pages/s | first byte p50 | p99 | longest | CPU of a core | resident"
          " | requests a minute to a node: fewest | most |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    pid = admin.process.pid
    for number in numbers:
        seen = Watched()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(seen.note_pauses)
            for viewer in range(number):
                path = _WATCHED[viewer % len(_WATCHED)].replace("NODE", node)
                nursery.start_soon(_watch, admin.http_address, path, seen)
            await trio.sleep(10)  # they have opened their pages
            seen.first_byte_s.clear()
            seen.paused_s = 0.0
            before = await Used.read(pid, lookupd)
            while time.perf_counter() - before.at_s - seen.paused_s < seconds:  # noqa: ASYNC110 - until pauses are made up for
                await trio.sleep(_LOOK_S)
            after = await Used.read(pid, lookupd)
            nursery.cancel_scope.cancel()
        elapsed_s = after.at_s - before.at_s - seen.paused_s
        both = zip(before.requests, after.requests, strict=True)
        asked = [60 * (later - earlier) / elapsed_s for earlier, later in both]
        assert not seen.bad, f"{seen.bad} answers were no pages"
        print(
            f"| {number} | {len(seen.first_byte_s) / elapsed_s:.1f}"
            f" | {_ms(seen.first_byte_s, 0.5)} ms | {_ms(seen.first_byte_s, 0.99)} ms"
            f" | {_ms(seen.first_byte_s, 1)} ms"
            f" | {(after.cpu_s - before.cpu_s) / elapsed_s:.1%} | {_resident_mb(pid):.0f} MB"
            f" | {min(asked):.0f} | {max(asked):.0f} |",
            flush=True,
        )


async def _main(flags: Sequence[str], given: dict[str, Any]) -> None:
    async with _simulated(flags) as lookupd:
        options = f"--lookupd-http-address={lookupd}", f"--poll-interval={given['interval']}"
        async with running_nsqadmin(options) as admin:
            address = admin.http_address
            async with connected(address) as browser:
                with trio.fail_after(_LIMIT_S):
                    body = b""
                    while b"Nodes" not in body:
                        body = (await browser.get("/nodes")).body
                nodes = json.loads((await browser.get("/api/nodes")).body)["nodes"]
            node = f"{nodes[0]['broadcast_address']}:{nodes[0]['http_port']}"
            await _print_pages(admin.process.pid, address, node)
            numbers = [int(number) for number in given["viewers"].split(",")]
            await _print_viewers(admin, lookupd, node, numbers, given["seconds"])


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    size_arguments(parser)
    parser.set_defaults(nodes=8, clients=10_000)
    parser.add_argument("--interval", default="5s", help="--poll-interval of nsqadmin")
    parser.add_argument("--viewers", default="1,20,200", help="numbers of viewers")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each number")
    given = vars(parser.parse_args())
    own = {name: given.pop(name) for name in ("interval", "viewers", "seconds")}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    trio.run(_main, flags, own)
    return 0


if __name__ == "__main__":
    sys.exit(main())
