"""The two times of a broker: monotonic for deadlines, wall clock for what people and disks see."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

__all__ = ["Clock"]


class Clock:
    """Times as the broker sees them; inside a trio run.

    Attributes:
        now_s: monotonic time in seconds (trio's clock, so a `trio.testing.MockClock` rules it).
        now_ns: wall clock time in nanoseconds since the epoch.
    """

    __slots__ = ("now_ns", "now_s")

    def __init__(
        self,
        now_s: Callable[[], float] = trio.current_time,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.now_s = now_s
        self.now_ns = now_ns

    @classmethod
    def from_trio(cls, start_ns: int = 1_700_000_000_000_000_000) -> Clock:
        """Wall clock time that follows trio's clock from ``start_ns`` on, for tests."""
        start_s = trio.current_time()
        return cls(now_ns=lambda: start_ns + int((trio.current_time() - start_s) * 1e9))
