"""The task that pushes metrics to statsd by UDP, every --statsd-interval.

A statsd that is gone, slow or unknown to DNS costs a log line a minute, never more: nothing is
kept for it but the totals of the last push. Names are not escaped, so a topic ``a.channel.b``
looks like a channel of a topic ``a``, as with the original; their totals are kept apart all the
same.

Spec: nsqd-internals, section 8.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import trio

from trionsq.broker.defects import Defects
from trionsq.broker.options import NsqdOptions
from trionsq.broker.runtime import ListeningPorts
from trionsq.broker.statistics import (
    ChannelRow,
    StatsFilter,
    StatsSource,
    TopicRow,
    memory_metrics,
    statistics,
)
from trionsq.broker.stats_types import ChannelStats, Latency, MemoryMetrics, TopicStats
from trionsq.durations import SECOND_NS
from trionsq.hostport import format_address, split_address
from trionsq.wire.names import is_ephemeral

__all__ = [
    "Counters",
    "DatagramSocket",
    "Datagrams",
    "MetricSource",
    "Statsd",
    "StatsdMetric",
    "channel_metrics",
    "connect_udp",
    "counters",
    "lines",
    "prefix_of",
    "process_metrics",
    "statsd_prefix",
    "topic_metrics",
]

log = logging.getLogger("trionsq")

# A push is spread over the interval less this time, which is why the interval must be longer.
_SPARE_S: Final = 1.0
_LOG_INTERVAL_S: Final = 60.0
_GAUGES: Final = (
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
)


class MetricSource(NamedTuple):
    """What a metric is about: a channel; a topic (no channel); the process (no topic)."""

    topic: str = ""
    channel: str = ""


class StatsdMetric(NamedTuple):
    """One metric. That of a counter (``c``) is its total; ``g`` is a gauge."""

    source: MetricSource
    key: str
    value: int
    kind: Literal["c", "g"]

    @property
    def name(self) -> str:
        """As statsd gets it, without the prefix."""
        topic, channel = self.source
        if channel:
            return f"topic.{topic}.channel.{channel}.{self.key}"
        return f"topic.{topic}.{self.key}" if topic else f"mem.{self.key}"


Counters = Mapping[tuple[MetricSource, str], int]
"""Totals by what they are about and their key."""


def prefix_of(template: str, host: str, port: int) -> str:
    """--statsd-prefix with this nsqd's name filled in, and a dot at its end."""
    if not template:
        return ""
    prefix = template.replace("%s", re.sub(r"[.:]", "_", format_address(host, port)))
    return prefix if prefix.endswith(".") else f"{prefix}."


def topic_metrics(topic: TopicStats, *, exclude_ephemeral: bool) -> Iterator[StatsdMetric]:
    """All metrics of a topic and its channels, in nsqd's order."""
    if exclude_ephemeral and is_ephemeral(topic["topic_name"]):
        return
    yield from _of_topic(topic)
    for channel in topic["channels"]:
        name = topic["topic_name"]
        yield from channel_metrics(name, channel, exclude_ephemeral=exclude_ephemeral)


def channel_metrics(
    topic: str, channel: ChannelStats, *, exclude_ephemeral: bool
) -> Iterator[StatsdMetric]:
    """All metrics of a channel of ``topic``, in nsqd's order."""
    if not (exclude_ephemeral and (is_ephemeral(topic) or is_ephemeral(channel["channel_name"]))):
        yield from _of_channel(topic, channel)


def process_metrics(memory: MemoryMetrics) -> Iterator[StatsdMetric]:
    """The metrics of the process, in nsqd's order."""
    for key in _GAUGES:
        yield StatsdMetric(MetricSource(), key, memory[key], "g")
    yield StatsdMetric(MetricSource(), "gc_runs", memory["gc_total_runs"], "c")


def _of_topic(topic: TopicStats) -> Iterator[StatsdMetric]:
    source = MetricSource(topic["topic_name"])
    yield StatsdMetric(source, "message_count", topic["message_count"], "c")
    yield StatsdMetric(source, "message_bytes", topic["message_bytes"], "c")
    yield StatsdMetric(source, "depth", topic["depth"], "g")
    yield StatsdMetric(source, "backend_depth", topic["backend_depth"], "g")
    yield from _of_latency(source, topic["e2e_processing_latency"])


def _of_channel(topic: str, channel: ChannelStats) -> Iterator[StatsdMetric]:
    source = MetricSource(topic, channel["channel_name"])
    yield StatsdMetric(source, "message_count", channel["message_count"], "c")
    yield StatsdMetric(source, "depth", channel["depth"], "g")
    yield StatsdMetric(source, "backend_depth", channel["backend_depth"], "g")
    yield StatsdMetric(source, "in_flight_count", channel["in_flight_count"], "g")
    yield StatsdMetric(source, "deferred_count", channel["deferred_count"], "g")
    yield StatsdMetric(source, "requeue_count", channel["requeue_count"], "c")
    yield StatsdMetric(source, "timeout_count", channel["timeout_count"], "c")
    yield StatsdMetric(source, "clients", channel["client_count"], "g")
    yield from _of_latency(source, channel["e2e_processing_latency"])


def _of_latency(source: MetricSource, latency: Latency) -> Iterator[StatsdMetric]:
    for each in latency["percentiles"] or ():
        key = f"e2e_processing_latency_{each['quantile'] * 100:.0f}"
        yield StatsdMetric(source, key, each["value"], "g")


def counters(shown: Iterable[StatsdMetric]) -> dict[tuple[MetricSource, str], int]:
    """The totals among the metrics, which the next push is to be compared with."""
    return {(each.source, each.key): each.value for each in shown if each.kind == "c"}


def lines(shown: Iterable[StatsdMetric], before: Counters, prefix: str) -> Iterator[str]:
    """The lines for statsd: gauges as they are, counters by their increase since ``before``.

    ``before`` must have nothing of a topic or channel that was deleted since and made again.
    """
    for metric in shown:
        value = metric.value
        if metric.kind == "c":
            value -= before.get((metric.source, metric.key), 0)
        yield f"{prefix}{metric.name}:{value}|{metric.kind}\n"


class Datagrams:
    """Packs whole lines; a line that is longer than a datagram may be has one of its own."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._full: list[bytes] = []
        self._lines: list[bytes] = []
        self._bytes = 0

    def add(self, line: str) -> None:
        """Add the next line."""
        one = line.encode()
        if self._lines and self._bytes + len(one) > self._max_bytes:
            self._close()
        self._lines.append(one)
        self._bytes += len(one)

    def end(self) -> list[bytes]:
        """All datagrams."""
        if self._lines:
            self._close()
        return self._full

    def _close(self) -> None:
        self._full.append(b"".join(self._lines))
        self._lines.clear()
        self._bytes = 0


class DatagramSocket(Protocol):
    """A connected UDP socket."""

    def send(self, data: bytes, /) -> Awaitable[int]: ...
    def close(self) -> None: ...


Connect: TypeAlias = Callable[[str], Awaitable[DatagramSocket]]


async def connect_udp(address: str) -> DatagramSocket:
    """A socket whose datagrams go to ``host:port``; the name is looked up now.

    Raises:
        OSError: the address is malformed, unknown, or there is no way to it.
    """
    target = split_address(address)
    if target is None:
        raise OSError(f"not an address of the form host:port: {address}")
    host, port = target
    try:
        found = await trio.socket.getaddrinfo(host or "localhost", port, type=socket.SOCK_DGRAM)
    except UnicodeError as error:
        raise OSError(f"no name of a host: {host}") from error
    failure: OSError | None = None
    for family, type_, proto, _, place in found:
        connected = trio.socket.socket(family, type_, proto)
        try:
            await connected.connect(place)
        except OSError as error:
            connected.close()
            failure = error
        except BaseException:
            connected.close()
            raise
        else:
            return connected
    raise failure or OSError(f"no address for {host}")


def statsd_prefix(options: NsqdOptions, ports: ListeningPorts) -> str:
    """What the names of an nsqd's metrics begin with."""
    port = options.broadcast_http_port or ports.http
    return prefix_of(options.statsd_prefix, options.broadcast_address, port)


# By what the metrics are about: whose they are, and the totals of the last push. A topic that is
# made again under the same name begins at 0.
_Totals: TypeAlias = dict[MetricSource, tuple[object, Counters]]


class _Push:
    """One push, while its metrics are gathered."""

    def __init__(self, last: _Totals, datagrams: Datagrams, prefix: str) -> None:
        self.datagrams = datagrams
        self.totals: _Totals = {}
        self._last = last
        self._prefix = prefix

    def add(self, source: MetricSource, owner: object, metrics: Iterable[StatsdMetric]) -> None:
        """Add all metrics of a topic, a channel or the process, which is ``owner``."""
        metrics = list(metrics)
        last_owner, before = self._last.get(source, (None, {}))
        for line in lines(metrics, before if last_owner is owner else {}, self._prefix):
            self.datagrams.add(line)
        self.totals[source] = owner, counters(metrics)


class Statsd:
    """The pushes of one broker.

    Attributes:
        connect: makes the socket of a push; tests put theirs here.
        errors: pushes and datagrams that could not be sent, since the start.
    """

    def __init__(self, source: StatsSource, defects: Defects) -> None:
        self.connect: Connect = connect_udp
        self.errors = 0
        self._source = source
        self._defects = defects
        self._last: _Totals = {}
        self._errors_logged = 0
        self._log_from_s = float("-inf")

    def __repr__(self) -> str:
        return f"<Statsd {self._source.options.statsd_address} errors={self.errors}>"

    async def run(self) -> None:
        """Push, for ever, the first time after an interval."""
        interval_s = self._source.options.statsd_interval_ns / SECOND_NS
        next_s = trio.current_time()
        while True:
            next_s = max(next_s + interval_s, trio.current_time())
            await trio.sleep_until(next_s)
            try:
                with trio.move_on_after(interval_s) as scope:
                    await self._push(next_s + interval_s - _SPARE_S)
                if scope.cancelled_caught:
                    self._log_error("a push took longer than the interval")
            except OSError as error:
                self._log_error(error)
            except Exception as error:
                self._defects.note("statsd", "STATSD: a push", error)

    async def _push(self, until_s: float) -> None:
        options = self._source.options
        # First: if there is no socket, the increase is part of the next push.
        target = await self.connect(options.statsd_address)
        try:
            datagrams = await self._datagrams()
            pause_s = max(0.0, until_s - trio.current_time()) / max(1, len(datagrams))
            for place, datagram in enumerate(datagrams):
                if place:
                    await trio.sleep(pause_s)
                try:
                    await target.send(datagram)
                except OSError as error:
                    self._log_error(error)
        finally:
            target.close()

    async def _datagrams(self) -> list[bytes]:
        """All metrics. They are gathered in turns, as those of /stats."""
        source, options = self._source, self._source.options
        without_ephemeral = options.statsd_exclude_ephemeral
        datagrams = Datagrams(options.statsd_udp_packet_size)
        push = _Push(self._last, datagrams, statsd_prefix(options, source.ports))
        topic = ""
        everything = StatsFilter(clients=False, memory=False)
        async with aclosing(statistics(source, everything)) as rows:
            async for row in rows:
                match row:
                    case TopicRow(stats, owner):
                        topic = stats["topic_name"]
                        metrics = topic_metrics(stats, exclude_ephemeral=without_ephemeral)
                        push.add(MetricSource(topic), owner.core, metrics)
                    case ChannelRow(stats, channel):
                        channel_source = MetricSource(topic, stats["channel_name"])
                        metrics = channel_metrics(topic, stats, exclude_ephemeral=without_ephemeral)
                        push.add(channel_source, channel.core, metrics)
        if options.statsd_mem_stats:
            push.add(MetricSource(), self, process_metrics(memory_metrics()))
        self._last = push.totals
        return push.datagrams.end()

    def _log_error(self, error: object) -> None:
        """Count what went wrong; at most once a minute it is logged, with what was not."""
        self.errors += 1
        now_s = trio.current_time()
        if now_s < self._log_from_s:
            return
        self._log_from_s = now_s + _LOG_INTERVAL_S
        log.error(
            "STATSD(%s): %s; %d errors since the last such line",
            self._source.options.statsd_address,
            error,
            self.errors - self._errors_logged,
        )
        self._errors_logged = self.errors
