"""Runs the load generator, and holds what every measurement shares."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rows import Row
from benchmarks.servers import Kinds

TOPIC = "bench"
CHANNEL = "bench"
CONSUMED = f"{CHANNEL}0"
"""`load channels` numbers the channels it creates; the consumers take the first."""
SLOW = "slow"
LOAD_S = 300.0


class MeasureError(Exception):
    """A load failed, or the server's own figures afterwards do not add up."""


@dataclass(frozen=True)
class Bench:
    """What every measurement shares: programs, servers and how long to go on."""

    load: Path
    kinds: Kinds
    seconds: float = 3.0
    quick: bool = False

    def options(self, row: Row) -> dict[str, int | str]:
        """The generator's options of a row."""
        return {**row.options, **(row.quick_options if self.quick else {})}

    def channels(self, row: Row) -> int:
        """How many channels the row's topic has."""
        return row.quick_channels if self.quick else row.channels

    def backlog(self, row: Row) -> Path:
        """A folder with the queue files of the row's slow channel; written once, then shared.

        Raises `MeasureError` when it can't be written.
        """
        messages = row.quick_backlog if self.quick else row.backlog
        folder = self.kinds.data / f"backlog-{messages}"
        if not folder.exists():
            half_made = self.kinds.data / "backlog-half-made"
            half_made.mkdir(exist_ok=True)
            what: dict[str, int | str] = {"topic": TOPIC, "channel": SLOW, "messages": messages}
            run_load(self.load, "backlog", {**what, "data-path": str(half_made)})
            half_made.rename(folder)
        return folder


def run_load(load: Path, scenario: str, options: Mapping[str, int | str | bool]) -> dict[str, Any]:
    """Run the generator and return the JSON it prints.

    An option that is True is a flag, one that is False is left out. Raises `MeasureError` with
    the generator's own words when it fails, or when it does not end within 300 s.
    """
    command = [str(load), scenario]
    for name, value in options.items():
        if value is not False:
            command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=LOAD_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"{' '.join(command)}: not done after {LOAD_S:.0f} s") from error
    if result.returncode != 0:
        raise MeasureError(f"{' '.join(command)}: {result.stderr.strip()}")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer
