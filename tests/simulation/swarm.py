"""Many days at once: seeds in several processes, and what they add up to."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation.day import Outcome, live
from tests.simulation.plan import FAULTS, draw_plan

__all__ = ["Swarm", "live_seeds"]

# A process is replaced after this many days, so that no leak adds up.
_DAYS_PER_PROCESS = 400


@dataclass
class Swarm:
    """The sum of many days.

    Attributes:
        days: how many.
        bad: those with a broken promise.
        simulated_s, steps, messages, deliveries, counts: sums, see `Outcome`.
    """

    days: int = 0
    bad: list[Outcome] = field(default_factory=list)
    simulated_s: float = 0.0
    steps: int = 0
    messages: int = 0
    deliveries: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Add a day."""
        self.days += 1
        self.simulated_s += outcome.simulated_s
        self.steps += outcome.steps
        self.messages += outcome.messages
        self.deliveries += outcome.deliveries
        self.counts.update(outcome.counts)
        if outcome.violations:
            self.bad.append(outcome)

    @property
    def missing_faults(self) -> set[str]:
        """Kinds of faults that never happened."""
        return {kind for kind in FAULTS if not self.counts[f"fault: {kind}"]}

    def table(self) -> str:
        """The sums as text."""
        lines = [
            f"{self.days} days, {len(self.bad)} of them bad; "
            f"{self.simulated_s / 3600:.1f} hours of simulated time, {self.steps} steps, "
            f"{self.messages} messages acknowledged, {self.deliveries} deliveries",
            *(f"{count:9}  {name}" for name, count in sorted(self.counts.items())),
        ]
        lines += [f"{0:9}  fault: {kind}" for kind in sorted(self.missing_faults)]
        return "\n".join(lines)


def live_seed(seed: int) -> Outcome:
    """Live the day of a seed."""
    return live(draw_plan(seed))


def live_seeds(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    """Live days in this process (``jobs`` of 1) or in several; in any order."""
    if jobs == 1:
        yield from map(live_seed, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=_DAYS_PER_PROCESS) as pool:
        yield from pool.imap_unordered(live_seed, seeds)
