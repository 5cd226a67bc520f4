"""Prometheus metrics of Spark's queries: `serve_metrics`, or `QueryMetrics` with a registry.

::

    with serve_metrics(spark, 9404):
        query.awaitTermination()

Spark reports a query's progress after each microbatch, and every 10 s without one. Python sources
have no ``sources[].metrics`` there; ours put theirs into ``latestOffset``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["QueryMetrics", "serve_metrics", "source_metrics"]

# By the name that our sources report.
_OF_SOURCE: Final = {
    "backlog": ("nsq_query_backlog_messages", "Messages that are in no microbatch yet"),
    "backlogBytes": ("nsq_query_backlog_bytes", "The same in bytes, from the mean size"),
    "lagSeconds": ("nsq_query_lag_seconds", "Age of the oldest message in no microbatch yet"),
    "inFlight": ("nsq_query_in_flight_messages", "Messages received and not stored yet"),
    "connections": ("nsq_query_connections", "Connections of receivers to nsqds"),
    "paused": ("nsq_query_paused", "Whether the log is full, so that nothing is received"),
    "walBytes": ("nsq_query_wal_bytes", "Size of the receivers' logs"),
    "nsqdsAway": ("nsq_query_nsqds_away", "nsqds that do not answer (mode=log)"),
}


class QueryMetrics(StreamingQueryListener):
    """Metrics of all queries of a session, for ``spark.streams.addListener``.

    Labels: ``query``, the query's name, else its id; ``source``, its number in the query. A query
    that ends keeps its counters, and loses its other metrics.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Args:
            registry: gets the metrics.

        Raises:
            ValueError: it has them already: make one of these objects for each registry.
        """

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, ("query", *labels), registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ("query",), registry=registry)

        self._running = gauge("nsq_query_running", "Whether the query runs")
        self._failures = counter("nsq_query_failures", "Ends with an error")
        self._rows = counter("nsq_query_rows", "Rows read")
        self._batches = counter("nsq_query_batches", "Complete microbatches")
        self._batch_s = gauge("nsq_query_batch_seconds", "Duration of the last microbatch")
        self._reported_s = gauge("nsq_query_report_timestamp_seconds", "When Spark last reported")
        self._of_source = {
            key: gauge(name, text, "source") for key, (name, text) in _OF_SOURCE.items()
        }
        self._names: dict[str, str] = {}
        self._sources: dict[str, set[tuple[str, str]]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<QueryMetrics queries={len(self._names)}>"

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query starts."""
        with self._lock:
            name = self._names[str(event.runId)] = event.name or str(event.id)
            self._running.labels(name).set(1)
            self._failures.labels(name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Spark reports a microbatch, or that there was none for a while."""
        report = json.loads(event.progress.json)
        name = report.get("name") or str(report["id"])
        with self._lock:
            self._names.setdefault(str(report["runId"]), name)
            self._running.labels(name).set(1)
            self._reported_s.labels(name).set(time.time())
            # Reports about an idle query have no duration of a batch.
            if "addBatch" in report.get("durationMs", {}):
                self._batches.labels(name).inc()
                self._rows.labels(name).inc(report.get("numInputRows", 0))
                self._batch_s.labels(name).set(report.get("batchDuration", 0) / 1000)
            for number, source in enumerate(report.get("sources", ())):
                for key, value in source_metrics(source).items():
                    if key in self._of_source:
                        self._of_source[key].labels(name, str(number)).set(float(value))
                        self._sources.setdefault(name, set()).add((key, str(number)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """A query has nothing to do."""
        with self._lock:
            if name := self._names.get(str(event.runId)):
                self._reported_s.labels(name).set(time.time())

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query ends."""
        with self._lock:
            name = self._names.pop(str(event.runId), str(event.id))
            self._running.labels(name).set(0)
            if event.exception:
                self._failures.labels(name).inc()
            for key, number in self._sources.pop(name, ()):
                self._of_source[key].remove(name, number)


def source_metrics(source: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a source of ours in a progress report; empty for others, and at first."""
    offset = source.get("latestOffset")
    try:
        metrics = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:  # another source's
        return {}
    return metrics if isinstance(metrics, dict) and "backlog" in metrics else {}


@contextmanager
def serve_metrics(spark: SparkSession, port: int, address: str = "0.0.0.0") -> Iterator[int]:
    """Serve /metrics of all queries of a session while the block lasts.

    Args:
        spark: the session; its queries may have started before, or start later.
        port: of the HTTP server; 0: a free one.
        address: where it listens.

    Yields:
        The port.

    Raises:
        OSError: the address can't be listened on.
    """
    registry = CollectorRegistry()
    listener = QueryMetrics(registry)
    server, thread = start_http_server(port, address, registry)
    try:
        spark.streams.addListener(listener)
        try:
            yield server.server_port
        finally:
            spark.streams.removeListener(listener)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
