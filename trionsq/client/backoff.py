"""Backoff: a consumer that fails takes fewer messages, and tries one now and then.

A state machine without a clock of its own: `Backoff.signal` is told the outcome of a message and
says what is to be done; whoever owns it keeps the time.

Spec: client, section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import TypeAlias

from trionsq.client.config import Config

__all__ = ["Backoff", "Outcome", "Pause", "Phase", "Resume", "Strategy", "strategy_of"]


class Outcome(Enum):
    """How the handling of a message ended."""

    SUCCESS = auto()
    FAILURE = auto()
    NEUTRAL = auto()


class Phase(Enum):
    """What a consumer does."""

    NORMAL = auto()
    """Takes max_in_flight messages."""
    PAUSED = auto()
    """Takes none, until `Backoff.until_s`."""
    TESTING = auto()
    """Takes one message at a time, from one connection; its outcome decides."""


@dataclass(frozen=True, slots=True)
class Pause:
    """RDY 0 to all, and call `Backoff.pause_over` after ``duration_s`` seconds."""

    duration_s: float


@dataclass(frozen=True, slots=True)
class Resume:
    """The normal RDY to all."""


Strategy: TypeAlias = Callable[[int], float]
"""The pause, in seconds, of a level (1, 2, ...)."""


def strategy_of(config: Config, random: Random) -> Strategy:
    """The strategy that ``backoff_strategy`` names."""

    # A level that doubles beyond any duration is cut off, or floats overflow.
    def exponential(level: int) -> float:
        return config.backoff_multiplier_s * float(2 ** min(level, 64))

    def full_jitter(level: int) -> float:
        return random.uniform(0, exponential(level))

    return full_jitter if config.backoff_strategy == "full_jitter" else exponential


class Backoff:
    """The state of one consumer.

    Attributes:
        level: 0 is none.
        phase: see `Phase`.
    """

    def __init__(self, strategy: Strategy, max_duration_s: float) -> None:
        """`max_duration_s` 0 switches backoff off."""
        self.level = 0
        self.phase = Phase.NORMAL
        self._strategy = strategy
        self._max_duration_s = max_duration_s

    def __repr__(self) -> str:
        return f"<Backoff {self.phase.name} level={self.level}>"

    def signal(self, outcome: Outcome) -> Pause | Resume | None:
        """Take note of the outcome of a message; what is to be done about it."""
        if self._max_duration_s == 0 or self.phase is Phase.PAUSED:
            return None
        was = self.level
        if outcome is Outcome.FAILURE:
            if self._strategy(self.level + 1) <= self._max_duration_s:
                self.level += 1
        elif outcome is Outcome.SUCCESS and self.level:
            self.level -= 1
        if self.level:
            self.phase = Phase.PAUSED
            return Pause(min(self._strategy(self.level), self._max_duration_s))
        if was:
            self.phase = Phase.NORMAL
            return Resume()
        return None

    def pause_over(self) -> None:
        """The pause has lasted: from now on one message is tried."""
        if self.phase is Phase.PAUSED:
            self.phase = Phase.TESTING
