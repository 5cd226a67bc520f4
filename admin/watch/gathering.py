"""The answers of one poll become its snapshot, node by node, a millisecond at a time."""

from __future__ import annotations

from typing import Final

import trio

from admin.watch.node import Ages, Counters, Rates
from admin.watch.requests import ChannelMetrics, NodeMetrics, TopicMetrics
from admin.watch.snapshot import ChannelRow, NodeRow, Row, Snapshot, TopicRow

__all__ = ["Gathering"]

# Topics and channels that are added before other tasks get their turn: half a millisecond.
_ADDED_MAX: Final = 100


class Gathering:
    """A snapshot in the making."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._added = 0

    async def add_silent(self, row: NodeRow, counters: Counters) -> None:
        """A node that did not answer: what it had when it last did is missing in the sums."""
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

    async def add(
        self, row: NodeRow, stats: NodeMetrics, counters: Counters, now_s: float, ages: Ages | None
    ) -> None:
        """Add what a node answered at ``now_s`` (of the clock of ``counters``).

        ``ages`` is None if the node does not tell them.
        """
        snapshot = self.snapshot
        snapshot.nodes[row.node] = row
        row.up, row.health, row.start_time = True, stats.health, stats.start_time
        row.version = stats.version or row.version
        row.nodes = 1
        counters.begin(now_s, stats.start_time)
        for topic in stats.topics or ():
            topic_row = self._add_topic(row, topic, counters, ages)
            for channel in topic.channels or ():
                self._add_channel(row, topic_row, channel, counters, ages)
                await self._give_turn()
            await self._give_turn()
        counters.end()
        if row.rate_in is None and counters.known:
            row.rate_in = row.rate_out = row.rate_requeue = row.rate_timeout = 0.0
        _add_sums(snapshot.total, row)
        snapshot.total.nodes += 1

    async def finish(self) -> Snapshot:
        """All nodes were added: what is known only then."""
        for rows in (self.snapshot.nodes, self.snapshot.topics, self.snapshot.channels):
            for number, row in enumerate(rows.values()):
                _settle_age(row)
                if number % _ADDED_MAX == 0:
                    await trio.lowlevel.checkpoint()
        _settle_age(self.snapshot.total)
        return self.snapshot

    async def _give_turn(self) -> None:
        if self._added >= _ADDED_MAX:
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
        self, node: NodeRow, found: TopicMetrics, counters: Counters, ages: Ages | None
    ) -> TopicRow:
        name = found.topic_name
        row = self._topic_row(name)
        row.nodes += 1
        row.depth += found.depth
        row.backend_depth += found.backend_depth
        row.messages += found.message_count
        row.nbytes += found.message_bytes
        row.paused = row.paused or found.paused
        age = _age_s(found.depth, ages, (name, ""))
        _add_age(row, age)
        _add_age(node, age)
        node.topics += 1
        node.depth += found.depth
        node.backend_depth += found.backend_depth
        node.messages += found.message_count
        rates = counters.rates((name, ""), found.message_count, found.depth)
        if rates is not None:
            row.rate_in = (row.rate_in or 0.0) + rates[0]
            node.rate_in = (node.rate_in or 0.0) + rates[0]
            # What leaves them is counted at their channels.
            _add_rates(row, _NOTHING)
            _add_rates(node, _NOTHING)
        self._added += 1
        return row

    def _add_channel(
        self,
        node: NodeRow,
        topic: TopicRow,
        found: ChannelMetrics,
        counters: Counters,
        ages: Ages | None,
    ) -> None:
        key = (topic.topic, found.channel_name)
        row = self._channel_row(topic, found.channel_name)
        row.nodes += 1
        row.depth += found.depth
        row.backend_depth += found.backend_depth
        row.messages += found.message_count
        row.paused = row.paused or found.paused
        age = _age_s(found.depth, ages, key)
        topic.channels_depth += found.depth
        node.channels += 1
        node.depth += found.depth
        node.backend_depth += found.backend_depth
        held = found.depth + found.in_flight_count + found.deferred_count
        rates = counters.rates(
            key, found.message_count, held, found.requeue_count, found.timeout_count
        )
        if rates is not None:
            row.rate_in = (row.rate_in or 0.0) + rates[0]
        for each in (row, topic, node):
            each.in_flight += found.in_flight_count
            each.deferred += found.deferred_count
            each.requeues += found.requeue_count
            each.timeouts += found.timeout_count
            each.clients += found.client_count
            if age:
                _add_age(each, age)
            if rates is not None:
                _add_rates(each, rates)
        self._added += 1


_NOTHING: Final[Rates] = (0.0, 0.0, 0.0, 0.0)


def _add_rates(row: Row, rates: Rates) -> None:
    """All but the rate in."""
    row.rate_out = (row.rate_out or 0.0) + rates[1]
    row.rate_requeue = (row.rate_requeue or 0.0) + rates[2]
    row.rate_timeout = (row.rate_timeout or 0.0) + rates[3]


def _age_s(depth: int, ages: Ages | None, key: tuple[str, str]) -> float | None:
    """None: something waits, and nobody tells for how long."""
    if not depth:
        return 0.0
    return None if ages is None else ages.get(key)


def _add_age(row: Row, age_s: float | None) -> None:
    if age_s:
        row.oldest_age_s = max(row.oldest_age_s or 0.0, age_s)


def _settle_age(row: Row) -> None:
    """A zero that came from nodes where nothing waits tells nothing of those where it does."""
    waiting = row.depth + (row.channels_depth if isinstance(row, TopicRow) else 0)
    if not row.oldest_age_s:
        row.oldest_age_s = None if waiting or row.missing_nodes else 0.0


def _add_sums(total: Row, row: Row) -> None:
    for name in ("depth", "backend_depth", "in_flight", "deferred", "messages", "requeues"):
        setattr(total, name, getattr(total, name) + getattr(row, name))
    total.timeouts += row.timeouts
    total.clients += row.clients
    for name in ("rate_in", "rate_out", "rate_requeue", "rate_timeout"):
        if (rate := getattr(row, name)) is not None:
            setattr(total, name, (getattr(total, name) or 0.0) + rate)
    if row.oldest_age_s is not None:
        total.oldest_age_s = max(total.oldest_age_s or 0.0, row.oldest_age_s)
