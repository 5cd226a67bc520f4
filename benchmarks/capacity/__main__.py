"""`python -m benchmarks.capacity`: measure the chosen tables and print them as Markdown."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.build import BuildError, build
from benchmarks.capacity import cluster, connections, disk, memory, throughput, topics
from benchmarks.capacity.lab import Lab, Section
from benchmarks.folders import data_base, file_system
from benchmarks.generator import Bench, MeasureError
from benchmarks.report import machine
from benchmarks.servers import ServerError, kinds

SECTIONS: dict[str, Section] = {
    "sizes": throughput.measure_sizes,
    "ways": throughput.measure_ways,
    "channels": throughput.measure_channels,
    "consumers": throughput.measure_consumers,
    "paced": throughput.measure_paced,
    "layers": throughput.measure_layers,
    "connections": connections.measure_connections,
    "handshakes": connections.measure_handshakes,
    "topics": topics.measure_topics,
    "pages": topics.measure_pages,
    "memory": memory.measure_memory,
    "disk": disk.measure_disk,
    "fsync": disk.measure_fsync,
    "start": disk.measure_start,
    "stop": disk.measure_stop,
    "lookupd": cluster.measure_lookupd,
    "nsqadmin": cluster.measure_nsqadmin,
    "processes": cluster.measure_processes,
}
"""The tables in the guide's order."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capacity",
        description="Measure how much one nsqd holds on this machine: the tables of"
        " docs/capacity.md, in less than 10 minutes.",
    )
    parser.add_argument("--only", metavar="TABLES", help="some, with commas between; see --list")
    parser.add_argument("--quick", action="store_true", help="all small: a try, no result")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where data folders are made")
    parser.add_argument("--list", action="store_true", help="name the tables and end")
    return parser


def _chosen(only: str | None) -> list[str]:
    names = [name for name in (only or "").split(",") if name]
    if unknown := set(names) - SECTIONS.keys():
        raise SystemExit(f"no such table: {', '.join(sorted(unknown))}; --list names them")
    return names or list(SECTIONS)


def _heading(data: Path) -> str:
    here = machine()
    return (
        f"{here['processor']}, {here['cores']} cores, {here['memory_bytes'] / 1e9:.0f} GB,"
        f" kernel {here['kernel']}, Python {sys.version.partition(' ')[0]}, data on"
        f" {' '.join(file_system(data))}; load average before {here['load_average'][0]:.2f}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a table failed, 2 when nothing could start."""
    arguments = _parser().parse_args(argv)
    chosen = _chosen(arguments.only)
    if arguments.list:
        print("\n".join(chosen))
        return 0
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(
        prefix="nsq-capacity-", dir=data_base(arguments.data)
    ) as folder:
        return _run(chosen, Path(folder), quick=arguments.quick)


def _run(chosen: Sequence[str], data: Path, *, quick: bool) -> int:
    try:
        programs = build()
    except BuildError as error:
        print(f"capacity: {error}", file=sys.stderr)
        return 2
    lab = Lab(Bench(programs.load, kinds(programs.floor, None, data), quick=quick))
    print(_heading(data), flush=True)
    failed, all_began_s = 0, time.monotonic()
    for name in chosen:
        began_s = time.monotonic()
        try:
            text = SECTIONS[name](lab).text()
        except (MeasureError, ServerError, OSError) as error:
            failed += 1
            text = f"### {name}\n\nFAILED: {error}"
        print(f"\n{text}\n\n{name} took {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"\n{time.monotonic() - all_began_s:.0f} s in all")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
