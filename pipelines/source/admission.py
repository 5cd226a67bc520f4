"""How far a batch goes. Decisions only: no clock and no log of its own."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Admission", "AvailableNow"]


@dataclass(slots=True)
class Admission:
    """The limits of a batch.

    Attributes:
        max_messages, min_messages: None: any number.
        max_delay_s: after so long without a batch, ``min_messages`` counts no more.
    """

    max_messages: int | None
    min_messages: int | None
    max_delay_s: float
    _waits_since_s: float | None = None

    def end(self, start: int, available: int, now_s: float, *, may_wait: bool) -> int:
        """Where the batch from ``start`` ends; ``start``: none yet."""
        waiting = available - start
        if waiting <= 0:
            self._waits_since_s = None
            return start
        if may_wait and self.min_messages is not None and waiting < self.min_messages:
            if self._waits_since_s is None:
                self._waits_since_s = now_s
            if now_s - self._waits_since_s < self.max_delay_s:
                return start
        self._waits_since_s = None
        return available if self.max_messages is None else min(available, start + self.max_messages)


@dataclass(slots=True)
class AvailableNow:
    """Finds the end of what is available: nsqd does not tell it.

    It is reached when nothing has come for a time, or when what comes was published later than the
    query began (by nsqd's clock).

    Attributes:
        began_ns: time of the beginning, since the epoch.
        target: the end, once it is known.
    """

    idle_s: float
    began_ns: int
    target: int | None = None
    _end: int = -1
    _idle_since_s: float = 0.0

    def saw(self, end: int, oldest_ns: int) -> None:
        """The newest segment ends there; its oldest message was published then."""
        if self.target is None and oldest_ns > self.began_ns:
            self.target = end

    def is_over(self, end: int, now_s: float, *, is_quiet: bool) -> bool:
        """Asked again and again while nothing new is in the log.

        Args:
            end: of the log.
            now_s: of a clock that does not jump.
            is_quiet: connected, and nothing under way.
        """
        if end != self._end or not is_quiet:
            self._end, self._idle_since_s = end, now_s
        if self.target is None and now_s - self._idle_since_s >= self.idle_s:
            self.target = end
        return self.target is not None
