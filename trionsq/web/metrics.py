"""/metrics of our daemons: figures as Prometheus and OpenMetrics have them, and what sends them.

A daemon gathers figures in its event loop, a part at a time; text is made of them in a thread,
once a second at most, however many ask. The process's own figures are added here.
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
    """What a daemon gathered."""

    def metrics(self) -> Iterator[Metric]:
        """In prometheus-client's terms. Called in a thread, at a later moment."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name without ``_total``, type, and what it tells."""

    name: str
    kind: Literal["counter", "gauge"]
    tells: str


def counter(name: str, tells: str) -> Family:
    """A figure that only grows while the process lives. ``name`` is without ``_total``."""
    return Family(name, "counter", tells)


def gauge(name: str, tells: str) -> Family:
    """A figure that comes and goes."""
    return Family(name, "gauge", tells)


@dataclass(frozen=True, slots=True)
class Table:
    """Metrics that have their labels in common.

    Attributes:
        families: the columns.
        rows: labels, and a value for each column; None: there is none to be told.
    """

    families: Sequence[Family]
    rows: list[tuple[Labels, Sequence[float | None]]] = field(default_factory=list)

    def metrics(self) -> Iterator[Metric]:
        """One metric for each column."""
        for column, family in enumerate(self.families):
            metric = Metric(family.name, family.tells, family.kind)
            name = f"{family.name}_total" if family.kind == "counter" else family.name
            metric.samples = [
                Sample(name, dict(labels), value)
                for labels, values in self.rows
                if (value := values[column]) is not None
            ]
            yield metric


@dataclass(frozen=True, slots=True)
class HistogramMetrics:
    """What a histogram held when it was asked, without labels."""

    name: str
    tells: str
    bounds: Sequence[float]
    cumulative: Sequence[int]
    total: float

    @classmethod
    def of(cls, name: str, tells: str, histogram: Histogram) -> HistogramMetrics:
        """What ``histogram`` holds now."""
        return cls(name, tells, histogram.bounds, histogram.cumulative, histogram.total)

    def metrics(self) -> Iterator[Metric]:
        """The one metric."""
        metric = Metric(self.name, self.tells, "histogram")
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.cumulative, strict=True):
            metric.add_sample(f"{self.name}_bucket", {"le": bound}, count)
        metric.add_sample(f"{self.name}_count", {}, self.cumulative[-1])
        metric.add_sample(f"{self.name}_sum", {}, self.total)
        yield metric


@dataclass(frozen=True, slots=True)
class _BuildInfo:
    name: str

    def metrics(self) -> Iterator[Metric]:
        said = {
            "version": __version__,
            "nsq_version": NSQ_VERSION,
            "python_version": platform.python_version(),
        }
        yield InfoMetricFamily(f"{self.name}_build", "What runs.", said)


def build_info(daemon: str) -> MetricSet:
    """``<daemon>_build_info``: versions of this package, of the NSQ that it is like, of Python."""
    return _BuildInfo(daemon)


def _gc_pauses() -> MetricSet:
    return HistogramMetrics.of(
        "python_gc_duration_seconds",
        "Duration of a garbage collection, during which the process stands still.",
        gcpolicy.pauses_s,
    )


def gate_metrics(daemon: str, gate: Gate) -> list[MetricSet]:
    """The HTTP connections of a daemon, and what was refused."""
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


class _Gathered:
    """A collector, as prometheus-client wants it."""

    def __init__(self, figures: Iterable[MetricSet]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for figures in self._figures:
            yield from figures.metrics()


class MetricsPage:
    """GET /metrics of one daemon."""

    def __init__(self, gather: Callable[[], Awaitable[Sequence[MetricSet]]]) -> None:
        """``gather`` is to give other tasks their turn now and then."""
        self._gather = gather
        self._process = ProcessCollector(registry=None)
        self._one_at_a_time = trio.Lock()
        self._made_s = float("-inf")
        self._registry = CollectorRegistry(auto_describe=False)
        # By whether it is in OpenMetrics' form.
        self._made: dict[bool, bytes] = {}

    @property
    def endpoint(self) -> Endpoint:
        return "GET", "/metrics", self.answer

    async def answer(self) -> Response:
        """GET /metrics: in OpenMetrics' form if the Accept header has it, else in Prometheus'."""
        wanted = any(
            name.partition(";")[0].strip().lower() == _OPENMETRICS and quality > 0
            for name, quality in request.accept_mimetypes
        )
        body = await self.body(as_openmetrics=wanted)
        content_type = openmetrics.CONTENT_TYPE_LATEST if wanted else _TEXT_TYPE
        return Response(body, 200, content_type=content_type)

    async def body(self, *, as_openmetrics: bool = False) -> bytes:
        """The page, up to a second old."""
        async with self._one_at_a_time:
            if trio.current_time() - self._made_s >= _CACHED_S:
                figures = await self._gather()
                self._registry = CollectorRegistry(auto_describe=False)
                self._registry.register(_Gathered([*figures, _gc_pauses()]))
                self._registry.register(self._process)
                self._made = {}
                self._made_s = trio.current_time()
            if as_openmetrics not in self._made:
                form = openmetrics.generate_latest if as_openmetrics else exposition.generate_latest
                self._made[as_openmetrics] = await trio.to_thread.run_sync(form, self._registry)
            return self._made[as_openmetrics]
