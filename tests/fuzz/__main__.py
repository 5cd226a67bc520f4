"""``python -m tests.fuzz``: nonsense of all kinds to nsqd, which must stay up and sane.

Prints a line for each kind. Stops at the first case that goes wrong, with its seed and number.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.fuzz.plan import RUNS, describe


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz as the command line says; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--part", type=int, default=1, help="run one case of so many")
    parser.add_argument("--only", default="", help="kinds with this in their name")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    for run in RUNS:
        if options.only not in run.name:
            continue
        count = run.count // options.part
        started_s = time.monotonic()
        found = run.fuzz(count, options.seed)
        seconds = time.monotonic() - started_s
        print(f"{describe(run, count, options.seed, found)} ({seconds:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
