"""Whole days of a cluster: whatever happens, the promises are kept."""

from __future__ import annotations

from tests.engines import ON_LOG
from tests.simulation.swarm import Swarm, live_seeds
from tests.soak import by_level, more_in_soak

DAYS = by_level(test=9, short=80, full=10_000)
if ON_LOG:
    DAYS = by_level(test=10, short=60, full=10_000)
FIRST = by_level(test=0, short=1_000, full=0)
"""The short soak has days of its own."""
SEEDS = range(FIRST, FIRST + DAYS)


@more_in_soak
def test_every_day_is_good() -> None:
    """No seed breaks a promise; if one does, its command line is in the report."""
    swarm = Swarm()
    for outcome in live_seeds(SEEDS, jobs=1):
        swarm.add(outcome)
        if len(swarm.bad) == 3:
            break
    report = [
        f'make simulate SEEDS=1 ARGS="--first-seed={outcome.seed}": {outcome.violations[:3]}'
        for outcome in swarm.bad
    ]
    assert not report, "\n".join(report)
    # In few days some kinds are missing.
    assert len(swarm.missing_faults) <= (0 if DAYS >= 300 else 400 // DAYS), swarm.missing_faults
    assert swarm.messages > 50 * swarm.days
