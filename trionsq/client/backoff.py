"""Backoff: a consumer whose handlers fail receives fewer messages, and tests one now and then.

A state machine without a clock: `Backoff.signal` takes the outcome of a message and returns what
to do; its owner keeps the time.

Spec: client, section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final, TypeAlias

from trionsq.client.config import Config

__all__ = ["Backoff", "Outcome", "Pause", "Phase", "Resume", "Strategy", "strategy_of"]

# 2 to this power is beyond any allowed pause, and its product with the multiplier still a float.
_MAX_EXPONENT: Final = 64


class Outcome(Enum):
    """How the handling of a message ended."""

    SUCCESS = auto()
    FAILURE = auto()
    NEUTRAL = auto()


class Phase(Enum):
    """How many messages the consumer receives."""

    NORMAL = auto()
    """Up to max_in_flight."""
    PAUSED = auto()
    """None, until the pause is over."""
    TESTING = auto()
    """One at a time, from one connection. Its outcome decides."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Send RDY 0 to all, and call `Backoff.pause_over` after ``duration_s`` seconds."""

    duration_s: float


@dataclass(frozen=True, slots=True)
class Resume:
    """Send the normal RDY to all."""


Strategy: TypeAlias = Callable[[int], float]
"""The pause in seconds for a level (1, 2, ...)."""


def strategy_of(config: Config, random: Random) -> Strategy:
    """The strategy that the option backoff_strategy names."""

    def exponential(level: int) -> float:
        return config.backoff_multiplier_s * float(2 ** min(level, _MAX_EXPONENT))

    def full_jitter(level: int) -> float:
        return random.uniform(0, exponential(level))

    return full_jitter if config.backoff_strategy == "full_jitter" else exponential


class Backoff:
    """The state of one consumer.

    Attributes:
        level: the higher, the longer the pause; 0: no backoff.
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
        """Record the outcome of a message and return what to do; None: nothing changes."""
        if self._max_duration_s == 0 or self.phase is Phase.PAUSED:
            return None
        old_level = self.level
        if outcome is Outcome.FAILURE:
            if self._strategy(self.level + 1) <= self._max_duration_s:
                self.level += 1
        elif outcome is Outcome.SUCCESS and self.level:
            self.level -= 1
        if self.level:
            self.phase = Phase.PAUSED
            return Pause(min(self._strategy(self.level), self._max_duration_s))
        if old_level:
            self.phase = Phase.NORMAL
            return Resume()
        return None

    def pause_over(self) -> None:
        """End the pause: from now on one message is tested."""
        if self.phase is Phase.PAUSED:
            self.phase = Phase.TESTING
