"""What a node says of itself at /metrics: memory, disk, connections; and ages of its messages.

Read once a minute, because the page is long. Rates and percentiles are over the time since the
reading before. An original nsqd has no such page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import trio

from admin.cluster.queries import url_of
from admin.upstream import Upstream

__all__ = [
    "OVERFLOW", "Age", "Ages", "Reading", "Vitals", "read_metrics", "request_reading", "vitals_of",
]  # fmt: skip


class Age(NamedTuple):
    """The age of the oldest message of a queue.

    Attributes:
        age_s: in seconds.
        messages: of the queue's counter when the age was read. Once so many have left, the
            message whose age this was is gone.
    """

    age_s: float
    messages: int


Key: TypeAlias = tuple[str, str]
"""A topic and a channel; the channel is ``""`` for the topic's own queue."""
Drop: TypeAlias = tuple[str, str, str]
"""A topic, a channel as in `Key`, and the reason for which messages of it were dropped."""
Ages: TypeAlias = Mapping[Key, Age]
"""Ages above 0."""
_Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Reading:
    """A page of /metrics: the values that are used.

    Attributes:
        read_s: when it was read, by a clock that never goes back.
        values: sums over labels, by name.
        buckets: cumulated counts by upper bound, by the name of the histogram.
        ages, messages: of queues, by topic and channel.
        letters: dead letters by topic and channel.
        drops: messages that bounds of any kind and expiry dropped.
        lookupds: by address, whether the node is registered there.
    """

    read_s: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    ages: dict[Key, float] = field(default_factory=dict)
    messages: dict[Key, int] = field(default_factory=dict)
    letters: dict[Key, int] = field(default_factory=dict)
    drops: dict[Drop, int] = field(default_factory=dict)
    lookupds: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Vitals:
    """A reading, and what happened since the one before.

    Attributes:
        reading: the values.
        at_s: when it was read, in seconds since 1970.
        ages: of the queues in which messages wait.
        refused: TCP and HTTP connections that were refused since the reading before.
        dropped: messages of `Reading.drops` since then.
        lag_p99_s, fsync_p99_s: 99th percentiles since then; None: there was none.
    """

    reading: Reading
    at_s: float
    ages: Ages
    refused: int = 0
    dropped: Mapping[Drop, int] = field(default_factory=dict)
    lag_p99_s: float | None = None
    fsync_p99_s: float | None = None

    def value(self, name: str) -> float | None:
        """A value by its name; None: the node does not tell it."""
        return self.reading.values.get(name)


OVERFLOW: Final = "ephemeral_overflow"
"""Why an ephemeral channel drops messages."""
_LAG: Final = "nsqd_event_loop_lag_seconds"
_FSYNCS: Final = ("nsqd_fsync_duration_seconds", "nsqd_log_fsync_duration_seconds")
_REFUSED: Final = ("nsqd_connections_refused_total", "nsqd_http_connections_refused_total")
_SUMS: Final = (
    "process_resident_memory_bytes", "process_open_fds", "process_max_fds",
    "process_cpu_seconds_total", "nsqd_connections", "nsqd_http_connections", *_REFUSED,
    "nsqd_queued_output_bytes", "nsqd_disk_free_bytes", "nsqd_disk_low", "nsqd_disk_faults",
    "nsqd_log_disk_full", "nsqd_log_disk_bytes", "nsqd_memory_message_bytes", "nsqd_defects_total",
)  # fmt: skip
_BY_QUEUE: Final = {
    "nsqd_topic_oldest_message_age_seconds": "ages",
    "nsqd_channel_oldest_message_age_seconds": "ages",
    "nsqd_topic_messages_total": "messages",
    "nsqd_channel_messages_total": "messages",
    "nsqd_dead_letters": "letters",
    "nsqd_topic_dropped_messages_total": "drops",
    "nsqd_channel_dropped_messages_total": "drops",
}
# What is emptied or sampled was dropped because somebody asked for it.
_DROPS: Final = frozenset({OVERFLOW, "max_messages", "max_bytes", "max_age", "expired"})
_LOOKUPD: Final = "nsqd_lookupd_connected"
_NAMES: Final = (*_SUMS, *_BY_QUEUE, _LOOKUPD, *(f"{name}_bucket" for name in (_LAG, *_FSYNCS)))
_LINE: Final = re.compile(
    rf"^({'|'.join(_NAMES)})(?:\{{([^}}\n]*)\}})? (\S+)".encode(), re.MULTILINE
)
# Names of topics and channels need no escapes.
_LABEL: Final = re.compile(r'([a-z]+)="([^"]*)"')
# Read per turn of the event loop: a hundred lines or two.
_TURN_BYTES: Final = 16 * 1024
# More are ignored: a peer may send anything.
_MAX_LABELLED: Final = 1_000


async def request_reading(upstream: Upstream, node: str, timeout_s: float, now_s: float) -> Reading:
    """The page /metrics of the nsqd at host:port, read at ``now_s``.

    Raises:
        UpstreamError: no answer; ``status`` 404: an original nsqd, which has no /metrics.
    """
    body = await upstream.get_bytes(url_of(node, "/metrics"), timeout_s=timeout_s)
    reading, start = Reading(now_s), 0
    while start < len(body):
        # To the end of a line.
        end = body.find(b"\n", start + _TURN_BYTES) + 1 or len(body)
        read_metrics(body[start:end], reading)
        start = end
        await trio.lowlevel.checkpoint()
    return reading


def read_metrics(body: bytes, into: Reading) -> None:
    """Add lines of a page of /metrics to a reading; malformed lines are ignored."""
    for name, labels, value in _lines(body):
        if name in _BY_QUEUE:
            _read_queue(_BY_QUEUE[name], dict(labels), value, into)
        elif name == _LOOKUPD:
            if len(into.lookupds) < _MAX_LABELLED:
                into.lookupds[dict(labels).get("lookupd", "")] = value > 0
        elif name.endswith("_bucket"):
            bound = dict(labels).get("le", "").replace("+Inf", "inf")
            buckets = into.buckets.setdefault(name.removesuffix("_bucket"), {})
            if len(buckets) < _MAX_LABELLED and (number := _number(bound)) is not None:
                buckets[number] = value
        else:
            into.values[name] = into.values.get(name, 0.0) + value


def _lines(body: bytes) -> Iterator[tuple[str, _Labels, float]]:
    for match in _LINE.finditer(body):
        value = _number(match[3].decode(errors="replace"))
        if value is not None and math.isfinite(value):
            labels = _LABEL.findall((match[2] or b"").decode(errors="replace"))
            yield match[1].decode(), tuple(labels), value


def _read_queue(kind: str, labels: Mapping[str, str], value: float, into: Reading) -> None:
    if "topic" not in labels:
        return
    key = labels["topic"], labels.get("channel", "")
    if kind == "ages":
        if value > 0:
            into.ages[key] = value
    elif kind == "drops":
        if (reason := labels.get("reason", "")) in _DROPS:
            into.drops[*key, reason] = int(value)
    elif value > 0:
        counts: dict[Key, int] = getattr(into, kind)
        counts[key] = int(value)


def vitals_of(reading: Reading, before: Reading | None, at_s: float) -> Vitals:
    """The vitals of a reading; ``before`` is the one before, of the same run of the node."""
    ages = {key: Age(age_s, reading.messages.get(key, 0)) for key, age_s in reading.ages.items()}
    old = Reading() if before is None else before
    dropped = {
        drop: count - old.drops.get(drop, 0)
        for drop, count in reading.drops.items()
        if before is not None and count > old.drops.get(drop, 0)
    }
    refused = sum(reading.values.get(name, 0) - old.values.get(name, 0) for name in _REFUSED)
    return Vitals(
        reading,
        at_s,
        ages,
        refused=max(0, int(refused)) if before is not None else 0,
        dropped=dropped,
        lag_p99_s=_percentile([_LAG], reading, before),
        fsync_p99_s=_percentile(_FSYNCS, reading, before),
    )


def _percentile(names: Iterable[str], now: Reading, before: Reading | None) -> float | None:
    """The upper bound of the bucket with the 99th percentile, in seconds.

    None without a reading before: a start is slow.
    """
    if before is None:
        return None
    counts: dict[float, float] = {}
    for name in names:
        old = before.buckets.get(name, {})
        for bound, count in now.buckets.get(name, {}).items():
            counts[bound] = counts.get(bound, 0.0) + max(0.0, count - old.get(bound, 0.0))
    total = max(counts.values(), default=0.0)
    if total <= 0:
        return None
    bound = next(bound for bound in sorted(counts) if counts[bound] >= 0.99 * total)
    finite = [each for each in counts if math.isfinite(each)]
    return bound if math.isfinite(bound) else max(finite, default=None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
