"""The crash sweep: python -m tests.storage.log.sweep --points 1000000 --seed 1"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.storage.log.sweep.history import run
from trionsq.testing.disk import Crashed


def main() -> int:
    """Return the exit code: 0 if no promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.storage.log.sweep", description=__doc__)
    parser.add_argument("--points", type=int, default=1_000_000, help="crashes to try")
    parser.add_argument("--seed", type=int, default=0, help="the first history")
    parser.add_argument("--keep-going", action="store_true", help="after a broken promise")
    options = parser.parse_args()
    began_s, points, seed, failed = time.process_time(), 0, options.seed, 0
    while points < options.points:
        try:
            points += run(seed).crashes
        except (Exception, Crashed) as error:
            failed += 1
            points += 1
            if options.keep_going:
                last = traceback.extract_tb(error.__traceback__)[-1]
                print(f"{seed} {type(error).__name__} {error} ({last.name}:{last.lineno})")
            else:
                traceback.print_exc()
                print(f"repeat it: python -m tests.storage.log.sweep --points 1 --seed {seed}")
                return 1
        seed += 1
    seconds = time.process_time() - began_s
    count = seed - options.seed
    print(f"{points} crashes in {count} histories, {1000 * seconds / points:.2f} ms each")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
