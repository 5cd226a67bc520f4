"""``python -m tests.admin.load``: a real nsqadmin in front of a simulated cluster, measured.

Prints the time to the first page, to pages of the JSON API, what a poll takes, the memory after
some polls, and how many requests to nodes were under way at once at most.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import trio

from tests.admin.simulated import size_arguments
from tests.processes import running_nsqadmin

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_START_S = 60.0


@asynccontextmanager
async def _program(module: str, wanted: str, *flags: str) -> AsyncIterator[tuple[int, str]]:
    """A program, its process id and the word after ``wanted`` in what it says."""
    command = [sys.executable, "-m", module, *flags]
    process = await trio.lowlevel.open_process(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said = trio.Event()
    found = list[str]()

    async def read() -> None:
        text = ""
        assert process.stdout is not None
        async for chunk in process.stdout:
            text = (text + chunk.decode(errors="replace"))[-10_000:]
            if not found and wanted in text and "\n" in text.partition(wanted)[2]:
                found.append(text.partition(wanted)[2].split()[0])
                said.set()
        if not found:
            raise SystemExit(f"{module} ended:\n{text}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        try:
            with trio.fail_after(_START_S):
                await said.wait()
            yield process.pid, found[0]
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                await process.wait()
            nursery.cancel_scope.cancel()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError("no VmRSS")


async def _timed(client: httpx2.AsyncClient, path: str, times: int = 3) -> None:
    shown = []
    for _ in range(times):
        began = time.perf_counter()
        answer = await client.get(path)
        shown.append(f"{time.perf_counter() - began:.3f}")
    nbytes = len(answer.content)
    print(f"{path:45} {answer.status_code} {nbytes:>10,} bytes  {' '.join(shown)} s", flush=True)


async def _ticks(client: httpx2.AsyncClient) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("GET", "/events") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


async def _measure(pid: int, address: str, lookupd: str, polls: int) -> None:
    print(f"resident at start {_resident_mb(pid):.0f} MB")
    async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=120) as client:
        await _timed(client, "/")
        durations, last = list[float](), dict[str, Any]()
        began_s, began_cpu_s = 0.0, 0.0
        async for last in _ticks(client):
            if not durations:
                began_s, began_cpu_s = time.perf_counter(), _cpu_s(pid)
            durations.append(last["poll_s"])
            if len(durations) > polls:
                break
        elapsed_s, cpu_s = time.perf_counter() - began_s, _cpu_s(pid) - began_cpu_s
        print(f"last tick: {last}")
        durations.sort()
        print(f"poll: median {durations[len(durations) // 2]:.3f} s, longest {durations[-1]:.3f} s")
        print(f"CPU per poll: {cpu_s / polls:.3f} s ({cpu_s / elapsed_s:.1%} of one core)")
        print(f"resident after {polls} polls: {_resident_mb(pid):.0f} MB")
        counted = (await client.get(f"http://{lookupd}/simulated")).json()
        print(f"requests to nodes under way at most, polls alone: {counted['under_way_max']}")
        node = (await client.get("/api/nodes")).json()["nodes"][-1]
        name = f"{node['broadcast_address']}:{node['http_port']}"
        paths = "/", "/topics/topic-00001", "/nodes", "/api/topics", "/api/topics/topic-00001"
        more = "/api/topics/topic-00001/channel-00003", "/api/nodes", f"/api/nodes/{name}"
        for path in (*paths, *more, "/api/counter"):
            await _timed(client, path)
        print(f"resident after all: {_resident_mb(pid):.0f} MB")
        counted = (await client.get(f"http://{lookupd}/simulated")).json()
        print(
            f"requests to nodes under way at most: {counted['under_way_max']}; {counted['asked']}"
        )


async def _main(flags: list[str], interval: str, polls: int) -> None:
    async with (
        _program("tests.admin.simulated", "lookupd ", *flags) as (_, lookupd),
        running_nsqadmin(
            [f"--lookupd-http-address={lookupd}", f"--poll-interval={interval}"]
        ) as admin,
    ):
        try:
            await _measure(admin.process.pid, admin.http_address, lookupd, polls)
        except httpx2.HTTPError:
            print(admin.log_tail(), file=sys.stderr)
            raise


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tests.admin.load", description=__doc__)
    size_arguments(parser)
    parser.add_argument("--interval", default="5s", help="--poll-interval of nsqadmin")
    parser.add_argument("--polls", type=int, default=10, help="that are waited for")
    given = vars(parser.parse_args())
    interval, polls = given.pop("interval"), given.pop("polls")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    trio.run(_main, flags, interval, polls)
    return 0


if __name__ == "__main__":
    sys.exit(main())
