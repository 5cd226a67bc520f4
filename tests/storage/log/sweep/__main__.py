"""The crash sweep of the log engine.

python -m tests.storage.log.sweep --points 1000000
python -m tests.storage.log.sweep --points 1 --seed 17
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from tests.storage.log.sweep.history import run


def main() -> int:
    """Return the exit code: 0 if no promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.storage.log.sweep")
    parser.add_argument("--points", type=int, default=1_000_000, help="crashes to try")
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    options = parser.parse_args()
    logging.disable()
    began_s, points, seed = time.process_time(), 0, options.seed
    while points < options.points:
        try:
            points += run(seed).crashes
        except BaseException as error:
            traceback.print_exc()
            print(f"after {points} crashes: {error!r:.200}")
            print(f"repeat it: python -m tests.storage.log.sweep --points 1 --seed {seed}")
            return 1
        seed += 1
    seconds = time.process_time() - began_s
    count = seed - options.seed
    print(f"{points} crashes in {count} histories, {1000 * seconds / points:.2f} ms each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
