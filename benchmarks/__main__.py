"""`python -m benchmarks`: run the chosen rows and print the table."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.build import BuildError, build
from benchmarks.clientrows import CLIENT_ROWS
from benchmarks.folders import data_base, file_system
from benchmarks.generator import Bench, MeasureError
from benchmarks.logrows import LOG_ROWS
from benchmarks.measure import message_counts, run_row
from benchmarks.pipelines import SPARK_ROWS
from benchmarks.policies import POLICY_ROWS
from benchmarks.report import Result, document, machine, table, versions
from benchmarks.rows import ROWS, Row
from benchmarks.servers import FLOOR, ORIGINAL, OURS, ServerError, kinds


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


ALL_ROWS: Final = (*ROWS, *CLIENT_ROWS, *LOG_ROWS, *POLICY_ROWS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure nsqd beside a minimal C server and, with --original, the original.",
    )
    parser.add_argument("--rows", type=_names, help="some rows by name, with commas between")
    parser.add_argument("--original", type=Path, metavar="DIR", help="folder with its nsqd")
    parser.add_argument(
        "--packages",
        type=Path,
        metavar="DIR",
        help="nsqd of the packages there, such as compiled ones",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--seconds", type=float, help="length of a run (3; quick 0.5)")
    parser.add_argument("--repeats", type=int, help="runs of which the median counts (3; quick 1)")
    parser.add_argument("--quick", action="store_true", help="one short run each: a try, no result")
    parser.add_argument("--servers", type=_names, help="some of ours,original,floor")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where data folders are made")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    return parser


def _chosen_rows(names: Sequence[str] | None) -> list[Row]:
    by_name = {row.name: row for row in (*ALL_ROWS, *SPARK_ROWS)}
    if unknown := set(names or ()) - by_name.keys():
        raise SystemExit(f"no such row: {', '.join(sorted(unknown))}; --list names them")
    return [by_name[name] for name in names] if names else [*ALL_ROWS]


def _chosen_servers(arguments: argparse.Namespace) -> list[str]:
    known = [OURS, *([ORIGINAL] if arguments.original else []), FLOOR]
    chosen: list[str] = arguments.servers or known
    if unknown := set(chosen) - set(known):
        raise SystemExit(f"no such server here: {', '.join(sorted(unknown))}")
    return chosen


class Progress:
    """One line on stderr that says what is under way; silent when that is no terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._at = 0
        self._shown = sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Replace the line."""
        if self._shown:
            sys.stderr.write(f"\r\x1b[K[{self._at}/{self._total}] {text}")
            sys.stderr.flush()

    def row_done(self) -> None:
        """Count a row; after the last the line is gone."""
        self._at += 1
        if self._shown and self._at == self._total:
            sys.stderr.write("\r\x1b[K")


def measure_row(
    bench: Bench, row: Row, servers: Sequence[str], repeats: int, progress: Progress
) -> Result:
    """All runs of a row, the servers in turn, each time in the other order."""
    result = Result(row)
    order = [kind for kind in servers if kind != FLOOR or row.floor]
    try:
        progress.say(f"{row.name}: pilot")
        counts = message_counts(bench, row, order)
        repeats = min(repeats, row.most_repeats)
        for repeat in range(repeats):
            for kind in order if repeat % 2 == 0 else reversed(order):
                progress.say(f"{row.name}: {kind}, run {repeat + 1} of {repeats}")
                result.runs.setdefault(kind, []).append(run_row(bench, row, kind, counts[kind]))
    except (MeasureError, ServerError, OSError) as error:
        result.failure = str(error)
    progress.row_done()
    return result


def _said(rows: Sequence[Row]) -> str:
    return ",".join(row.name for row in rows)


def _raise_file_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a row failed, 2 when nothing could start."""
    arguments = _parser().parse_args(argv)
    if arguments.list:
        print("\n".join(f"{row.name:26}{row.title}" for row in (*ALL_ROWS, *SPARK_ROWS)))
        return 0
    _raise_file_limit()
    base = data_base(arguments.data)
    try:
        folder = tempfile.TemporaryDirectory(prefix="nsq-bench-", dir=base)
    except OSError as error:
        print(f"benchmarks: no data folder can be made: {error}", file=sys.stderr)
        return 2
    with folder as data:
        return _run(arguments, Path(data))


def _run(arguments: argparse.Namespace, data: Path) -> int:
    rows, servers = _chosen_rows(arguments.rows), _chosen_servers(arguments)
    try:
        programs = build()
        commands = kinds(programs.floor, arguments.original, data, arguments.packages)
        for kind in servers:
            with commands.start(kind, ()):
                pass
    except (BuildError, ServerError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    seconds = arguments.seconds or (0.5 if arguments.quick else 3.0)
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    bench = Bench(programs.load, commands, seconds, arguments.quick)
    progress = Progress(len(rows))
    before, began = {**machine(), "data": " ".join(file_system(data))}, time.monotonic()
    results = [measure_row(bench, row, servers, repeats, progress) for row in rows]
    print(_heading(before, repeats, seconds, time.monotonic() - began))
    print(table(results))
    if arguments.json:
        written = {name: str(value) for name, value in vars(arguments).items() if value}
        written |= {"seconds": f"{seconds:g}", "repeats": str(repeats), "rows": _said(rows)}
        about = versions(programs.compiler, commands.commands)
        arguments.json.write_text(json.dumps(document(results, before, about, written), indent=1))
    return 1 if any(result.failure for result in results) else 0


def _heading(before: Mapping[str, Any], repeats: int, seconds: float, took_s: float) -> str:
    return (
        f"{before['processor']}, {before['cores']} cores, kernel {before['kernel']}, data on"
        f" {before['data']}; {repeats} run(s) of about {seconds:g} s, {took_s:.0f} s in all;"
        f" load average before {before['load_average'][0]:.2f}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
