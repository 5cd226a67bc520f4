"""How many cases of what: the full counts, of which `make test` runs a fiftieth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.fuzz.http_in_process import fuzz_http
from tests.fuzz.in_memory import fuzz_in_memory
from tests.fuzz.lookupd_sessions import fuzz_lookupd
from tests.fuzz.parser import fuzz_parser
from tests.fuzz.sockets import fuzz_process

__all__ = ["RUNS", "Run", "describe"]


@dataclass(frozen=True, slots=True)
class Run:
    """One kind of fuzzing: takes a count and a seed, raises what went wrong."""

    name: str
    count: int
    fuzz: Callable[[int, int], Counter[str]]


RUNS: Final = (
    Run("TCP commands, parser", 90_000, fuzz_parser),
    Run("TCP commands, broker in memory", 10_000, fuzz_in_memory),
    Run("TCP commands, process", 2_000, partial(fuzz_process, "tcp")),
    Run("TCP upgraded, process", 2_000, partial(fuzz_process, "upgraded")),
    Run("nsqlookupd TCP, sessions", 20_000, fuzz_lookupd),
    Run("HTTP requests, in process", 20_000, fuzz_http),
    Run("HTTP requests, process", 1_000, partial(fuzz_process, "http")),
)


def describe(run: Run, count: int, seed: int, found: Counter[str]) -> str:
    """A line for the reader: what was run, and what came of it."""
    ends = ", ".join(f"{number} {end}" for end, number in found.most_common())
    return f"{run.name}: {count} cases, seed {seed}: {ends}"
