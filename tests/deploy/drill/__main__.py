"""``python -m tests.deploy.drill``: break the cluster of compose.yaml under load, miss nothing.

For root on Linux with iproute2; exits 77 where there can be no network namespaces. Prints a line
for each drill and run, and a summary; exits 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from tests.deploy import netns
from tests.deploy.drill.faults import DRILLS
from tests.deploy.drill.harness import Drill, DrillError, Outcome, Setting, run_drill

NOT_ALLOWED = 77
SHOWN = (
    "attempted",
    "acknowledged",
    "delivered",
    "lost",
    "duplicated",
    "recovered",
    "unknown",
    "failed",
    "uncured",
    "strange",
    *(WIDEST := ("gap_ms", "publish_ms", "first_ms", "back_ms")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drills that the command line asks for; the exit code."""
    options = _parser().parse_args(arguments)
    if why := netns.why_not():
        print(f"no drills here: {why}")
        return NOT_ALLOWED
    drills = [drill for drill in DRILLS if not options.only or drill.name in options.only]
    print(f"{'drill':16}", *(f"{name:>{_width(name)}}" for name in SHOWN), "seconds load")
    totals: dict[str, Counter[str]] = {drill.name: Counter() for drill in drills}
    is_good = True
    for run in range(options.runs):
        setting = Setting(options.rate, options.hold, options.limit, options.seed + run)
        for drill in drills:
            is_good &= run_once(drill, setting, totals[drill.name])
    print(f"--- {options.runs} runs of each; times are the longest")
    for name, counts in totals.items():
        print(line(name, counts))
    return 0 if is_good else 1


def run_once(drill: Drill, setting: Setting, total: Counter[str]) -> bool:
    """Run, print, add up; whether all that was promised held."""
    folder = Path(tempfile.mkdtemp(prefix=f"drill-{drill.name}-"))
    load = os.getloadavg()[0]
    try:
        with _client_log(folder / "clients.log"):
            outcome = trio.run(run_drill, drill, folder, setting)
    except DrillError as error:
        print(f"WRONG, folder {folder}: {error}", flush=True)
        traceback.print_exception(error.__cause__)
        return False
    print(line(drill.name, outcome.counts), f"{outcome.duration_s:7.1f} {load:4.1f}", flush=True)
    _print_more(outcome, folder)
    for name in SHOWN:
        count = outcome.counts[name]
        total[name] = max(total[name], count) if name in WIDEST else total[name] + count
    if not outcome.wrong:
        shutil.rmtree(folder)
    return not outcome.wrong


def line(name: str, counts: Counter[str]) -> str:
    """The figures below their names."""
    return " ".join([f"{name:16}", *(f"{counts[key]:{_width(key)}}" for key in SHOWN)])


@contextmanager
def _client_log(file: Path) -> Iterator[None]:
    """What the clients have to say of faults goes beside the daemons' logs."""
    log, handler = logging.getLogger("trionsq"), logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


def _print_more(outcome: Outcome, folder: Path) -> None:
    if outcome.failures:
        failures = ", ".join(f"{count} {error}" for error, count in outcome.failures.items())
        print(f"    publishes tried again: {failures}")
    for remark in outcome.remarks:
        print(f"    {remark}")
    for wrong in outcome.wrong:
        print(f"    WRONG, folder {folder}: {wrong}")


def _width(name: str) -> int:
    return max(len(name), 7)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.deploy.drill",
        description=__doc__,
        epilog="\n".join(f"{drill.name}: {drill.about}" for drill in DRILLS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Setting()
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=[drill.name for drill in DRILLS]
    )
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--rate", type=int, default=default.rate, help="messages in a second")
    parser.add_argument(
        "--hold", type=float, default=default.hold_s, help="seconds that a fault lasts at least"
    )
    parser.add_argument(
        "--limit", type=float, default=default.limit_s, help="seconds for one run, then it failed"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
