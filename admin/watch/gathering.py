"""The answers of one poll become its snapshot, node by node, in turns of a millisecond."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio

from admin.cluster.shapes import Latency
from admin.watch.node import Counted, Counters, Rates
from admin.watch.requests import ChannelMetrics, NodeMetrics, TopicMetrics
from admin.watch.snapshot import ChannelRow, NodeRow, Row, Snapshot, TopicRow
from admin.watch.vitals import Ages

__all__ = ["Gathering"]

# Topics and channels added per turn of the event loop: half a millisecond.
_ROWS_PER_TURN: Final = 100
# Quantiles of a latency that are kept: the highest, one in the middle, the lowest.
_MAX_QUANTILES: Final = 3
_MAX_SENT_QUANTILES: Final = 100


class Gathering:
    """Builds a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._added = 0
        # By topic and channel: the sum of latencies, and their count, by quantile.
        self._latencies: dict[tuple[str, str], dict[float, tuple[float, int]]] = {}

    async def add_silent(self, row: NodeRow, counters: Counters) -> None:
        """Add a node that did not answer; its topics and channels count as missing."""
        snapshot = self.snapshot
        snapshot.nodes[row.node] = row
        snapshot.total.missing_nodes += 1
        for topic in list(counters.topics):
            topic_row = self._topic_row(topic)
            topic_row.missing_nodes += 1
            for channel, held in counters.held(topic).items():
                topic_row.missing_messages += held
                snapshot.total.missing_messages += held
                self._added += 1
                if channel:
                    channel_row = self._channel_row(topic_row, channel)
                    channel_row.missing_nodes += 1
                    channel_row.missing_messages += held
            await self._give_turn()

    async def add_answer(
        self, row: NodeRow, stats: NodeMetrics, counters: Counters, now_s: float, ages: Ages | None
    ) -> tuple[int, int] | None:
        """Add the answer of a node, received at ``now_s`` (by the clock of ``counters``).

        ``ages`` is None if the node does not report ages. Returns what `Counters.end_answer` does.
        """
        snapshot = self.snapshot
        snapshot.nodes[row.node] = row
        row.up, row.health, row.start_time = True, stats.health, stats.start_time
        row.version, row.draining = stats.version or row.version, stats.draining
        row.nodes = 1
        counters.begin_answer(now_s, stats.start_time)
        for topic in stats.topics or ():
            topic_row = self._add_topic(row, topic, counters, ages)
            for channel in topic.channels or ():
                self._add_channel(row, topic_row, channel, counters, ages)
                await self._give_turn()
            await self._give_turn()
        lost = counters.end_answer()
        if row.rate_in is None and counters.known:
            row.rate_in = row.rate_out = row.rate_requeue = row.rate_timeout = 0.0
        _add_sums(snapshot.total, row)
        snapshot.total.nodes += 1
        return lost

    async def finish(self) -> Snapshot:
        """Complete the snapshot when all nodes were added."""
        for rows in (self.snapshot.nodes, self.snapshot.topics, self.snapshot.channels):
            for number, row in enumerate(rows.values()):
                _settle_age(row)
                if number % _ROWS_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
        _settle_age(self.snapshot.total)
        for number, (key, sums) in enumerate(self._latencies.items()):
            self.snapshot.latencies[key] = _quantiles(sums)
            if number % _ROWS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        return self.snapshot

    async def _give_turn(self) -> None:
        if self._added >= _ROWS_PER_TURN:
            self._added = 0
            await trio.lowlevel.checkpoint()

    def _topic_row(self, name: str) -> TopicRow:
        row = self.snapshot.topics.get(name)
        if row is None:
            row = self.snapshot.topics[name] = TopicRow(topic=name)
        return row

    def _channel_row(self, topic: TopicRow, name: str) -> ChannelRow:
        key = (topic.topic, name)
        row = self.snapshot.channels.get(key)
        if row is None:
            row = self.snapshot.channels[key] = ChannelRow(topic=topic.topic, channel=name)
            topic.channels += 1
        return row

    def _add_topic(
        self, node: NodeRow, metrics: TopicMetrics, counters: Counters, ages: Ages | None
    ) -> TopicRow:
        name = metrics.topic_name
        row = self._topic_row(name)
        row.nodes += 1
        row.depth += metrics.depth
        row.backend_depth += metrics.backend_depth
        row.messages += metrics.message_count
        row.nbytes += metrics.message_bytes
        row.paused = row.paused or metrics.paused
        self._add_latency((name, ""), metrics.e2e_processing_latency)
        left = metrics.message_count - metrics.depth
        age = _age_s(metrics.depth, left, ages, (name, ""))
        _add_age(row, age)
        _add_age(node, age)
        node.topics += 1
        node.depth += metrics.depth
        node.backend_depth += metrics.backend_depth
        node.messages += metrics.message_count
        counted = Counted(
            metrics.message_count,
            metrics.depth,
            depth=metrics.depth,
            backend_depth=metrics.backend_depth,
        )
        rates = counters.rates((name, ""), counted)
        if rates is not None:
            row.rate_in = (row.rate_in or 0.0) + rates.came
            node.rate_in = (node.rate_in or 0.0) + rates.came
            # Outgoing messages are counted at the channels.
            _add_rates(row, _NOTHING)
            _add_rates(node, _NOTHING)
        self._added += 1
        return row

    def _add_channel(
        self,
        node: NodeRow,
        topic: TopicRow,
        metrics: ChannelMetrics,
        counters: Counters,
        ages: Ages | None,
    ) -> None:
        key = (topic.topic, metrics.channel_name)
        row = self._channel_row(topic, metrics.channel_name)
        row.nodes += 1
        row.depth += metrics.depth
        row.backend_depth += metrics.backend_depth
        row.messages += metrics.message_count
        row.paused = row.paused or metrics.paused
        if metrics.depth and not metrics.client_count:
            row.unserved_node = row.unserved_node or node.node
            row.unserved_nodes += 1
            row.unserved_depth += metrics.depth
        self._add_latency(key, metrics.e2e_processing_latency)
        topic.channels_depth += metrics.depth
        node.channels += 1
        node.depth += metrics.depth
        node.backend_depth += metrics.backend_depth
        held = metrics.depth + metrics.in_flight_count + metrics.deferred_count
        age = _age_s(metrics.depth, metrics.message_count - held, ages, key)
        counted = Counted(
            metrics.message_count,
            held,
            metrics.requeue_count,
            metrics.timeout_count,
            metrics.finish_count,
            metrics.depth,
            metrics.backend_depth,
            metrics.in_flight_count,
            metrics.client_count,
        )
        rates = counters.rates(key, counted)
        if rates is not None:
            row.rate_in = (row.rate_in or 0.0) + rates.came
        for each in (row, topic, node):
            each.in_flight += metrics.in_flight_count
            each.deferred += metrics.deferred_count
            each.requeues += metrics.requeue_count
            each.timeouts += metrics.timeout_count
            each.clients += metrics.client_count
            if age:
                _add_age(each, age)
            if rates is not None:
                _add_rates(each, rates)
        self._added += 1

    def _add_latency(self, key: tuple[str, str], latency: Latency | None) -> None:
        if latency is None or latency.count <= 0 or not latency.percentiles:
            return
        sums = self._latencies.setdefault(key, {})
        for percentile in latency.percentiles[:_MAX_SENT_QUANTILES]:
            quantile = percentile.get("quantile", 0.0)
            total, count = sums.get(quantile, (0.0, 0))
            total += percentile.get("value", 0.0) * latency.count
            sums[quantile] = total, count + latency.count


def _quantiles(sums: Mapping[float, tuple[float, int]]) -> list[tuple[float, float]]:
    """The highest, the middle and the lowest quantile, with the mean of the nodes in seconds."""
    means = [(q, total / count / 1e9) for q, (total, count) in sorted(sums.items(), reverse=True)]
    if len(means) <= _MAX_QUANTILES:
        return means
    return [means[0], means[len(means) // 2], means[-1]]


_NOTHING: Final = Rates(0.0, 0.0, 0.0, 0.0)


def _add_rates(row: Row, rates: Rates) -> None:
    """Add all rates but the rate in."""
    row.rate_out = (row.rate_out or 0.0) + rates.finished
    row.rate_requeue = (row.rate_requeue or 0.0) + rates.requeued
    row.rate_timeout = (row.rate_timeout or 0.0) + rates.timed_out
    if rates.removed is not None:
        row.rate_removed = (row.rate_removed or 0.0) + rates.removed


def _age_s(depth: int, left: int, ages: Ages | None, key: tuple[str, str]) -> float | None:
    """The age for a queue; None: messages wait, and their age is not known.

    ``left`` of its messages have left it. An age is read once a minute; the message that had it
    may be gone.
    """
    if not depth:
        return 0.0
    age = None if ages is None else ages.get(key)
    return None if age is None or 0 < age.messages <= left else age.age_s


def _add_age(row: Row, age_s: float | None) -> None:
    if age_s:
        row.oldest_age_s = max(row.oldest_age_s or 0.0, age_s)


def _settle_age(row: Row) -> None:
    """A zero is true only if no message waits on any node; otherwise the age is unknown."""
    waiting = row.depth + (row.channels_depth if isinstance(row, TopicRow) else 0)
    if not row.oldest_age_s:
        row.oldest_age_s = None if waiting or row.missing_nodes else 0.0


def _add_sums(total: Row, row: Row) -> None:
    for name in ("depth", "backend_depth", "in_flight", "deferred", "messages", "requeues"):
        setattr(total, name, getattr(total, name) + getattr(row, name))
    total.timeouts += row.timeouts
    total.clients += row.clients
    for name in ("rate_in", "rate_out", "rate_requeue", "rate_timeout", "rate_removed"):
        if (rate := getattr(row, name)) is not None:
            setattr(total, name, (getattr(total, name) or 0.0) + rate)
    if row.oldest_age_s is not None:
        total.oldest_age_s = max(total.oldest_age_s or 0.0, row.oldest_age_s)
