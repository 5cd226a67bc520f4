"""What the parts of a running broker share: its clock, its options, the ports it listens on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Final

import trio

from trionsq.broker.options import NsqdOptions
from trionsq.disk import Disk
from trionsq.durations import MILLISECOND_NS
from trionsq.storage.folder import Background, DataFolder
from trionsq.wire.lines import CommandLimits

__all__ = ["Clock", "ListeningPorts", "LiveOptions", "command_limits", "data_folder"]

# Two clocks cannot be read at once.
_JITTER_NS: Final = 10_000_000


class Clock:
    """Times as the broker sees them; inside a trio run.

    Deferred messages have a time of their own: the wall clock, which goes on by the monotonic clock
    where the wall clock is set back. So a delay never becomes longer; as in the original, it ends
    early if the wall clock is set forward, which is what a suspended machine looks like.

    Attributes:
        now_s: monotonic time in seconds (trio's clock, so a `trio.testing.MockClock` rules it).
        now_ns: wall clock time in nanoseconds since the epoch.
    """

    __slots__ = ("_lead_ns", "now_ns", "now_s")

    def __init__(
        self,
        now_s: Callable[[], float] | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.now_s = now_s or trio.lowlevel.current_clock().current_time
        self.now_ns = now_ns
        # The most by which the wall clock was ahead of the monotonic one.
        self._lead_ns: int | None = None

    @classmethod
    def from_trio(cls, start_ns: int = 1_700_000_000_000_000_000) -> Clock:
        """Wall clock time that follows trio's clock from ``start_ns`` on, for tests."""
        start_s = trio.current_time()
        return cls(now_ns=lambda: start_ns + round((trio.current_time() - start_s) * 1e9))

    def follow_wall(self) -> int:
        """Let the time of deferred messages follow the wall clock, if that was set forward.

        Returns by how many nanoseconds.
        """
        # In this order: a pause between the two makes the lead smaller, which does no harm.
        now_ns = self.now_ns()
        lead_ns = now_ns - int(self.now_s() * 1e9)
        if self._lead_ns is None:
            self._lead_ns = lead_ns
        jump_ns = max(0, lead_ns - self._lead_ns)
        self._lead_ns += jump_ns
        return jump_ns

    def deferral_ns(self, now_s: float) -> int:
        """The time of deferred messages at the monotonic time ``now_s``, in nanoseconds."""
        if (lead_ns := self._lead_ns) is None:
            self.follow_wall()
            return self.deferral_ns(now_s)
        return int(now_s * 1e9) + lead_ns

    def due_ns(self, max_delay_ns: int, wall_due_ns: int) -> int:
        """The time of deferred messages at a wall clock time, at most ``max_delay_ns`` from now.

        A clock that was set back while nsqd did not run would let messages wait as much longer.
        """
        latest_ns = self.deferral_ns(self.now_s()) + max_delay_ns
        return min(wall_due_ns + self.set_back_ns(), latest_ns)

    def set_back_ns(self) -> int:
        """How far the wall clock is behind the time of deferred messages; 0 unless it was set
        back."""
        behind_ns = self.deferral_ns(self.now_s()) - self.now_ns()
        return behind_ns if behind_ns > _JITTER_NS else 0


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


def command_limits(options: NsqdOptions) -> CommandLimits:
    """Return the limits of what a client may send."""
    return CommandLimits(
        max_msg_size=options.max_msg_size,
        max_body_size=options.max_body_size,
        max_rdy_count=options.max_rdy_count,
        max_req_timeout_ms=options.max_req_timeout_ns // MILLISECOND_NS,
        max_defer_timeout_ms=options.max_defer_ns // MILLISECOND_NS,
    )


def data_folder(options: NsqdOptions, disk: Disk, background: Background) -> DataFolder:
    """The data path, with the limits of the options."""
    return DataFolder(
        disk,
        background,
        max_file_bytes=options.max_bytes_per_file,
        max_body_bytes=options.max_msg_size,
        sync_every=options.sync_every,
    )
