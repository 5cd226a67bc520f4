"""Real daemons for tests: started on free ports, watched, and stopped again.

``TRIONSQ_TEST_NSQD``, ``TRIONSQ_TEST_NSQLOOKUPD`` and ``TRIONSQ_TEST_NSQADMIN`` name other binaries
that are started instead of ours, for example the originals: a suite that is green against them is
known to ask the right thing.
"""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

import trio

from tests.engines import OPTIONS

OTHER_BINARY_VARIABLE = "TRIONSQ_TEST_NSQD"
OTHER_LOOKUPD_VARIABLE = "TRIONSQ_TEST_NSQLOOKUPD"
OTHER_ADMIN_VARIABLE = "TRIONSQ_TEST_NSQADMIN"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
MAX_LOG_LINES = 300
PORTS = range(12_000, 32_000)
"""Below those that Linux gives to who asks for any (32768 and more)."""
MAX_WORKERS = 16

_LISTENING = re.compile(r"\b(TCP|HTTPS|HTTP): listening on (\S+)")


class NsqdFailedError(AssertionError):
    """The process ended or said nothing of its addresses; the text carries its log."""


def other_binary() -> str | None:
    """The nsqd to be tested in place of ours, or None."""
    return os.environ.get(OTHER_BINARY_VARIABLE) or None


def nsqd_command() -> list[str]:
    """What starts an nsqd, before any flag."""
    other = other_binary()
    return [other] if other else [sys.executable, "-m", "trionsq.local.nsqd"]


def nsqlookupd_command() -> list[str]:
    """What starts an nsqlookupd, before any flag."""
    other = os.environ.get(OTHER_LOOKUPD_VARIABLE)
    return [other] if other else [sys.executable, "-m", "lookupd.cli"]


def other_nsqadmin() -> str | None:
    """The nsqadmin to be tested in place of ours, or None."""
    return os.environ.get(OTHER_ADMIN_VARIABLE) or None


def free_address() -> str:
    """A 127.0.0.1 address for options that must be known beforehand.

    Nobody listens there, and nobody will unless told to: the kernel gives its ports out of another
    range, other workers of pytest-xdist have ports of their own, and none is given twice in a row.
    """
    for port in islice(_PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"
    raise AssertionError("every port is in use")


def _ports() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = range(PORTS.start + worker % MAX_WORKERS, PORTS.stop, MAX_WORKERS)
    # Another run of the tests on this machine begins elsewhere.
    for number in count(os.getpid() * 37):
        yield mine[number % len(mine)]


_PORTS = _ports()


@dataclass(slots=True, eq=False)
class DaemonProcess:
    """A running daemon: its addresses (host:port by listener name) and log so far."""

    process: trio.Process
    addresses: dict[str, str] = field(default_factory=dict)
    log: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LOG_LINES))

    @property
    def tcp_address(self) -> str:
        """Where the TCP protocol is spoken."""
        return self.addresses["TCP"]

    @property
    def http_address(self) -> str:
        """Where plain HTTP is spoken."""
        return self.addresses["HTTP"]

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the log, for a failure's text."""
        return "\n".join(list(self.log)[-lines:])


@dataclass(slots=True, eq=False)
class NsqdProcess(DaemonProcess):
    """A running nsqd, and its data path."""

    data_path: Path = field(kw_only=True)

    @property
    def https_address(self) -> str:
        """Where HTTPS is spoken; KeyError without a certificate."""
        return self.addresses["HTTPS"]


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` as a pair."""
    host, _, port = address.rpartition(":")
    return host, int(port)


@asynccontextmanager
async def running_nsqd(
    data_path: Path,
    flags: Sequence[str] = (),
    *,
    https: bool = False,
    command: Sequence[str] | None = None,
) -> AsyncIterator[NsqdProcess]:
    """An nsqd on free ports of 127.0.0.1, stopped (SIGTERM, then SIGKILL) when left.

    A listener that ``flags`` place themselves stays where they say. With ``https`` the HTTPS
    listener, which needs certificate flags, is waited for too. ``command`` is what starts it, in
    place of `nsqd_command`.

    Raises:
        NsqdFailedError: it ended, or did not tell its addresses within ``START_LIMIT_S``, or
            SIGTERM did not stop it within ``STOP_LIMIT_S``.
    """
    more = {"https-address": "127.0.0.1:0", "data-path": str(data_path)}
    if not other_binary():
        more |= OPTIONS
    process = await _open([*(command or nsqd_command()), *_base_flags(flags, more), *flags])
    nsqd = NsqdProcess(process, data_path=data_path)
    async with _watched(nsqd, {"TCP", "HTTP", "HTTPS"} if https else {"TCP", "HTTP"}):
        yield nsqd


@asynccontextmanager
async def running_nsqlookupd(flags: Sequence[str] = ()) -> AsyncIterator[DaemonProcess]:
    """An nsqlookupd, as `running_nsqd`; raises as that."""
    process = await _open([*nsqlookupd_command(), *_base_flags(flags, {}), *flags])
    lookupd = DaemonProcess(process)
    async with _watched(lookupd, {"TCP", "HTTP"}):
        yield lookupd


@asynccontextmanager
async def running_nsqadmin(flags: Sequence[str]) -> AsyncIterator[DaemonProcess]:
    """An nsqadmin, as `running_nsqd`; raises as that."""
    other = other_nsqadmin()
    command = [other] if other else [sys.executable, "-m", "admin.cli"]
    placed = any(flag.startswith("--http-address=") for flag in flags)
    process = await _open([*command, *([] if placed else ["--http-address=127.0.0.1:0"]), *flags])
    admin = DaemonProcess(process)
    async with _watched(admin, {"HTTP"}):
        yield admin


async def _open(command: Sequence[str]) -> trio.Process:
    return await trio.lowlevel.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@asynccontextmanager
async def _watched(daemon: DaemonProcess, listeners: set[str]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        try:
            await nursery.start(_read_log, daemon, listeners)
            yield
        finally:
            with trio.CancelScope(shield=True):
                stopped = await _stop(daemon.process)
            nursery.cancel_scope.cancel()
    if not stopped:
        raise NsqdFailedError(f"SIGTERM did not stop it in {STOP_LIMIT_S} s:\n{daemon.log_tail()}")


def _base_flags(flags: Sequence[str], more: Mapping[str, str]) -> list[str]:
    placed = {flag.lstrip("-").partition("=")[0] for flag in flags}
    base = {
        "tcp-address": "127.0.0.1:0",
        "http-address": "127.0.0.1:0",
        "broadcast-address": "127.0.0.1",
        **more,
    }
    return [f"--{name}={value}" for name, value in base.items() if name not in placed]


async def _read_log(
    nsqd: DaemonProcess,
    listeners: set[str],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep the log flowing for the process's life; started when every address is known."""
    stderr = nsqd.process.stderr
    assert stderr is not None
    started = False
    rest = b""
    deadline = trio.current_time() + START_LIMIT_S
    with trio.CancelScope(deadline=deadline) as scope:
        async with stderr:
            async for chunk in stderr:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    _note_line(nsqd, line.decode(errors="replace"))
                if not started and listeners <= nsqd.addresses.keys():
                    started = True
                    scope.deadline = math.inf
                    task_status.started()
    if not started:
        why = "said nothing of its addresses in time" if scope.cancelled_caught else "ended"
        log = f"{nsqd.log_tail()}\n{rest.decode(errors='replace')}"
        raise NsqdFailedError(f"{nsqd.process.args!r} {why}:\n{log}")


def _note_line(nsqd: DaemonProcess, line: str) -> None:
    nsqd.log.append(line)
    if listening := _LISTENING.search(line):
        nsqd.addresses[listening[1]] = listening[2]


async def _stop(process: trio.Process) -> bool:
    """End the process; False if it took a SIGKILL."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    with trio.move_on_after(STOP_LIMIT_S):
        await process.wait()
        return True
    process.kill()
    await process.wait()
    return False
