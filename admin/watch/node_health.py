"""The problems that a node itself tells of, at /metrics; the limits are those of the alert rules.

deploy/prometheus/alerts.yml has the same for Prometheus.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from admin.watch.snapshot import Problem, Severity
from admin.watch.vitals import OVERFLOW, Vitals

__all__ = [
    "DISK_FREE_MIN", "FSYNC_P99_S", "LAG_P99_S", "channel_link", "node_problems", "queue_problems",
    "span",
]  # fmt: skip

DISK_FREE_MIN: Final = 1024**3
"""Free bytes of a data path below which the disk is nearly full."""
FSYNC_P99_S: Final = 0.25
LAG_P99_S: Final = 0.1
_FILES_SHARE: Final = 0.9
_GIB: Final = 1024**3


def node_problems(node: str, vitals: Vitals) -> Iterator[Problem]:
    """The problems of a node."""
    link = f"/nodes/{quote(node, safe='')}"

    def problem(severity: Severity, what: str, kind: str, weight: float = 0.0) -> Problem:
        return Problem(severity, f"{node}: {what}", node, link, kind, weight)

    free = vitals.value("nsqd_disk_free_bytes")
    if vitals.value("nsqd_disk_low") or vitals.value("nsqd_log_disk_full"):
        what = "the disk is so full that publishes are refused."
        yield problem("critical", what, "node-disk-full", math.inf)
    elif free is not None and free < DISK_FREE_MIN:
        yield problem("warning", f"only {free / _GIB:.2f} GiB of its disk are free.", "node-disk")
    if vitals.refused:
        were = "connection was" if vitals.refused == 1 else "connections were"
        what = f"{vitals.refused:,} {were} refused in the last minute: a limit is reached."
        yield problem("warning", what, "node-refuses")
    files, most = vitals.value("process_open_fds"), vitals.value("process_max_fds")
    if files and most and files > _FILES_SHARE * most:
        yield problem("warning", f"{files:,.0f} of {most:,.0f} files are open.", "node-files")
    if (lag_s := vitals.lag_p99_s or 0.0) > LAG_P99_S:
        what = f"its event loop is late by up to {lag_s * 1000:,.0f} ms: the node is overloaded."
        yield problem("warning", what, "node-late")
    if (fsync_s := vitals.fsync_p99_s or 0.0) > FSYNC_P99_S:
        what = f"its disk needs up to {fsync_s * 1000:,.0f} ms for an fsync."
        yield problem("warning", what, "node-fsync")


def queue_problems(vitals: Vitals) -> Iterator[Problem]:
    """The problems of channels that only their node tells."""
    by_policy: dict[tuple[str, str], dict[str, int]] = {}
    for (topic, channel, reason), count in vitals.dropped.items():
        if reason == OVERFLOW:
            what = f"{_counted(count)} dropped in the last minute: the ephemeral channel is full."
            yield _of_queue("warning", what, topic, channel, "channel-drops", count)
        else:
            by_policy.setdefault((topic, channel), {})[reason] = count
    for (topic, channel), counts in by_policy.items():
        total = sum(counts.values())
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts.items()))
        what = f"{_counted(total)} dropped in the last minute, as a policy says: {reasons}."
        yield _of_queue("notice", what, topic, channel, "policy-drops", total)
    for (topic, channel), count in vitals.reading.letters.items():
        letters = "dead letter" if count == 1 else "dead letters"
        what = f"{count:,} {letters}: messages that the channel gave up."
        yield _of_queue("warning", what, topic, channel, "channel-dead-letters", count)


def _of_queue(
    severity: Severity, what: str, topic: str, channel: str, kind: str, weight: float
) -> Problem:
    if not channel:
        return Problem(severity, what, topic, f"/topics/{quote(topic, safe='')}", kind, weight)
    where = f"{topic} / {channel}"
    return Problem(severity, what, where, channel_link(topic, channel), kind, weight)


def _counted(count: int) -> str:
    return "1 message was" if count == 1 else f"{count:,} messages were"


def channel_link(topic: str, channel: str) -> str:
    """The path of a channel's page, below the base path."""
    return f"/topics/{quote(topic, safe='')}/{quote(channel, safe='')}"


_UNITS: Final[Sequence[tuple[float, str]]] = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def span(seconds: float) -> str:
    """A time for a sentence: ``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    for size, unit in _UNITS:
        if seconds >= 2 * size or (seconds >= size and unit == "min"):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
