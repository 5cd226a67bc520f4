"""What commands print: tables of at most 100 columns, or one JSON document."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "Report",
    "counted",
    "printable",
    "table_lines",
    "to_stdout",
    "write_json",
    "write_lines",
]

WIDTH: Final = 100
# No column becomes narrower.
_NARROWEST: Final = 12
_CUT: Final = "…"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a command.

    Attributes:
        document: for --json, without its errors.
        lines: for people.
        code: the exit code, if it is not 0 and no node failed.
    """

    document: dict[str, Any]
    lines: Sequence[str]
    code: int = 0


def table_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table whose lines fit: the widest columns of text are cut. Numbers are on the right."""
    content = [list(row) for row in rows]
    numeric = [
        bool(content) and all(isinstance(row[place], int) for row in content)
        for place in range(len(header))
    ]
    cells = [list(header), *([_cell(value) for value in row] for row in content)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(header))]
    excess = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    while excess > 0:
        place = max(range(len(widths)), key=lambda one: (not numeric[one], widths[one]))
        if numeric[place] or widths[place] <= _NARROWEST:
            break
        others = [widths[one] for one in range(len(widths)) if one != place and not numeric[one]]
        least = max([_NARROWEST, *others])
        cut = min(excess, max(widths[place] - least, 1))
        widths[place] -= cut
        excess -= cut
    return [
        "  ".join(
            _fit(cell, width, right=right)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]


def _cell(value: object) -> str:
    if value is True or value is False:
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def _fit(cell: str, width: int, *, right: bool) -> str:
    if len(cell) > width:
        cell = cell[: width - len(_CUT)] + _CUT
    return cell.rjust(width) if right else cell.ljust(width)


def counted(count: int, noun: str) -> str:
    """``1 node``, ``1,200 nodes``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """The text on one line, without what a terminal would obey."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def write_lines(lines: Iterable[str]) -> None:
    """Print lines."""
    to_stdout(lambda: [print(line) for line in lines])


def write_json(document: dict[str, Any]) -> None:
    """Print a JSON document."""
    to_stdout(lambda: print(json.dumps(document, indent=2)))


def to_stdout(write: Callable[[], object]) -> None:
    """Let *write* print to standard output, whose reader may have gone: then the rest is lost."""
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in the buffer must not fail at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
