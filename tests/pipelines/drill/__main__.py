"""``python -m tests.pipelines.drill``: break a stream from nsqd to Parquet, and miss nothing.

The driver is killed three times and frozen once, an executor is killed, nsqd is stopped and
started, the log's disk is full for a time (where there is the right to mount one).
Prints what was counted; exits 1 if a message is lost or there twice, or if a fault did not occur.
TRIONSQ_TEST_NSQD names another nsqd.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pipelines.session import spark_session
from tests.pipelines.drill.run import FAULTS, Plan, run_drill
from tests.pipelines.settings import MASTER, SETTINGS

ZEROS = ("lost", "duplicates", "strange")
TOLD = ("published", "rows", "distinct", *ZEROS, "redeliveries_dropped")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _parser().parse_args(arguments)
    plan = Plan(options.messages, options.batch or options.messages // 40, not options.local)
    folder = Path(tempfile.mkdtemp(prefix="drill-spark-"))
    began_s, load = time.monotonic(), os.getloadavg()[0]
    counts = run_drill(plan, folder, lambda: spark_session("judge", MASTER, **SETTINGS))
    print(describe(counts))
    print(f"in {time.monotonic() - began_s:.0f} s, load average {load:.1f} before")
    for problem in (problems := problems_of(counts)):
        print(f"WRONG, folder {folder}: {problem}")
    if not problems:
        shutil.rmtree(folder)
    return 1 if problems else 0


def describe(counts: Counter[str]) -> str:
    """What counts first, then what was done and what else is known."""
    names = [*TOLD, *sorted({*counts, *FAULTS}.difference(TOLD))]
    return ", ".join(f"{name} {counts[name]}" for name in names)


def problems_of(counts: Counter[str]) -> list[str]:
    """What must not be, and what should have been and was not."""
    wrong = [f"{name} {counts[name]}" for name in ZEROS if counts[name]]
    excused = {"disk_filled"} if counts["no_right_to_mount"] else set()
    wrong += [
        f"{name} never occurred" for name in FAULTS if not counts[name] and name not in excused
    ]
    if not counts["unread_at_kills"]:
        wrong.append("the driver was killed when there was nothing left to read")
    return wrong


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.pipelines.drill", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--batch", type=int, help="messages of a batch; by default a fortieth")
    parser.add_argument("--local", action="store_true", help="local[2,3], no standalone cluster")
    return parser


if __name__ == "__main__":
    sys.exit(main())
