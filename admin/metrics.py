"""nsqadmin's own metrics at /metrics; docs/metrics.md explains each.

The metrics of the cluster are at the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from admin.dashboard import Dashboard
from trionsq.web.app import Endpoint
from trionsq.web.metrics import (
    HistogramMetrics,
    MetricSet,
    MetricsPage,
    Table,
    build_info,
    counter,
    gauge,
)

__all__ = ["endpoints"]

_PROCESS: Final = (
    counter("nsqadmin_polls", "Polls of the whole cluster."),
    gauge("nsqadmin_poll_duration_seconds", "How long the last of these took."),
    gauge("nsqadmin_viewers", "Streams of events to browsers, and pages that wait for a poll."),
    counter("nsqadmin_upstream_requests", "Requests to nodes."),
    counter("nsqadmin_upstream_failures", "Of these, those without a good answer."),
    gauge("nsqadmin_upstream_requests_under_way", "Requests to nodes that wait for an answer."),
    counter("nsqadmin_notifications_dropped", "Notifications given up because too many waited."),
)


def endpoints(dashboard: Dashboard) -> Iterable[Endpoint]:
    """GET /metrics."""

    async def gather() -> Sequence[MetricSet]:
        figures: list[MetricSet] = [
            build_info("nsqadmin"),
            Table(_PROCESS, [({}, _values(dashboard))]),
        ]
        if dashboard.loop_lag_s is not None:
            figures.append(
                HistogramMetrics.of(
                    "nsqadmin_event_loop_lag_seconds",
                    "How much later than it wanted a task woke up, sampled twice a second.",
                    dashboard.loop_lag_s,
                )
            )
        return figures

    return [MetricsPage(gather).endpoint]


def _values(dashboard: Dashboard) -> Sequence[float | None]:
    snapshot, upstream = dashboard.poller.snapshot, dashboard.upstream
    return [
        snapshot.sequence if snapshot is not None else 0,
        snapshot.poll_s if snapshot is not None else None,
        dashboard.poller.viewers,
        upstream.asked,
        upstream.failed,
        upstream.under_way,
        dashboard.notify.dropped if dashboard.notify is not None else None,
    ]
