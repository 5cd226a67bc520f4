"""When a client gets its heartbeat, and when it has been silent, or stuck, for too long.

A client is looked at a few times in each of its intervals, so silence is noticed up to an eighth
of the interval late. Time is an argument. Spec: tcp-protocol, section 14.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["Finding", "Heartbeats"]

# Looks at a client in each heartbeat interval.
_LOOKS: Final = 8
_NEVER_S: Final = float("inf")


class Finding(Enum):
    """What a look at a client finds."""

    FINE = "nothing"
    DUE = "a heartbeat is due"
    SILENT = "no command for two heartbeat intervals"
    STUCK = "took no data for a heartbeat interval"


class Heartbeats:
    """The times of one client, all monotonic and in seconds.

    Attributes:
        next_look_s: when `look` is to be called.
    """

    __slots__ = ("_commands_seen", "_last_command_s", "_next_s", "next_look_s")

    def __init__(self, now_s: float) -> None:
        self._commands_seen = 0
        self._last_command_s = now_s
        self._next_s = self.next_look_s = now_s

    def restart(self, interval_s: float, now_s: float) -> None:
        """Count the interval from now on."""
        self._next_s = now_s + interval_s
        self.next_look_s = now_s

    def stop(self) -> None:
        """Nothing is to be looked at, until `restart`."""
        self.next_look_s = _NEVER_S

    def look(
        self,
        interval_s: float,
        now_s: float,
        *,
        commands: int,
        is_read: bool,
        blocked_since_s: float | None,
    ) -> Finding:
        """What is to be done now.

        Args:
            interval_s: of the client.
            now_s: the time.
            commands: how many it has sent.
            is_read: whether what it sends is read, so that its silence says something.
            blocked_since_s: since when it has taken no data, None if there is none for it.
        """
        if commands != self._commands_seen or not is_read:
            self._commands_seen = commands
            self._last_command_s = now_s
        finding = Finding.FINE
        if now_s - self._last_command_s >= 2 * interval_s:
            finding = Finding.SILENT
        elif blocked_since_s is not None and now_s - blocked_since_s > interval_s:
            finding = Finding.STUCK
        elif now_s >= self._next_s:
            finding = Finding.DUE
            self._next_s = max(now_s, self._next_s + interval_s)
        self.next_look_s = min(
            self._next_s,
            self._last_command_s + 2 * interval_s,
            now_s + interval_s / _LOOKS,
        )
        return finding
