"""/metrics of our daemons, in the formats of Prometheus and OpenMetrics.

A daemon gathers its metrics in the event loop, in turns. A thread makes text of them, at most once
a second however many requests come. The metrics of the process are added here.
"""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import trio
from prometheus_client import CollectorRegistry, ProcessCollector, exposition
from prometheus_client.metrics_core import InfoMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Sample
from quart import Response, request

from trionsq import NSQ_VERSION, __version__
from trionsq.daemon import gcpolicy
from trionsq.histogram import Histogram
from trionsq.web.app import Endpoint
from trionsq.web.gate import Gate

__all__ = ["Family", "HistogramMetrics", "Labels", "MetricsPage", "Table", "build_info", "counter",
           "gate_metrics", "gauge"]  # fmt: skip

Labels = Mapping[str, str]

_OPENMETRICS: Final = "application/openmetrics-text"
_TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_CACHED_S: Final = 1.0


class MetricSet(Protocol):
    """Metrics that a daemon has gathered."""

    def metrics(self) -> Iterator[Metric]:
        """Return prometheus-client's metrics. Called later, in a thread."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name without ``_total``, its type and its help text."""

    name: str
    kind: Literal["counter", "gauge"]
    help_text: str


def counter(name: str, help_text: str) -> Family:
    """Return a metric that only grows while the process lives; ``name`` without ``_total``."""
    return Family(name, "counter", help_text)


def gauge(name: str, help_text: str) -> Family:
    """Return a metric that rises and falls."""
    return Family(name, "gauge", help_text)


@dataclass(frozen=True, slots=True)
class Table:
    """Metrics with the same labels.

    Attributes:
        families: the columns.
        rows: labels, and a value for each column; None: no value.
    """

    families: Sequence[Family]
    rows: list[tuple[Labels, Sequence[float | None]]] = field(default_factory=list)

    def metrics(self) -> Iterator[Metric]:
        """Yield one metric for each column."""
        for column, family in enumerate(self.families):
            metric = Metric(family.name, family.help_text, family.kind)
            name = f"{family.name}_total" if family.kind == "counter" else family.name
            metric.samples = [
                Sample(name, dict(labels), value)
                for labels, values in self.rows
                if (value := values[column]) is not None
            ]
            yield metric


@dataclass(frozen=True, slots=True)
class HistogramMetrics:
    """A copy of a histogram, without labels."""

    name: str
    help_text: str
    bounds: Sequence[float]
    cumulative: Sequence[int]
    total: float

    @classmethod
    def of(cls, name: str, help_text: str, histogram: Histogram) -> HistogramMetrics:
        """Copy ``histogram``."""
        return cls(name, help_text, histogram.bounds, histogram.cumulative, histogram.total)

    def metrics(self) -> Iterator[Metric]:
        """Yield the one metric."""
        metric = Metric(self.name, self.help_text, "histogram")
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.cumulative, strict=True):
            metric.add_sample(f"{self.name}_bucket", {"le": bound}, count)
        metric.add_sample(f"{self.name}_count", {}, self.cumulative[-1])
        metric.add_sample(f"{self.name}_sum", {}, self.total)
        yield metric


@dataclass(frozen=True, slots=True)
class _BuildInfo:
    name: str

    def metrics(self) -> Iterator[Metric]:
        versions = {
            "version": __version__,
            "nsq_version": NSQ_VERSION,
            "python_version": platform.python_version(),
        }
        yield InfoMetricFamily(f"{self.name}_build", "What runs.", versions)


def build_info(daemon: str) -> MetricSet:
    """Return ``<daemon>_build_info``: the versions of this package, of NSQ and of Python."""
    return _BuildInfo(daemon)


def _gc_pauses() -> MetricSet:
    return HistogramMetrics.of(
        "python_gc_duration_seconds",
        "Duration of a garbage collection, during which the process stands still.",
        gcpolicy.pauses_s,
    )


def gate_metrics(daemon: str, gate: Gate) -> list[MetricSet]:
    """Return the metrics of a daemon's HTTP connections and refusals."""
    limit = gate.connections
    connections: list[tuple[Labels, Sequence[float | None]]] = [({}, [limit.open, limit.refused])]
    reasons: list[tuple[Labels, Sequence[float | None]]] = [
        ({"reason": reason}, [count]) for reason, count in gate.sites.refused_by.items()
    ]
    return [
        Table(
            [
                gauge(f"{daemon}_http_connections", "HTTP connections."),
                counter(
                    f"{daemon}_http_connections_refused",
                    "HTTP connections closed at once, by --max-http-connections.",
                ),
            ],
            connections,
        ),
        Table(
            [
                counter(
                    f"{daemon}_http_requests_refused",
                    "Requests that a browser sent on behalf of another site's page, "
                    "by what gave them away.",
                )
            ],
            reasons,
        ),
    ]


class _Collector:
    """A collector for prometheus-client."""

    def __init__(self, metric_sets: Iterable[MetricSet]) -> None:
        self._metric_sets = metric_sets

    def collect(self) -> Iterator[Metric]:
        for metric_set in self._metric_sets:
            yield from metric_set.metrics()


class MetricsPage:
    """GET /metrics of one daemon."""

    def __init__(self, gather: Callable[[], Awaitable[Sequence[MetricSet]]]) -> None:
        """``gather`` has to let other tasks run now and then."""
        self._gather = gather
        self._process = ProcessCollector(registry=None)
        self._one_at_a_time = trio.Lock()
        self._gathered_s = float("-inf")
        self._registry = CollectorRegistry(auto_describe=False)
        # Key: whether the text is in the OpenMetrics format.
        self._texts: dict[bool, bytes] = {}

    @property
    def endpoint(self) -> Endpoint:
        return "GET", "/metrics", self.answer

    async def answer(self) -> Response:
        """GET /metrics: as OpenMetrics if the Accept header names it, else as Prometheus."""
        as_openmetrics = any(
            name.partition(";")[0].strip().lower() == _OPENMETRICS and quality > 0
            for name, quality in request.accept_mimetypes
        )
        body = await self.body(as_openmetrics=as_openmetrics)
        content_type = openmetrics.CONTENT_TYPE_LATEST if as_openmetrics else _TEXT_TYPE
        return Response(body, 200, content_type=content_type)

    async def body(self, *, as_openmetrics: bool = False) -> bytes:
        """Return the page, at most a second old."""
        async with self._one_at_a_time:
            if trio.current_time() - self._gathered_s >= _CACHED_S:
                metric_sets = await self._gather()
                self._registry = CollectorRegistry(auto_describe=False)
                self._registry.register(_Collector([*metric_sets, _gc_pauses()]))
                self._registry.register(self._process)
                self._texts = {}
                self._gathered_s = trio.current_time()
            if as_openmetrics not in self._texts:
                form = openmetrics.generate_latest if as_openmetrics else exposition.generate_latest
                self._texts[as_openmetrics] = await trio.to_thread.run_sync(form, self._registry)
            return self._texts[as_openmetrics]
