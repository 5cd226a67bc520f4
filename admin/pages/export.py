"""A list as a file: CSV for a spreadsheet, JSON for a program. It has all rows that match."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from quart import Response

__all__ = ["FILE_FORMATS", "MAX_ROWS", "export_file", "file_response"]

FILE_FORMATS: Final = ("csv", "json")
MAX_ROWS: Final = 100_000
"""Further rows are left out."""

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
_TYPES: Final = {"csv": "text/csv; charset=utf-8", "json": "application/json"}

Values = Mapping[str, Callable[[Any], Any]]


def export_file(rows: Sequence[Any], values: Values, kind: str) -> bytes:
    """The content of a file. Pure; to be called in a thread if there are many rows.

    Args:
        rows: of the list.
        values: by the name of a column, the function that takes its value from a row.
        kind: one of `FILE_FORMATS`.
    """
    picked = ([take(row) for take in values.values()] for row in rows[:MAX_ROWS])
    if kind == "json":
        return json.dumps([dict(zip(values, row, strict=True)) for row in picked]).encode()
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(values)
    writer.writerows([_cell(value) for value in row] for row in picked)
    return text.getvalue().encode(errors="replace")


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would calculate is quoted for it."""
    if isinstance(value, str) and value.startswith(_FORMULAS):
        return f"'{value}"
    return "" if value is None else value


def file_response(content: bytes, name: str, kind: str) -> Response:
    """A download of that name."""
    response = Response(content)
    response.headers["Content-Type"] = _TYPES[kind]
    response.headers["Content-Disposition"] = f'attachment; filename="{name}.{kind}"'
    response.headers["Cache-Control"] = "no-store"
    return response
