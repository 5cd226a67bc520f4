"""The tools as real processes, and the state of a broker's channel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.soak import smoke
from trionsq import httpget
from trionsq.client import Config, Consumer
from trionsq.testing import OpenBroker

LIMIT_S = 60.0
PATIENT = Config(dial_timeout_s=LIMIT_S)
"""For clients of the tests: on a busy machine a connection may take more than a second."""
SIGNALS = smoke({"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}, "SIGTERM")
"""Those that end a tool in order."""


@dataclass(frozen=True)
class Ended:
    """The result of a tool."""

    code: int
    out: bytes
    err: str


def command(tool: str, *flags: str) -> list[str]:
    """The command line that starts the tool."""
    return [sys.executable, "-m", f"trionsq.tools.{tool}", *flags]


async def run(tool: str, *flags: str, stdin: bytes = b"") -> Ended:
    """Run the tool to its end."""
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            command(tool, *flags),
            stdin=stdin,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    return Ended(done.returncode, done.stdout, done.stderr.decode())


def run_here(tool: str, flags: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Ended:
    """Run the tool to its end in this process, for short runs."""
    main: Callable[[Sequence[str]], int] = import_module(f"trionsq.tools.{tool}").main
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(flags))
    code = ended.value.code
    assert isinstance(code, int)
    shown = capsys.readouterr()
    return Ended(code, shown.out.encode(), shown.err)


@asynccontextmanager
async def running(
    tool: str, *flags: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.DEVNULL
) -> AsyncIterator[trio.Process]:
    """Run the tool as a process, and kill it at the end if it still runs."""
    process = await trio.lowlevel.open_process(command(tool, *flags), stdin=stdin, stdout=stdout)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


def handles(process: trio.Process, signum: signal.Signals) -> bool:
    """Whether the process has a handler for this signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signum - 1) & 1)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""

    async def holds() -> bool:
        return condition()

    await until_true(holds)


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition about another process holds; there is no event to wait for."""
    with trio.fail_after(LIMIT_S):
        while not await condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def stats(nsqd: OpenBroker, topic: str) -> dict[str, Any]:
    """The topic's part of /stats; empty if there is no such topic."""
    answer = await httpget.get(f"http://{nsqd.http_address}/stats?format=json&topic={topic}")
    found = json.loads(answer.body)["topics"]
    return dict(found[0]) if found else {}


async def channel_stats(nsqd: OpenBroker, topic: str, channel: str) -> dict[str, Any]:
    """The channel's part of /stats."""
    channels = (await stats(nsqd, topic))["channels"]
    return dict(next(one for one in channels if one["channel_name"] == channel))


async def bodies(nsqd: OpenBroker, topic: str, channel: str, count: int) -> list[bytes]:
    """Receive this many messages, in their order of arrival."""
    found: list[bytes] = []
    config = replace(PATIENT, max_in_flight=2500)
    with trio.fail_after(LIMIT_S):
        async with Consumer(
            topic, channel, nsqd_tcp_addresses=[nsqd.tcp_address], config=config
        ) as consumer:
            while len(found) < count:
                batch = await consumer.next_batch()
                found += batch.bodies
                batch.finish()
    return found


def drain(fd: int) -> bytes:
    """Read all bytes in a pipe, without waiting for more."""
    os.set_blocking(fd, False)
    found = b""
    try:
        while data := os.read(fd, 1 << 20):
            found += data
    except BlockingIOError:
        pass
    return found
