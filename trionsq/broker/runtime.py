"""What the parts of a running broker share: its clock, its options, the ports it listens on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import trio

from trionsq.broker.options import NsqdOptions

__all__ = ["Clock", "ListeningPorts", "LiveOptions"]


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


class LiveOptions:
    """The options of a running nsqd: some of them can be changed.

    Attributes:
        current: replaced as a whole by each change.
        observers: called with the new options after each change, in this order.
    """

    def __init__(self, options: NsqdOptions) -> None:
        self.current = options
        self.observers: list[Callable[[NsqdOptions], None]] = []

    def change_log_level(self, level: str) -> None:
        """Log from ``level`` on: debug, info, warn, error or fatal."""
        self._replace(dataclasses.replace(self.current, log_level=level))

    def change_lookupds(self, addresses: tuple[str, ...] | None) -> None:
        """Announce topics and channels to other nsqlookupds; None shows as null in /config."""
        self._replace(dataclasses.replace(self.current, lookupd_tcp_address=addresses))

    def _replace(self, options: NsqdOptions) -> None:
        self.current = options
        for observer in self.observers:
            observer(options)


@dataclasses.dataclass(slots=True)
class ListeningPorts:
    """Where a running nsqd listens: -1 for a unix socket, 0 for none."""

    tcp: int = 0
    http: int = 0
    https: int = 0
