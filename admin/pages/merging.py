"""A topic or channel on each node and in total. Pure.

Sums over nodes, paused if it is paused on any node, latencies averaged by count. Spec: nsqadmin,
section 3 (shapes).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from markupsafe import Markup

from admin.cluster.shapes import ChannelStats, ClientStats, Latency, NodeStats, Producer
from admin.upstream import UpstreamError
from admin.watch.node import Counted, total_held

__all__ = ["ClusterView", "QueueMetrics", "channel_view", "topic_view"]

_MAX_QUANTILES: Final = 10


@dataclass(slots=True)
class QueueMetrics:
    """A topic or channel on one node, or a channel on all nodes.

    ``name`` is of a channel, ``node`` and ``hostname`` of a node; ``error``: why it did not answer.
    Then ``last_seen_s`` is its last answer (seconds since 1970), and ``last_held`` the number of
    messages at that time; None if unknown. ``is_old``: the figures are of that answer.
    ``latencies`` are in nanoseconds, one for each of `ClusterView.quantiles`.
    """

    name: str = ""
    node: str = ""
    hostname: str = ""
    error: str = ""
    last_seen_s: float | None = None
    last_held: int | None = None
    is_old: bool = False
    depth: int = 0
    backend_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeues: int = 0
    timeouts: int = 0
    messages: int = 0
    clients: int = 0
    channels: int = 0
    paused: bool = False
    latencies: list[float | None] = field(default_factory=list)
    # from the poller
    rate_out: float | None = None
    spark: Markup = field(default_factory=Markup)

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth

    def note_last(self, at_s: float, figures: Mapping[str, Counted], channel: str = "") -> None:
        """Take over what a silent node had of the topic, or of its channel, when it answered.

        ``figures`` are by channel; ``""`` is the topic itself.
        """
        last = figures.get(channel)
        self.last_seen_s = at_s
        self.is_old = last is not None
        self.last_held = (last.held if last else 0) if channel else total_held(figures)
        if last is not None:
            self.depth, self.backend_depth = last.depth, last.backend_depth
            self.in_flight, self.clients = last.in_flight, last.clients
            self.deferred = max(0, last.held - last.depth - last.in_flight)
            self.messages, self.requeues = last.messages, last.requeues
            self.timeouts, self.channels = last.timeouts, len(figures) - 1


@dataclass(slots=True)
class ClusterView(QueueMetrics):
    """A topic or channel on all nodes that answered.

    Of a topic, ``depth`` is its own queue; ``channels_depth`` is that of its channels, and in
    flight and deferred are theirs, too.
    """

    nodes: list[QueueMetrics] = field(default_factory=list)
    channels_list: list[QueueMetrics] = field(default_factory=list)
    channels_depth: int = 0
    quantiles: list[float] = field(default_factory=list)
    clients_list: list[tuple[QueueMetrics, ClientStats]] = field(default_factory=list)

    @property
    def silent(self) -> list[QueueMetrics]:
        """The nodes that did not answer and are not in the sums."""
        return [node for node in self.nodes if node.error]

    @property
    def is_unknown(self) -> bool:
        """Whether no node answered, so that the sums are unknown."""
        return bool(self.nodes) and len(self.silent) == len(self.nodes)


Answers = Mapping[str, NodeStats | UpstreamError]


def topic_view(topic: str, producers: Iterable[Producer], answers: Answers) -> ClusterView:
    """A topic; its ``channels_list`` is sorted by name, its ``nodes`` as ``producers``."""
    view = ClusterView(name=topic)
    latencies: list[tuple[QueueMetrics, list[Latency]]] = []
    all_latencies: list[Latency] = []
    by_name: dict[str, list[ChannelStats]] = {}
    for node, stats in _nodes(producers, answers, view):
        for topic_stats in stats.topics or ():
            if topic_stats.topic_name != topic:
                continue
            node.depth, node.backend_depth = topic_stats.depth, topic_stats.backend_depth
            node.messages, node.paused = topic_stats.message_count, topic_stats.paused
            node.channels = len(topic_stats.channels or ())
            _add(view, node)
            if topic_stats.e2e_processing_latency is not None:
                latencies.append((node, [topic_stats.e2e_processing_latency]))
                all_latencies.append(topic_stats.e2e_processing_latency)
            for channel in topic_stats.channels or ():
                by_name.setdefault(channel.channel_name, []).append(channel)
    for name, entries in sorted(by_name.items()):
        summed = _summed(name, entries)
        view.channels_list.append(summed)
        view.channels_depth += summed.depth
        view.in_flight += summed.in_flight
        view.deferred += summed.deferred
        latencies.append((summed, _latencies(entries)))
    _set_latencies(view, [*latencies, (view, all_latencies)])
    return view


def channel_view(
    topic: str, channel: str, producers: Iterable[Producer], answers: Answers
) -> ClusterView:
    """A channel; nodes without it are left out."""
    view = ClusterView(name=channel)
    latencies: list[tuple[QueueMetrics, list[Latency]]] = []
    entries: list[ChannelStats] = []
    found_on: list[QueueMetrics] = []
    for node, stats in _nodes(producers, answers, view):
        for entry in _channels(stats, topic, channel):
            summed = _summed(channel, [entry])
            summed.node, summed.hostname = node.node, node.hostname
            found_on.append(summed)
            entries.append(entry)
            latencies.append((summed, _latencies([entry])))
            view.clients_list += [(summed, client) for client in entry.clients or ()]
    silent = [node for node in view.nodes if node.error]
    view.nodes = [*found_on, *silent]
    for node in found_on:
        _add(view, node)
    _set_latencies(view, [*latencies, (view, _latencies(entries))])
    return view


def _channels(stats: NodeStats, topic: str, channel: str) -> Iterable[ChannelStats]:
    for topic_stats in stats.topics or ():
        if topic_stats.topic_name == topic:
            for entry in topic_stats.channels or ():
                if entry.channel_name == channel:
                    yield entry


def _nodes(
    producers: Iterable[Producer], answers: Answers, view: ClusterView
) -> Iterable[tuple[QueueMetrics, NodeStats]]:
    for producer in producers:
        answer = answers.get(producer.node)
        node = QueueMetrics(node=producer.node, hostname=producer.hostname)
        view.nodes.append(node)
        if isinstance(answer, NodeStats):
            yield node, answer
        else:
            node.error = str(answer or "no answer")


_SUMMED: Final = (
    "depth",
    "backend_depth",
    "in_flight",
    "deferred",
    "requeues",
    "timeouts",
    "messages",
    "clients",
)


def _add(to: QueueMetrics, figures: QueueMetrics) -> None:
    for name in _SUMMED:
        setattr(to, name, getattr(to, name) + getattr(figures, name))
    to.paused = to.paused or figures.paused


def _summed(name: str, entries: Iterable[ChannelStats]) -> QueueMetrics:
    figures = QueueMetrics(name=name)
    for entry in entries:
        one = QueueMetrics(
            depth=entry.depth,
            backend_depth=entry.backend_depth,
            in_flight=entry.in_flight_count,
            deferred=entry.deferred_count,
            requeues=entry.requeue_count,
            timeouts=entry.timeout_count,
            messages=entry.message_count,
            clients=entry.client_count,
            paused=entry.paused,
        )
        _add(figures, one)
    return figures


def _latencies(entries: Iterable[ChannelStats]) -> list[Latency]:
    return [e.e2e_processing_latency for e in entries if e.e2e_processing_latency is not None]


def _set_latencies(
    view: ClusterView, sources: Sequence[tuple[QueueMetrics, list[Latency]]]
) -> None:
    quantiles = {
        percentile["quantile"]
        for _, latencies in sources
        for latency in latencies
        for percentile in latency.percentiles or ()
        if math.isfinite(percentile.get("quantile", math.nan))
    }
    view.quantiles = sorted(quantiles, reverse=True)[:_MAX_QUANTILES]
    everyone = [*view.nodes, *view.channels_list, view]
    for figures in everyone:
        figures.latencies = [None] * len(view.quantiles)
    for figures, latencies in sources:
        figures.latencies = [_average(latencies, quantile) for quantile in view.quantiles]


def _average(latencies: Iterable[Latency], quantile: float) -> float | None:
    count, total = 0, 0.0
    for latency in latencies:
        for percentile in latency.percentiles or ():
            if percentile.get("quantile") == quantile and latency.count > 0:
                count += latency.count
                total += percentile.get("value", 0.0) * latency.count
    return total / count if count else None
