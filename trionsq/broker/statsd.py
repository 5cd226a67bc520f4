"""The task that pushes metrics to statsd by UDP, every --statsd-interval.

A statsd that is gone, slow or unknown to DNS costs one log line a minute: nsqd keeps nothing for it
but the totals of the last push. Names are not escaped, so a topic ``a.channel.b``
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
    """The owner of a metric: a channel, a topic (no channel), or the process (no topic)."""

    topic: str = ""
    channel: str = ""


class StatsdMetric(NamedTuple):
    """A counter (``c``) with its total, or a gauge (``g``) with its value."""

    source: MetricSource
    key: str
    value: int
    kind: Literal["c", "g"]

    @property
    def name(self) -> str:
        """The name for statsd, without the prefix."""
        topic, channel = self.source
        if channel:
            return f"topic.{topic}.channel.{channel}.{self.key}"
        return f"topic.{topic}.{self.key}" if topic else f"mem.{self.key}"


Counters = Mapping[tuple[MetricSource, str], int]
"""Totals by the source and the key of their metric."""


def prefix_of(template: str, host: str, port: int) -> str:
    """--statsd-prefix with the address of this nsqd in it, and a dot at its end."""
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


def counters(metrics: Iterable[StatsdMetric]) -> dict[tuple[MetricSource, str], int]:
    """The totals of the counters, which the next push subtracts."""
    return {(each.source, each.key): each.value for each in metrics if each.kind == "c"}


def lines(metrics: Iterable[StatsdMetric], before: Counters, prefix: str) -> Iterator[str]:
    """The lines for statsd: the values of gauges, and the increase of counters since ``before``.

    ``before`` may hold no totals of a topic or channel that was deleted and made again since.
    """
    for metric in metrics:
        value = metric.value
        if metric.kind == "c":
            value -= before.get((metric.source, metric.key), 0)
        yield f"{prefix}{metric.name}:{value}|{metric.kind}\n"


class Datagrams:
    """Packs whole lines. A line that is longer than ``max_bytes`` gets a datagram of its own."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._full: list[bytes] = []
        self._lines: list[bytes] = []
        self._bytes = 0

    def add(self, line: str) -> None:
        """Add the next line."""
        data = line.encode()
        if self._lines and self._bytes + len(data) > self._max_bytes:
            self._close()
        self._lines.append(data)
        self._bytes += len(data)

    def finish(self) -> list[bytes]:
        """Return all datagrams."""
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
    """Open a socket that sends to ``host:port``. The host name is looked up each time.

    Raises:
        OSError: the address is malformed or unknown, or can't be reached.
    """
    target = split_address(address)
    if target is None:
        raise OSError(f"the address is not host:port: {address}")
    host, port = target
    try:
        addresses = await trio.socket.getaddrinfo(host or "localhost", port, type=socket.SOCK_DGRAM)
    except UnicodeError as error:
        raise OSError(f"not a host name: {host}") from error
    failure: OSError | None = None
    for family, type_, proto, _, target_address in addresses:
        sock = trio.socket.socket(family, type_, proto)
        try:
            await sock.connect(target_address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"no address for {host}")


def statsd_prefix(options: NsqdOptions, ports: ListeningPorts) -> str:
    """The prefix of the names of an nsqd's metrics."""
    port = options.broadcast_http_port or ports.http
    return prefix_of(options.statsd_prefix, options.broadcast_address, port)


# By source: the topic, channel or process itself, and its totals at the last push. A topic that is
# deleted and made again is another object, so its counters begin at 0.
_Totals: TypeAlias = dict[MetricSource, tuple[object, Counters]]


class _Push:
    """A push while its metrics are gathered."""

    def __init__(self, last: _Totals, datagrams: Datagrams, prefix: str) -> None:
        self.datagrams = datagrams
        self.totals: _Totals = {}
        self._last = last
        self._prefix = prefix

    def add(self, source: MetricSource, owner: object, metrics: Iterable[StatsdMetric]) -> None:
        """Add all metrics of ``owner``: a topic, a channel or the process."""
        metrics = list(metrics)
        last_owner, before = self._last.get(source, (None, {}))
        for line in lines(metrics, before if last_owner is owner else {}, self._prefix):
            self.datagrams.add(line)
        self.totals[source] = owner, counters(metrics)


class Statsd:
    """Pushes the metrics of a broker.

    Attributes:
        connect: opens the socket of a push. Tests replace it.
        errors: pushes and datagrams that could not be sent since the start.
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
        """Push after each interval, until cancelled."""
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
        # First: without a socket the totals stay, and the next push has the increase.
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
        """Gather all metrics, in turns like /stats."""
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
        return push.datagrams.finish()

    def _log_error(self, error: object) -> None:
        """Count an error, and log one a minute with the number of errors in between."""
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
