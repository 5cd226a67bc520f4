"""What statsd is told: names, values and types, from what /stats has; and the datagrams.

Pure. Names are not escaped, so a topic ``a.channel.b`` looks like a channel of a topic ``a``, as
with the original; increases are told apart all the same.

Spec: nsqd-internals, section 8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from trionsq.broker.memory import MemoryFigures
from trionsq.broker.statistics import ChannelStats, Latency, TopicStats
from trionsq.hostport import format_address
from trionsq.wire.names import is_ephemeral

__all__ = [
    "Counters",
    "Datagrams",
    "Figure",
    "Source",
    "channel_figures",
    "counters",
    "lines",
    "prefix_of",
    "process_figures",
    "topic_figures",
]

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


class Source(NamedTuple):
    """What a figure is about: a channel; a topic (no channel); the process (no topic)."""

    topic: str = ""
    channel: str = ""


class Figure(NamedTuple):
    """One figure. That of a counter (``c``) is its total; ``g`` is a gauge."""

    source: Source
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


Counters = Mapping[tuple[Source, str], int]
"""Totals by what they are about and their key."""


def prefix_of(template: str, host: str, port: int) -> str:
    """--statsd-prefix with this nsqd's name filled in, and a dot at its end."""
    if not template:
        return ""
    prefix = template.replace("%s", re.sub(r"[.:]", "_", format_address(host, port)))
    return prefix if prefix.endswith(".") else f"{prefix}."


def topic_figures(topic: TopicStats, *, exclude_ephemeral: bool) -> Iterator[Figure]:
    """All figures of a topic and its channels, in nsqd's order."""
    if exclude_ephemeral and is_ephemeral(topic["topic_name"]):
        return
    yield from _of_topic(topic)
    for channel in topic["channels"]:
        name = topic["topic_name"]
        yield from channel_figures(name, channel, exclude_ephemeral=exclude_ephemeral)


def channel_figures(
    topic: str, channel: ChannelStats, *, exclude_ephemeral: bool
) -> Iterator[Figure]:
    """All figures of a channel of ``topic``, in nsqd's order."""
    if not (exclude_ephemeral and (is_ephemeral(topic) or is_ephemeral(channel["channel_name"]))):
        yield from _of_channel(topic, channel)


def process_figures(memory: MemoryFigures) -> Iterator[Figure]:
    """The figures of the process, in nsqd's order."""
    for key in _GAUGES:
        yield Figure(Source(), key, memory[key], "g")
    yield Figure(Source(), "gc_runs", memory["gc_total_runs"], "c")


def _of_topic(topic: TopicStats) -> Iterator[Figure]:
    source = Source(topic["topic_name"])
    yield Figure(source, "message_count", topic["message_count"], "c")
    yield Figure(source, "message_bytes", topic["message_bytes"], "c")
    yield Figure(source, "depth", topic["depth"], "g")
    yield Figure(source, "backend_depth", topic["backend_depth"], "g")
    yield from _of_latency(source, topic["e2e_processing_latency"])


def _of_channel(topic: str, channel: ChannelStats) -> Iterator[Figure]:
    source = Source(topic, channel["channel_name"])
    yield Figure(source, "message_count", channel["message_count"], "c")
    yield Figure(source, "depth", channel["depth"], "g")
    yield Figure(source, "backend_depth", channel["backend_depth"], "g")
    yield Figure(source, "in_flight_count", channel["in_flight_count"], "g")
    yield Figure(source, "deferred_count", channel["deferred_count"], "g")
    yield Figure(source, "requeue_count", channel["requeue_count"], "c")
    yield Figure(source, "timeout_count", channel["timeout_count"], "c")
    yield Figure(source, "clients", channel["client_count"], "g")
    yield from _of_latency(source, channel["e2e_processing_latency"])


def _of_latency(source: Source, latency: Latency) -> Iterator[Figure]:
    for each in latency["percentiles"] or ():
        key = f"e2e_processing_latency_{each['quantile'] * 100:.0f}"
        yield Figure(source, key, each["value"], "g")


def counters(shown: Iterable[Figure]) -> dict[tuple[Source, str], int]:
    """The totals among the figures, which the next push is to be compared with."""
    return {(each.source, each.key): each.value for each in shown if each.kind == "c"}


def lines(shown: Iterable[Figure], before: Counters, prefix: str) -> Iterator[str]:
    """The lines for statsd: gauges as they are, counters by their increase since ``before``.

    ``before`` must have nothing of a topic or channel that was deleted since and made again.
    """
    for figure in shown:
        value = figure.value
        if figure.kind == "c":
            value -= before.get((figure.source, figure.key), 0)
        yield f"{prefix}{figure.name}:{value}|{figure.kind}\n"


class Datagrams:
    """Packs whole lines; a line that is longer than a datagram may be has one of its own."""

    def __init__(self, nbytes_max: int) -> None:
        self._nbytes_max = nbytes_max
        self._full: list[bytes] = []
        self._lines: list[bytes] = []
        self._nbytes = 0

    def add(self, line: str) -> None:
        """Add the next line."""
        one = line.encode()
        if self._lines and self._nbytes + len(one) > self._nbytes_max:
            self._close()
        self._lines.append(one)
        self._nbytes += len(one)

    def end(self) -> list[bytes]:
        """All datagrams."""
        if self._lines:
            self._close()
        return self._full

    def _close(self) -> None:
        self._full.append(b"".join(self._lines))
        self._lines.clear()
        self._nbytes = 0
