"""A table of figures as Markdown, so that what a run prints is what the guide shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | float | None


@dataclass
class Table:
    """A heading, columns, and a row for each thing that was measured.

    `headings` has commas between; the first names the rows. `note` says what the figures are of.
    """

    name: str
    title: str
    headings: str
    note: str = ""
    rows: list[Sequence[Cell]] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """The headings."""
        return self.headings.split(", ")

    def add(self, *cells: Cell) -> None:
        """One row. Raises `ValueError` when it has not a cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def text(self) -> str:
        """The table in Markdown, aligned."""
        lines = [self.columns, *([_shown(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
        body = "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in ruled)
        heading = f"### {self.name}: {self.title}"
        return "\n\n".join(part for part in (heading, self.note, body) if part)


def _shown(cell: Cell) -> str:
    """Three digits that count, with commas from a thousand on."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if cell == 0:
        return "0"
    if abs(cell) >= 100:
        digits = max(len(str(round(abs(cell)))) - 3, 0)
        return f"{round(cell, -digits):,.0f}"
    return f"{cell:.3g}"
