"""The metrics of nsqlookupd at /metrics; docs/metrics.md explains each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lookupd.registry import Registry
from lookupd.turns import Turns
from trionsq.histogram import Histogram
from trionsq.web.gate import Gate
from trionsq.web.metrics import (
    HistogramMetrics,
    MetricSet,
    MetricsPage,
    Table,
    build_info,
    gate_metrics,
    gauge,
)

__all__ = ["metrics_page"]

_PROCESS: Final = (
    gauge("nsqlookupd_topics", "Topics, with or without producers."),
    gauge("nsqlookupd_producers", "Connections of nsqds that have identified themselves."),
    gauge("nsqlookupd_active_producers", "Of these, those that pinged lately."),
)
_TOPIC: Final = (
    gauge("nsqlookupd_topic_producers", "Nsqds that a lookup of the topic tells of."),
    gauge("nsqlookupd_topic_channels", "Channels."),
)


def metrics_page(
    registry: Registry, now_ns: Callable[[], int], loop_lag_s: Histogram, gate: Gate
) -> MetricsPage:
    """/metrics of ``registry``; ``now_ns`` is the clock that its times are of."""

    async def gather() -> Sequence[MetricSet]:
        topics, turns = Table(_TOPIC), Turns()
        names = registry.topics()
        for name in names:
            await turns.touch()
            producers = 0
            for producer in registry.lookup(name, now_ns()):
                await turns.touch()
                producers += producer is not None
            topics.rows.append(({"topic": name}, [producers, registry.channel_count(name)]))
        active = 0
        for producer in registry.active_producers(now_ns()):
            await turns.touch()
            active += producer is not None
        return [
            build_info("nsqlookupd"),
            Table(_PROCESS, [({}, [len(names), registry.producer_count, active])]),
            HistogramMetrics.of(
                "nsqlookupd_event_loop_lag_seconds",
                "How much later than it wanted a task woke up, sampled twice a second.",
                loop_lag_s,
            ),
            *gate_metrics("nsqlookupd", gate),
            topics,
        ]

    return MetricsPage(gather)
