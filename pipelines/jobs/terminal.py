"""A job's output on standard error: messages, a progress line each second, one-line failures."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TextIO

__all__ = ["Progress", "one_line", "print_line", "progress_line"]


def print_line(name: str, text: str) -> None:
    """Write a line to standard error, with the job's name before it, if somebody still reads it."""
    with suppress(BrokenPipeError):
        sys.stderr.write(f"{name}: {text}\n")
        sys.stderr.flush()


# Progress


class Progress:
    """Adds up Spark's progress reports and shows the newest on a terminal.

    Attributes:
        rows, batches: totals since the start.
    """

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        """*stream*: by default standard error. Without a terminal only `finish` writes to it."""
        self.rows = 0
        self.batches = 0
        self._name = name
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._newest = ""
        self._report: Mapping[str, Any] = {}
        self._last_shown_s = 0.0

    def add_reports(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Count reports, oldest first; a report counts once however often it is passed."""
        for report in reports:
            if report["timestamp"] <= self._newest:
                continue
            self._newest = report["timestamp"]
            self._report = report
            if report["numInputRows"]:
                self.rows += report["numInputRows"]
                self.batches += 1

    def add_batch(self, total_rows: int) -> None:
        """Count one batch more, without a report; ``total_rows``: since the start."""
        self.rows = total_rows
        self.batches += 1

    def show(self, now_s: float | None = None) -> None:
        """Rewrite the line, at most once a second."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._is_terminal and now_s - self._last_shown_s >= 1:
            self._last_shown_s = now_s
            line = progress_line(self.rows, self._report)
            self._stream.write(f"\r\x1b[K{self._name}: {line}")
            self._stream.flush()

    def finish(self) -> None:
        """Write the totals, also without a terminal."""
        start = "\r\x1b[K" if self._is_terminal else ""
        batches = f"{self.batches:,} batch{'' if self.batches == 1 else 'es'}"
        self._stream.write(f"{start}{self._name}: {self.rows:,} rows in {batches}\n")
        self._stream.flush()


def progress_line(rows: int, report: Mapping[str, Any]) -> str:
    """Total rows, then the rate, backlog and messages in flight of a report."""
    parts = [f"{rows:,} rows", f"{report.get('processedRowsPerSecond') or 0:,.0f} rows/s"]
    metrics = _source_metrics(report)
    if metrics:
        parts.append(f"backlog {metrics['backlog']:,}")
        if "inFlight" in metrics:
            parts.append(f"in flight {metrics['inFlight']:,}")
        if metrics.get("paused"):
            parts.append("paused: the log is full")
    return ", ".join(parts)


def _source_metrics(report: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that the source adds to its newest offset; empty before the first one."""
    for source in report.get("sources", ()):
        offset = source.get("latestOffset")
        metrics = json.loads(offset) if isinstance(offset, str) else offset
        if isinstance(metrics, dict) and "backlog" in metrics:
            return metrics
    return {}


# Failures: an exception of Spark has hundreds of lines, of Java and of Python

_MAX_LENGTH: Final = 400
# The last line of a Python traceback, as Spark quotes it
_RAISED: Final = re.compile(
    r"^(?:[\w.]+\.)?(?P<name>[A-Z]\w*(?:Error|Exception)): (?P<text>\S.*)$", re.MULTILINE
)
_JAVA: Final = re.compile(r"^(?:Caused by: )?(?:java|org|py4j|scala)\.[\w.$]*: ?(.*)", re.MULTILINE)
_WRAPPERS: Final = ("PythonException", "SparkException", "StreamingQueryException", "Py4JJavaError")
_STACK: Final = "\n\tat "


def one_line(error: BaseException) -> str:
    """The most useful reason: the one in Python's traceback, else Spark's first line."""
    text = str(error)
    raised = [match for match in _RAISED.finditer(text) if match["name"] not in _WRAPPERS]
    if raised:
        return _short(_raised_text(raised[-1], text))
    java = [match[1] for match in _JAVA.finditer(text) if match[1].strip()]
    first = next((line for line in text.splitlines() if line.strip()), "")
    return _short(java[-1] if _STACK in text and java else first or type(error).__name__)


def _raised_text(match: re.Match[str], text: str) -> str:
    """The exception's text; of a list of problems, the first."""
    reason = match["text"]
    if reason.endswith(":"):
        reason += text[match.end() :].lstrip("\n").partition("\n")[0]
    return reason


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]}..."
