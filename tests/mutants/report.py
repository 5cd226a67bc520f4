"""Results: a line of JSON for each change, and the table of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.child import Outcome, Result
from tests.mutants.draw import FOLDERS, folder_of
from tests.mutants.sites import Site

__all__ = ["ALIVE", "Line", "read_lines", "table"]

ALIVE: Final = ("survived", "unfinished")


@dataclass(frozen=True)
class Line:
    """One change and what became of it; the fields are those of `Site` and `Result`."""

    name: str
    path: str
    line_number: int
    line: str
    kind: str
    change: str
    outcome: Outcome
    by: str
    tests: int
    seconds: float

    @classmethod
    def of(cls, site: Site, result: Result) -> Line:
        """Join the two."""
        return cls(
            name=site.name,
            path=site.path,
            line_number=site.line_number,
            line=site.line,
            kind=site.kind,
            change=site.change,
            outcome=result.outcome,
            by=result.by,
            tests=result.tests,
            seconds=result.seconds,
        )


def read_lines(path: Path) -> dict[str, Line]:
    """Return the latest result of each site by its name; a line that was cut off is left out."""
    found = {}
    if path.exists():
        for text in path.read_text().splitlines():
            if text.endswith("}"):
                line = Line(**json.loads(text))
                found[line.name] = line
    return found


def table(lines: Iterable[Line]) -> str:
    """Return the counts by folder, then each change that lives."""
    lines = list(lines)
    columns: tuple[Outcome, ...] = ("found", "hang", "listed", "unfinished", "survived")
    rows = [f"{'folder':16}{'changes':>10}" + "".join(f"{name:>12}" for name in columns)]
    counts = Counter((folder_of(line.path), line.outcome) for line in lines)
    for folder in FOLDERS:
        row = [counts[folder, name] for name in columns]
        rows.append(f"{folder:16}{sum(row):10}" + "".join(f"{count:12}" for count in row))
    totals = Counter(line.outcome for line in lines)
    rows.append(f"{'all':16}{len(lines):10}" + "".join(f"{totals[name]:12}" for name in columns))
    alive = sorted(
        (line for line in lines if line.outcome in ALIVE),
        key=lambda line: (line.path, line.line_number),
    )
    rows += [
        f"\n{line.path}:{line.line_number}: {line.change} ({line.outcome}, {line.tests} tests, "
        f"{line.seconds:.0f} s)\n    {line.line}"
        for line in alive
    ]
    return "\n".join(rows)
