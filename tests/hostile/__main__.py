"""``python -m tests.hostile``: attacks on nsqd, and what they did to it.

Prints a line for each: how much the peak of resident memory grew, and the rate of a producer and a
consumer beside the attack, as a ratio to their rate before it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.fuzz.watch import MIB
from tests.hostile.plan import ATTACKS, describe
from tests.hostile.target import attack


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack as the command line says; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="what a bomb inflates to")
    parser.add_argument("--short", action="store_true", help="do not wait for nsqd's time limits")
    parser.add_argument("--only", default="", help="attacks with this in their name")
    options = parser.parse_args(arguments)
    for kind in ATTACKS:
        if options.only in kind.name:
            figures = attack(kind, options.mib * MIB, patient=not options.short)
            print(describe(kind, figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
