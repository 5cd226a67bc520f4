"""Repeated lines of a receiver's log."""

from __future__ import annotations

import logging

from pipelines.receiver.loglines import RepeatFilter


def record(text: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("trionsq.client", level, "", 0, text, (), None)


def test_a_line_comes_once_a_minute_and_says_how_often_it_came() -> None:
    """Lines of several connections, and of several messages, are one line."""
    now = [0.0]
    repeats = RepeatFilter(lambda: now[0])
    failed = "h:4150: E_FIN_FAILED FIN {} failed ID not in flight"
    assert repeats.filter(record(failed.format("0123456789abcdef")))
    assert not repeats.filter(record(failed.format("fedcba9876543210")))
    assert repeats.filter(record("t:c: h:4150: refused"))
    assert not repeats.filter(record("t:c: h:4150: refused"))
    assert repeats.filter(record("t:c: h2:4150: refused"))
    assert repeats.filter(record("each", logging.INFO))
    assert repeats.filter(record("each", logging.INFO))
    now[0] = 60.0
    later = record(failed.format("1111111111111111"))
    assert repeats.filter(later)
    assert later.getMessage().endswith("in flight (1 times more before)")
