"""Lives many days of a simulated cluster, and says which were bad.

python -m tests.simulation --seeds 10000
python -m tests.simulation --first-seed 4711 --seeds 1 --trace trace.txt
python -m tests.simulation --first-seed 4711 --shrink plan.json
python -m tests.simulation --plan plan.json
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.simulation.day import Outcome, live
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.shrink import shrink
from tests.simulation.swarm import Swarm, live_seeds

# Bad days that are told about; then it is time to look into one.
_MAX_BAD = 20


def main() -> int:
    """Return the exit code: 0 if all days were good."""
    options = _options().parse_args()
    if options.plan or options.trace or options.shrink:
        plan = (
            Plan.from_json(Path(options.plan).read_bytes())
            if options.plan
            else draw_plan(options.first_seed)
        )
        return _one_day(plan, options)
    swarm, began_s = Swarm(), time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for outcome in live_seeds(seeds, options.jobs):
        swarm.add(outcome)
        if outcome.violations:
            _tell(outcome)
        if options.twice and live(draw_plan(outcome.seed)).trace_hash != outcome.trace_hash:
            outcome.violations.append("another trace the second time")
            swarm.bad.append(outcome)
            _tell(outcome)
        if len(swarm.bad) >= _MAX_BAD:
            break
        if sys.stderr.isatty():
            print(f"\r{swarm.days} days", end="", file=sys.stderr)
    print(swarm.table())
    print(f"{time.monotonic() - began_s:.0f} s with {options.jobs} processes")
    return bool(swarm.bad)


def _tell(outcome: Outcome) -> None:
    print(f"seed {outcome.seed} is bad: {'; '.join(outcome.violations[:3])}")
    print(f'    make simulate SEEDS=1 ARGS="--first-seed={outcome.seed}"', flush=True)


def _one_day(plan: Plan, options: argparse.Namespace) -> int:
    if options.shrink:
        smaller, days = shrink(plan)
        Path(options.shrink).write_bytes(smaller.to_json())
        print(f"{days} days lived; {len(smaller.faults)} faults are left; see {options.shrink}")
        plan = smaller
    outcome = live(plan, traced=True)
    if options.trace:
        Path(options.trace).write_text("\n".join(outcome.lines))
    print(f"seed {outcome.seed}, trace {outcome.trace_hash}, {outcome.steps} steps")
    for violation in outcome.violations:
        print(violation)
    return bool(outcome.violations)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1000, help="how many days")
    parser.add_argument("--first-seed", type=int, default=0, help="the seed of the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--twice", action="store_true", help="compare the traces of two runs")
    parser.add_argument("--trace", metavar="FILE", help="write the trace of the first seed")
    parser.add_argument("--shrink", metavar="FILE", help="write a smaller plan that is bad as well")
    parser.add_argument("--plan", metavar="FILE", help="live the plan in a file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
