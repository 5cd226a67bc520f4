"""``python -m tests.drill``: stop or kill nsqd under load, start it again, and break no promise.

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
import traceback
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from tests.drill.account import Judgement
from tests.drill.kinds import KINDS, Kind
from tests.drill.plan import draw_plan
from tests.drill.run import run_drill
from tests.engines import ON_LOG

MANY_RUNS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drill that the command line asks for; the exit code."""
    options = _parser().parse_args(arguments)
    keeps_delays = options.keeps_delays == "true"
    is_good = True
    for kind in [KINDS[options.kind]] if options.kind else KINDS.values():
        seeds = range(options.seed, options.seed + options.runs)
        totals, is_kind_good = run_all(kind, seeds, options.seconds, keeps_delays=keeps_delays)
        print(f"all {options.runs} runs of {kind.name}: {describe(totals)}", flush=True)
        is_good &= is_kind_good
        for fault in never_occurred(kind, totals, options.runs, keeps_delays=keeps_delays):
            print(f"never occurred, so nothing is known of it: {fault}")
            is_good = False
    return 0 if is_good else 1


def run_all(
    kind: Kind, seeds: Sequence[int], load_s_max: float, *, keeps_delays: bool = True
) -> tuple[Counter[str], bool]:
    """Run each seed in a folder of its own; the sums of all counts, and whether all went well."""
    totals: Counter[str] = Counter()
    is_good = True
    for seed in seeds:
        folder = Path(tempfile.mkdtemp(prefix=f"drill-{kind.name}-{seed}-"))
        judgement = _run(kind, seed, load_s_max, folder, keeps_delays=keeps_delays)
        totals += judgement.counts
        for fault in judgement.faults:
            print(f"seed {seed}, folder {folder}: {fault}")
        if judgement.faults:
            is_good = False
        else:
            shutil.rmtree(folder)
    return totals, is_good


def never_occurred(
    kind: Kind, totals: Counter[str], runs: int, *, keeps_delays: bool = True
) -> list[str]:
    """The faults that this many runs should have met and did not."""
    wanted = [*kind.faults]
    if runs >= MANY_RUNS:
        wanted.append("at_topic_at_stop")
        # All that a drill has in a log is in memory, too.
        if not (ON_LOG or "--storage=log" in kind.flags):
            wanted.append("on_disk_at_stop")
    return [
        name
        for name in wanted
        if not totals[name] and (keeps_delays or name != "waited_after_restart")
    ]


def describe(counts: Counter[str]) -> str:
    """``acked 12, lost 0``, by name."""
    return ", ".join(f"{name} {counts[name]}" for name in sorted({*counts, "lost"}))


def _run(
    kind: Kind, seed: int, load_s_max: float, folder: Path, *, keeps_delays: bool
) -> Judgement:
    plan = draw_plan(seed, load_s_max, kind)
    drill = partial(run_drill, keeps_delays=keeps_delays)
    try:
        judgement = trio.run(drill, plan, folder)
    except Exception as error:  # told as this seed's failure; the other runs go on
        judgement = Judgement(Counter(), ("".join(traceback.format_exception(error)),))
    how = "WRONG" if judgement.faults else "good"
    flags = " ".join(plan.flags)
    print(
        f"{kind.name} seed {seed} {how}: {plan.load_s:.1f} s, {flags}: {describe(judgement.counts)}"
    )
    sys.stdout.flush()
    return judgement


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drill",
        description=__doc__,
        epilog="\n".join(f"{kind.name}: {kind.about}" for kind in KINDS.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kind", choices=KINDS, help="only this one; else each of them")
    parser.add_argument("--runs", type=int, default=50, help="as many of each kind (50)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1_000_000), help="of the first run"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="the longest load, in seconds")
    parser.add_argument(
        "--keeps-delays",
        choices=["true", "false"],
        default="true",
        help="whether deferred messages are to be deferred still after a restart",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
