"""The results: medians, an aligned table, and JSON with every raw run and the machine."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.rows import Metric, Row, Run, cpu_us
from benchmarks.servers import FLOOR, ORIGINAL, OURS

HEADINGS = (
    *("row", "figure", "unit", "ours", "cpu us", "gen %", "floor", "/floor"),
    *("original", "cpu us", "/original", "spread", "target", ""),
)


@dataclass
class Result:
    """The runs of one row by kind of server, or why there are none."""

    row: Row
    runs: dict[str, list[Run]] = field(default_factory=dict)
    failure: str | None = None

    def median(self, metric: Metric, kind: str) -> float | None:
        """The median of a figure over the runs on one kind of server."""
        runs = self.runs.get(kind)
        return statistics.median([metric.of(run) for run in runs]) if runs else None

    def cpu_us(self, kind: str) -> float | None:
        """Median CPU microseconds of the server for each message."""
        costs = [cost for run in self.runs.get(kind, ()) if (cost := cpu_us(run)) is not None]
        return statistics.median(costs) if costs else None

    def generator_percent(self, kind: str) -> float | None:
        """How busy the generator's only core was, in percent of the run."""
        runs = self.runs.get(kind)
        if not runs:
            return None
        shares = [run["generator_cpu_seconds"] / run["seconds"] for run in runs]
        return float(statistics.median(shares) * 100)

    def spread_percent(self, metric: Metric) -> float | None:
        """Half the distance of best and worst run of a broker, in percent of its median."""
        spreads = []
        for kind in (OURS, ORIGINAL):
            values = [metric.of(run) for run in self.runs.get(kind, ())]
            if len(values) > 1 and (middle := statistics.median(values)):
                spreads.append((max(values) - min(values)) / 2 / middle * 100)
        return max(spreads, default=None)

    def ratio(self, metric: Metric, other: str) -> float | None:
        """Ours to the other kind's median of a figure."""
        ours, theirs = self.median(metric, OURS), self.median(metric, other)
        return ours / theirs if ours is not None and theirs else None


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _target(metric: Metric) -> str:
    if metric.target is None:
        return ""
    sign = ">=" if metric.more_is_better else "<="
    return f"{'ours ' if metric.absolute else ''}{sign} {metric.target:g}"


def _verdict(metric: Metric, reached: float | None) -> str:
    met = None if reached is None else metric.meets(reached)
    return "" if met is None else "met" if met else "MISSED"


def _line(result: Result, metric: Metric) -> tuple[str, ...]:
    ratio = result.ratio(metric, ORIGINAL)
    figures = (
        result.median(metric, OURS),
        result.cpu_us(OURS),
        result.generator_percent(OURS),
        result.median(metric, FLOOR),
        result.ratio(metric, FLOOR),
        result.median(metric, ORIGINAL),
        result.cpu_us(ORIGINAL),
        ratio,
    )
    name = (result.row.name, metric.name, metric.unit)
    spread = result.spread_percent(metric)
    uncertain = "-" if spread is None else f"+-{spread:.0f}%"
    verdict = _verdict(metric, figures[0] if metric.absolute else ratio)
    return (*name, *map(_number, figures), uncertain, _target(metric), verdict)


def table(results: Sequence[Result]) -> str:
    """All rows as aligned text, and below it the rows that failed with their reasons."""
    lines: list[tuple[str, ...]] = [HEADINGS]
    lines += [
        _line(result, metric)
        for result in results
        if result.failure is None
        for metric in result.row.metrics
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if at < 3 or at > 11 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    text += [f"FAILED {each.row.name}: {each.failure}" for each in results if each.failure]
    return "\n".join(text)


def _summary(result: Result, kind: str) -> dict[str, Any]:
    return {
        "figures": {metric.name: result.median(metric, kind) for metric in result.row.metrics},
        "cpu_us_per_message": result.cpu_us(kind),
        "generator_percent": result.generator_percent(kind),
        "runs": [dict(run) for run in result.runs[kind]],
    }


def _row_document(result: Result) -> dict[str, Any]:
    return {
        "row": result.row.name,
        "title": result.row.title,
        "failure": result.failure,
        "metrics": {
            metric.name: {
                "unit": metric.unit,
                "target": metric.target,
                "target_is_absolute": metric.absolute,
                "ratio_to_original": result.ratio(metric, ORIGINAL),
                "ratio_to_floor": result.ratio(metric, FLOOR),
            }
            for metric in result.row.metrics
        },
        "servers": {kind: _summary(result, kind) for kind in result.runs},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def machine() -> dict[str, Any]:
    """Where this runs: processor, cores that we may use, memory, kernel, load of late."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "load_average": os.getloadavg(),
    }


def _first_line(*command: str) -> str | None:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return None
    return answer.stdout.partition("\n")[0] if answer.returncode == 0 else None


def versions(compiler: str, commands: Mapping[str, Sequence[str]]) -> dict[str, str | None]:
    """What was measured and with what; None for what does not say."""
    return {
        "python": sys.version,
        "trio": metadata.version("trio"),
        "compiler": compiler,
        "commit": _first_line("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
        **{
            kind: _first_line(*command, "--version")
            for kind, command in commands.items()
            if kind != FLOOR
        },
    }


def document(
    results: Sequence[Result],
    machine: Mapping[str, Any],
    versions: Mapping[str, str | None],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything, for a file: machine, versions, arguments, medians, ratios, raw runs."""
    return {
        "format": 1,
        "machine": dict(machine),
        "versions": dict(versions),
        "arguments": dict(arguments),
        "rows": [_row_document(result) for result in results],
    }
