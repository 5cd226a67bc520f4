"""`python -m benchmarks.stalls`: put on the chosen loads and print what held the loop up."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.build import BuildError, build
from benchmarks.folders import data_base
from benchmarks.generator import MeasureError
from benchmarks.report import machine
from benchmarks.servers import ServerError
from benchmarks.stalls.rows import Failure, Row, table
from benchmarks.stalls.shapes import SHAPES
from benchmarks.stalls.stage import Stage

OWN = Path(__file__).parents[2]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stalls",
        description="What holds the event loops of nsqd, nsqlookupd and nsqadmin up: the longest"
        " /ping and the longest step of the loop for each of some loads, in about 10 minutes.",
    )
    parser.add_argument("--only", metavar="LOADS", help="some, with commas between; see --list")
    parser.add_argument("--quick", action="store_true", help="all small: a try, no result")
    parser.add_argument("--tree", type=Path, default=OWN, metavar="DIR", help="another checkout")
    parser.add_argument(
        "--base", type=Path, metavar="DIR", help="a checkout from before, measured by turns with it"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="where data folders are made")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="all figures, the ten slowest steps"
    )
    parser.add_argument("--list", action="store_true", help="name the loads and end")
    return parser


def _chosen(only: str | None) -> list[str]:
    names = [name for name in (only or "").split(",") if name]
    if unknown := set(names) - SHAPES.keys():
        raise SystemExit(f"no such load: {', '.join(sorted(unknown))}; --list names them")
    return names or list(SHAPES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a load could not be put on, 2 when none could."""
    arguments = _parser().parse_args(argv)
    chosen = _chosen(arguments.only)
    if arguments.list:
        print("\n".join(f"{name:12} {SHAPES[name].__doc__}" for name in chosen))
        return 0
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        generator = build().load
    except BuildError as error:
        print(f"stalls: {error}", file=sys.stderr)
        return 2
    trees = {"before": arguments.base, "now": arguments.tree}
    with tempfile.TemporaryDirectory(prefix="nsq-stalls-", dir=data_base(arguments.data)) as data:
        stages = [
            Stage(name, folder.resolve(), Path(data), generator, quick=arguments.quick)
            for name, folder in trees.items()
            if folder is not None
        ]
        failures = _run(chosen, stages)
    rows = [row for stage in stages for row in stage.rows]
    print(f"\n{table(_in_order(chosen, rows), [stage.tree for stage in stages]).text()}")
    for failure in failures:
        print(f"\n{failure['shape']} ({failure['tree']}) FAILED: {failure['reason']}")
    if arguments.json is not None:
        document = {"machine": machine(), "rows": rows, "failures": failures}
        arguments.json.write_text(json.dumps(document, indent=1))
    return 1 if failures else 0


def _in_order(chosen: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    return [row for shape in chosen for row in rows if row["shape"] == shape]


def _run(chosen: Sequence[str], stages: Sequence[Stage]) -> list[Failure]:
    failures = []
    for name in chosen:
        for stage in stages:
            began_s, had = time.monotonic(), len(stage.rows)
            stage.shape = name
            try:
                SHAPES[name](stage)
            except (MeasureError, ServerError, OSError) as error:
                failures.append(Failure(shape=name, tree=stage.tree, reason=str(error)))
            took_s = time.monotonic() - began_s
            made = len(stage.rows) - had
            print(
                f"{name} ({stage.tree}): {made} rows in {took_s:.0f} s", file=sys.stderr, flush=True
            )
    return failures


if __name__ == "__main__":
    raise SystemExit(main())
