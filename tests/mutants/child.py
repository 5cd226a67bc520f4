"""A process for each change: it ends at the first failure, and a hang ends it."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Outcome", "Result", "Tell", "run_in_child", "watch"]

IDLE_S: Final = 60.0
"""A test that says nothing for so long hangs; less where it is known how long it takes."""
TOTAL_S: Final = 150.0
_MEMORY_BYTES: Final = 6 << 30
_FILE_BYTES: Final = 1 << 30
"""A changed loop may write or allocate for ever."""

Outcome = Literal["found", "hang", "survived", "unfinished", "listed"]
Tell = Callable[[str], None]
IdleOf = Callable[[str], float]


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes:
        outcome: see `Outcome`; ``unfinished`` if the time was up before all tests had run.
        by: the test that failed or hung.
        tests: how many began.
        seconds: that it took.
    """

    outcome: Outcome
    by: str
    tests: int
    seconds: float


def run_in_child(work: Callable[[Tell], None], total_s: float, idle_of: IdleOf) -> Result:
    """Fork, call ``work`` there, and wait for what it tells.

    ``work`` tells ``test NAME`` before each test, and ``failed NAME`` at the first failure.
    ``total_s`` is its limit, ``idle_of`` returns that of a test.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgrp()  # no session: in a new one, Linux forgets how nice this one is
            os.close(read_end)
            _lower_limit(resource.RLIMIT_AS, _MEMORY_BYTES)
            _lower_limit(resource.RLIMIT_FSIZE, _FILE_BYTES)
            work(lambda line: _write(write_end, line))
            _write(write_end, "end")
        except BaseException as error:
            _write(write_end, f"failed {type(error).__name__}")
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        return watch(read_end, lambda: _kill(pid), total_s, idle_of)
    finally:
        os.close(read_end)
        _kill(pid)
        os.waitpid(pid, 0)


def watch(
    read_end: int,
    kill: Callable[[], None],
    total_s: float,
    idle_of: IdleOf = lambda test: IDLE_S,
) -> Result:
    """Read the lines of a child until it ends or must be ended."""
    began_s = time.monotonic()
    test, tests, rest = "", 0, b""

    def result(outcome: Outcome, by: str = "") -> Result:
        return Result(outcome, by, tests, round(time.monotonic() - began_s, 2))

    while True:
        left_s, idle_s = began_s + total_s - time.monotonic(), idle_of(test)
        readable, _, _ = select.select([read_end], [], [], max(0.0, min(idle_s, left_s)))
        if not readable:
            kill()
            return result("hang" if left_s > idle_s else "unfinished", test)
        data = os.read(read_end, 65_536)
        if not data:
            return result("found", f"{test} (the process ended)")
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            word, _, name = line.decode().partition(" ")
            match word:
                case "test":
                    test, tests = name, tests + 1
                case "failed":
                    return result("found", name)
                case "end":
                    return result("survived")


def _write(write_end: int, line: str) -> None:
    os.write(write_end, f"{line}\n".encode())


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _lower_limit(which: int, limit: int) -> None:
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (limit, hard))
