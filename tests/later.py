"""Runs nsqd with a wall clock that is ahead: ``python -m tests.later SECONDS FLAGS...``."""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

__all__ = ["later_command"]


def later_command(ahead: timedelta) -> Sequence[str]:
    """What starts an nsqd whose clock is so much ahead, before any flag."""
    return [sys.executable, "-m", "tests.later", str(int(ahead.total_seconds()))]


def main() -> None:
    """Shift the clock, which nothing of nsqd has looked at yet, and run nsqd."""
    ahead_s = int(sys.argv.pop(1))
    now_s, now_ns = time.time, time.time_ns
    time.time = lambda: now_s() + ahead_s
    time.time_ns = lambda: now_ns() + ahead_s * 1_000_000_000
    runpy.run_module("trionsq.local.nsqd", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
