"""Metrics of queries, from the reports that Spark makes."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from pipelines.metrics import QueryMetrics
from tests.deploy.test_monitoring import panels


def report(rows: int, **metrics: float) -> Any:
    source = {"latestOffset": json.dumps({"lsn": 5} | metrics)}
    fields = {
        "name": "orders",
        "id": "i",
        "runId": "r",
        "numInputRows": rows,
        "batchDuration": 1500,
        "durationMs": {"addBatch": 900} if rows else {"latestOffset": 3},
        # The second one is another's.
        "sources": [source, {"latestOffset": "7"}],
    }
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(fields)))


def test_reports_become_metrics() -> None:
    """Rows and microbatches are counted, the source's own metrics shown while the query runs."""
    registry = CollectorRegistry()
    metrics = QueryMetrics(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"nsq_query_{name}", {"query": "orders"} | labels)

    metrics.onQueryStarted(SimpleNamespace(id="i", runId="r", name="orders"))  # type: ignore[arg-type]
    assert (value("running"), value("failures_total")) == (1, 0)
    metrics.onQueryProgress(report(100, backlog=7, lagSeconds=2.5, inFlight=3))
    metrics.onQueryProgress(report(50, backlog=8, lagSeconds=3.5, paused=True))
    metrics.onQueryProgress(report(0, backlog=9))
    assert (value("rows_total"), value("batches_total"), value("batch_seconds")) == (150, 2, 1.5)
    assert value("backlog_messages", source="0") == 9
    assert value("lag_seconds", source="0") == 3.5
    assert value("paused", source="0") == 1
    assert value("backlog_messages", source="1") is None
    ended = SimpleNamespace(id="i", runId="r", exception="no space left")
    metrics.onQueryTerminated(ended)  # type: ignore[arg-type]
    assert (value("running"), value("failures_total"), value("rows_total")) == (0, 1, 150)
    assert value("backlog_messages", source="0") is None


def test_the_board_shows_metrics_that_there_are() -> None:
    """Each name on the board is one of ours."""
    registry = CollectorRegistry()
    QueryMetrics(registry)
    there = {metric.name for metric in registry.collect()}
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    shown = {name for text in expressions for name in re.findall(r"\bnsq_query_[a-z_]+\b", text)}
    assert len(shown) >= 4
    assert {name.removesuffix("_total") for name in shown} <= there
