"""What one load did to one checkout's daemon, and the table of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from benchmarks.capacity.tables import Table
from benchmarks.stalls.prober import Pings


class Row(TypedDict):
    """A load on a daemon: the pings meanwhile, those before, and what the watcher saw."""

    shape: str
    load: str
    tree: str
    seconds: float
    pings: Pings
    idle: Pings
    watched: dict[str, Any]


class Failure(TypedDict):
    """A load that could not be put on, and why."""

    shape: str
    tree: str
    reason: str


def longest(row: Row) -> dict[str, Any] | None:
    """The step that took longest, less the time that it waited for a processor."""
    steps: list[dict[str, Any]] = row["watched"]["slowest"]
    return max(steps, key=lambda step: float(step["own_ms"]), default=None)


def where(step: dict[str, Any] | None) -> str:
    """The function that ran, without the package's name; else the task."""
    if step is None:
        return "-"
    if step["own_ms"] < 3 and not step["ran"]:
        return "-"  # too short to be looked at
    return str(step["ran"] or step["task"]).replace("trionsq.", "").replace(".<locals>", "")


def longest_pause_ms(row: Row) -> float:
    """Of the garbage collector."""
    pauses: dict[str, Any] = row["watched"]["garbage"]
    return max((float(each["longest_cpu_ms"]) for each in pauses.values()), default=0.0)


def table(rows: Sequence[Row], trees: Sequence[str]) -> Table:
    """A line for each load; with two trees the figures of both."""
    if len(trees) == 1:
        made = Table(
            "stalls",
            "what holds the event loop up",
            "load, /ping ms, idle /ping ms, turn ms, step ms, CPU ms, collector ms, in",
            _NOTE,
        )
        for row in rows:
            made.add(row["load"], *_figures(row), where(longest(row)))
        return made
    before, after = trees
    made = Table(
        "stalls",
        "what holds the event loop up",
        "load, /ping ms before, after, step ms before, after, in before, in after",
        _NOTE,
    )
    for load in dict.fromkeys(row["load"] for row in rows):
        by_tree = {row["tree"]: row for row in rows if row["load"] == load}
        pair = [by_tree.get(before), by_tree.get(after)]
        steps = [None if row is None else longest(row) for row in pair]
        made.add(
            load,
            *(None if row is None else row["pings"]["longest_ms"] for row in pair),
            *(None if step is None else step["own_ms"] for step in steps),
            *(where(step) for step in steps),
        )
    return made


_NOTE = (
    "The longest of each, in milliseconds. /ping: as another process saw it, with what else the"
    " machine did; idle: just before. Turn: processor time between two looks for I/O, in which each"
    " task that is ready makes a step. Step: for how long one task kept all others waiting, less"
    " the time in which no processor was free; CPU: of that step. Collector: a garbage collection,"
    " which is in the step too. In: the function that ran most of the step."
)


def _figures(row: Row) -> tuple[float, ...]:
    step = longest(row)
    own_ms, cpu_ms = (step["own_ms"], step["cpu_ms"]) if step is not None else (0.0, 0.0)
    pings, idle = row["pings"]["longest_ms"], row["idle"]["longest_ms"]
    turn_ms = float(row["watched"]["longest_turn_cpu_ms"])
    return pings, idle, turn_ms, own_ms, cpu_ms, longest_pause_ms(row)
