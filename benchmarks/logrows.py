"""What is measured of the log engine, beside what it is compared with: see `onlog`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from benchmarks.rows import Metric, Row, Run

__all__ = ["LOG_ROWS"]


def _rate(run: Run) -> float:
    return float(run["timed_messages"] / run["timed_seconds"])


def _of(name: str) -> Callable[[Run], float]:
    return lambda run: _rate(run) / _rate(run["beside"][name])


def _against(name: str, title: str, target: float, what: str = "memory", **fields: Any) -> Row:
    """Publishers, or with ``preload`` consumers, on the log and on what it is compared with."""
    scenario = "consume" if fields.get("preload") else "publish"
    metrics = (
        Metric("rate", "msg/s", _rate),
        Metric(f"of-{what}", "times", _of(what), target, absolute=True),
    )
    procedure = "log-topics" if what == "one-topic" else f"log-{what}"
    return Row(
        f"log-{name}", title, scenario, metrics=metrics, procedure=procedure, floor=False,
        **{"pilot": 4_000, **fields},
    )  # fmt: skip


def _figure(name: str, scale: float) -> Callable[[Run], float]:
    return lambda run: float(run[name] * scale)


_CONSUMERS: Final = {"consumers": 2, "rdy": 2500}

LOG_ROWS: Final = (
    _against(
        "pub-sync-1", "PUB, wait for OK, 1 connection", 0.6, "loop", options={"publishers": 1}
    ),
    *(
        _against(
            f"pub-sync-{count}",
            f"PUB, wait for OK, {count} connections",
            0.6,
            options={"publishers": count},
        )
        for count in (50, 200)
    ),
    _against(
        "pub-pipelined",
        "PUB, 2 connections x 100 under way",
        0.4,
        options={"publishers": 2, "window": 100},
    ),
    _against(
        "mpub",
        "MPUB 200 x 200 B, 2 connections",
        0.25,
        options={"publishers": 2, "batch": 200},
    ),
    _against(
        "topics-50",
        "PUB, wait for OK, 50 connections to 50 topics",
        0.7,
        "one-topic",
        options={"publishers": 50, "topics": 50},
    ),
    _against(
        "consume",
        "consume from memory, 2 connections at RDY 2500",
        0.8,
        options=_CONSUMERS,
        preload=True,
        pilot=20_000,
        most=200_000,
    ),
    _against(
        "consume-cold",
        "consume after a restart, 2 connections at RDY 2500",
        0.5,
        options=_CONSUMERS,
        preload=True,
        pilot=20_000,
        most=600_000,
        layer="cold",
    ),
    Row(
        "log-read",
        "GET /topic/log after a restart",
        "consume",
        _CONSUMERS,
        (
            Metric("rate", "msg/s", _rate),
            Metric("of-consume", "times", _of("consume"), 0.5, absolute=True),
            Metric("lines", "msg/s", lambda run: _rate(run["lines"])),
        ),
        preload=True,
        pilot=20_000,
        most=600_000,
        procedure="log-read",
        floor=False,
    ),
    Row(
        "log-behind",
        "a fast channel beside one with 10,000,000 behind",
        "pubsub",
        {"publishers": 2, "consumers": 2, "rdy": 2500, "batch": 200, "ahead": 8_000},
        (
            Metric("kept", "of alone", lambda run: _rate(run) / _rate(run["alone"]), 0.9,
                   absolute=True),
            Metric("behind", "msg/s", _rate),
            Metric("alone", "msg/s", lambda run: _rate(run["alone"])),
            Metric("written", "of alone", lambda run: _written(run) / _written(run["alone"]),
                   more_is_better=False),
        ),
        pilot=40_000,
        procedure="log-behind",
        backlog=10_000_000,
        quick_backlog=100_000,
        floor=False,
    ),
    Row(
        "log-start",
        "start with 10,000,000 messages",
        "first",
        {"consumers": 1, "rdy": 1},
        (
            Metric("answers", "s", _figure("answered_seconds", 1), 2.0, more_is_better=False,
                   absolute=True),
            Metric("delivers", "s", _figure("timed_seconds", 1), more_is_better=False),
            Metric("cpu", "s", _figure("cpu_seconds", 1), more_is_better=False),
            Metric("resident", "MB", _figure("resident_after", 1e-6), 200, more_is_better=False,
                   absolute=True),
        ),
        messages=10_000_000,
        quick_messages=50_000,
        procedure="log-start",
        most_repeats=1,
        floor=False,
    ),
    Row(
        "log-deferred",
        "1,000,000 deferred messages, 20,000 of them due a second",
        "publish",
        {"lead": 120},
        (
            Metric("rate", "msg/s", _rate),
            Metric("resident", "MB", _figure("resident_after", 1e-6), 150, more_is_better=False,
                   absolute=True),
            Metric("late-p99", "ms", lambda run: run["late_us"]["p99"] / 1e3, 200,
                   more_is_better=False, absolute=True),
            Metric("late-most", "ms", lambda run: run["late_us"]["max"] / 1e3,
                   more_is_better=False),
        ),
        messages=1_000_000,
        quick_messages=20_000,
        quick_options={"lead": 4},
        procedure="log-deferred",
        most_repeats=1,
        floor=False,
    ),
)  # fmt: skip
"""With ``--storage=log --durability=always``."""


def _written(run: Run) -> float:
    return float(run["written_bytes"] / run["messages"])
