"""What a terminal shows of a query: a line a second, made of Spark's progress reports."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

__all__ = ["Progress", "line_of"]


class Progress:
    """Adds reports up, and shows the newest on a terminal.

    Attributes:
        rows, batches: so far.
    """

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        """*stream*: standard error by default; it gets nothing unless it is a terminal."""
        self.rows = 0
        self.batches = 0
        self._name = name
        self._stream = sys.stderr if stream is None else stream
        self._is_shown = self._stream.isatty()
        self._newest = ""
        self._report: Mapping[str, Any] = {}
        self._shown_s = 0.0

    def saw(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Take in reports, oldest first; those that it has seen already count once."""
        for report in reports:
            if report["timestamp"] <= self._newest:
                continue
            self._newest = report["timestamp"]
            self._report = report
            if report["numInputRows"]:
                self.rows += report["numInputRows"]
                self.batches += 1

    def count(self, rows: int) -> None:
        """Without reports: so many rows so far, in one batch more."""
        self.rows = rows
        self.batches += 1

    def show(self, now_s: float | None = None) -> None:
        """Renew the line, once a second at most."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._is_shown and now_s - self._shown_s >= 1:
            self._shown_s = now_s
            self._stream.write(f"\r\x1b[K{self._name}: {line_of(self.rows, self._report)}")
            self._stream.flush()

    def end(self) -> None:
        """The last line, also where there is no terminal."""
        begin = "\r\x1b[K" if self._is_shown else ""
        batches = f"{self.batches:,} batch{'' if self.batches == 1 else 'es'}"
        self._stream.write(f"{begin}{self._name}: {self.rows:,} rows in {batches}\n")
        self._stream.flush()


def line_of(rows: int, report: Mapping[str, Any]) -> str:
    """Rows so far, and a report's rate, backlog and messages in flight."""
    parts = [f"{rows:,} rows", f"{report.get('processedRowsPerSecond') or 0:,.0f} rows/s"]
    figures = _figures(report)
    if figures:
        parts += [f"backlog {figures['backlog']:,}", f"in flight {figures['inFlight']:,}"]
        if figures["paused"]:
            parts.append("paused: the log is full")
    return ", ".join(parts)


def _figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the source adds to its newest offset; empty before it has begun."""
    for source in report.get("sources", ()):
        told = source.get("latestOffset")
        figures = json.loads(told) if isinstance(told, str) else told
        if isinstance(figures, dict) and "backlog" in figures:
            return figures
    return {}
