"""``python -m tests.drill``: stop nsqd under load, start it again, and miss nothing.

Prints a line for each run and the totals; exits 1 if a run went wrong, which is then told with
its seed and keeps its folder, or if a fault that the runs are there to provoke never occurred.
TRIONSQ_TEST_NSQD names another nsqd to be drilled.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import trio

from tests.drill.account import Judgement
from tests.drill.plan import draw_plan
from tests.drill.run import Terms, run_drill

FAULTS = ("in_flight_at_stop", "deferred_at_stop", "publishers_cut_off", "consumers_cut_off")
FAULTS_OF_MANY_RUNS = ("at_topic_at_stop", "on_disk_at_stop")
MANY_RUNS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drill that the command line asks for; the exit code."""
    options = _parser().parse_args(arguments)
    terms = Terms(is_clean=not options.kill, keeps_delays=options.keeps_delays == "true")
    seeds = range(options.seed, options.seed + options.runs)
    totals, is_good = run_all(seeds, options.seconds, terms)
    print(f"all {options.runs} runs: {describe(totals)}")
    for fault in never_occurred(totals, options.runs, terms):
        print(f"never occurred, so nothing is known of it: {fault}")
        is_good = False
    return 0 if is_good else 1


def run_all(seeds: Sequence[int], load_s_max: float, terms: Terms) -> tuple[Counter[str], bool]:
    """Run each seed in a folder of its own; the sums of all counts, and whether all went well."""
    totals: Counter[str] = Counter()
    is_good = True
    for seed in seeds:
        folder = Path(tempfile.mkdtemp(prefix=f"drill-{seed}-"))
        judgement = _run(seed, load_s_max, folder, terms)
        totals += judgement.counts
        for fault in judgement.faults:
            print(f"seed {seed}, folder {folder}: {fault}")
        if judgement.faults:
            is_good = False
        else:
            shutil.rmtree(folder)
    return totals, is_good


def never_occurred(totals: Counter[str], runs: int, terms: Terms) -> list[str]:
    """The faults that this many runs should have met and did not."""
    wanted = [*FAULTS, *(FAULTS_OF_MANY_RUNS if runs >= MANY_RUNS else ())]
    if terms.is_clean and terms.keeps_delays:
        wanted.append("waited_after_restart")
    return [name for name in wanted if not totals[name]]


def describe(counts: Counter[str]) -> str:
    """``acked 12, missing 0``, by name."""
    return ", ".join(f"{name} {counts[name]}" for name in sorted({*counts, "missing"}))


def _run(seed: int, load_s_max: float, folder: Path, terms: Terms) -> Judgement:
    plan = draw_plan(seed, load_s_max)
    try:
        judgement = trio.run(run_drill, plan, folder, terms)
    except Exception as error:  # told as this seed's failure; the other runs go on
        judgement = Judgement(Counter(), tuple(_causes(error)))
    how = "WRONG" if judgement.faults else "good"
    flags = " ".join(plan.flags)
    print(f"seed {seed} {how}: {plan.load_s:.1f} s, {flags}: {describe(judgement.counts)}")
    sys.stdout.flush()
    return judgement


def _causes(error: BaseException) -> Iterator[str]:
    """What went wrong, without the groups that nurseries put around it."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _causes(one)
    else:
        yield repr(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="as many (50)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1_000_000), help="of the first run"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="the longest load, in seconds")
    parser.add_argument("--kill", action="store_true", help="SIGKILL: losses are only reported")
    parser.add_argument(
        "--keeps-delays",
        choices=["true", "false"],
        default="true",
        help="whether deferred messages are to be deferred still after a restart",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
