"""The problems of a snapshot: what an operator should check.

The limits are in this file; docs/watching.md explains them. They are quiet on purpose: a shrinking
backlog or an occasional timeout is usual in a healthy cluster, and no problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

import trio

from admin.watch.history import History, channel_key
from admin.watch.snapshot import ChannelRow, NodeRow, Problem, Severity, Snapshot, TopicRow

__all__ = [
    "AGE_CRITICAL_S",
    "AGE_WARNING_S",
    "GROWING_MIN",
    "GROWING_S",
    "GROWING_SHARE",
    "LEFT_S",
    "REQUEUE_RATE_MIN",
    "REQUEUE_SHARE",
    "TIMEOUT_RATE_MIN",
    "TIMEOUT_SHARE",
    "problems",
]

GROWING_S: Final = 300.0
"""A backlog grows if each third of this period had more messages than the third before,"""
GROWING_MIN: Final = 100
"""... and it grew by at least this many messages,"""
GROWING_SHARE: Final = 0.1
"""... and by at least this share of its size at the start."""
AGE_WARNING_S: Final = 300.0
"""Age of a channel's oldest message."""
AGE_CRITICAL_S: Final = 3600.0
LEFT_S: Final = 600.0
"""A silent node without messages and registration is only a warning after this time: it was
probably taken out of service."""
TIMEOUT_RATE_MIN: Final = 0.1
"""Timeouts per second of a channel that are a problem,"""
TIMEOUT_SHARE: Final = 0.01
"""... if they exceed this share of the messages that leave the channel."""
REQUEUE_RATE_MIN: Final = 0.5
"""The same for requeues."""
REQUEUE_SHARE: Final = 0.1

_RANK: Final[dict[Severity, int]] = {"critical": 0, "warning": 1, "notice": 2}
# Topics or channels checked per turn of the event loop: one or two milliseconds.
_ROWS_PER_TURN: Final = 100
# Share of the points of GROWING_S that must be known.
_KNOWN_SHARE: Final = 0.8


async def problems(snapshot: Snapshot, history: History) -> list[Problem]:
    """The problems, the worst first. Other tasks get their turn in between."""
    result = [
        Problem("warning", f"{warning[:300]}.", "", "/nodes", "lookup")
        for warning in snapshot.warnings
    ]
    for node in snapshot.nodes.values():
        result += _of_node(node, snapshot.taken_s)
    for number, topic in enumerate(snapshot.topics.values()):
        if topic.depth:
            result += _of_topic(topic)
        if number % _ROWS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    for number, channel in enumerate(snapshot.channels.values()):
        if channel.depth or channel.rate_timeout or channel.rate_requeue:
            result += _of_channel(channel, history)
        if number % _ROWS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    result.sort(key=lambda each: (_RANK[each.severity], -each.weight, each.where))
    return result


def _of_node(row: NodeRow, now_s: float) -> Iterator[Problem]:
    link = f"/nodes/{quote(row.node, safe='')}"
    if not row.up:
        since = (
            f" for {_span(now_s - row.answered_s)}"
            if row.answered_s is not None
            else " since nsqadmin started"
        )
        held = row.depth + row.in_flight + row.deferred
        what = f"{row.node} has not answered{since}: {row.error}."
        if held:
            what += f" It held {_messages(held, '')} when it last answered."
        # A node that was emptied, stopped and removed looks the same.
        left = row.answered_s is not None and now_s - row.answered_s > LEFT_S
        if left and not row.registered and not held:
            yield Problem("warning", what, row.node, link, "node-gone")
        else:
            yield Problem("critical", what, row.node, link, "node-silent", math.inf)
        return
    if row.health != "OK":
        what = f"{row.node} reports a problem: {row.health[:300] or 'no reason given'}."
        yield Problem("critical", what, row.node, link, "node-unhealthy", math.inf)
    if not row.registered:
        what = f"{row.node} answers but no nsqlookupd lists it: consumers can't find it."
        yield Problem("warning", what, row.node, link, "node-unregistered")
    if row.out_of_date:
        what = f"{row.node} runs version {row.version}; other nodes run a newer one."
        yield Problem("notice", what, row.node, link, "node-old")


def _of_topic(row: TopicRow) -> Iterator[Problem]:
    link = f"/topics/{quote(row.topic, safe='')}"
    if row.paused:
        what = f"{_messages(row.depth)} waiting: the topic is paused."
        yield Problem("notice", what, row.topic, link, "topic-paused", row.depth)
    elif not row.channels:
        what = f"{_messages(row.depth)} waiting: the topic has no channel."
        yield Problem("notice", what, row.topic, link, "topic-without-channel", row.depth)


def _of_channel(row: ChannelRow, history: History) -> Iterator[Problem]:
    where = f"{row.topic} / {row.channel}"
    link = f"/topics/{quote(row.topic, safe='')}/{quote(row.channel, safe='')}"

    def problem(severity: Severity, what: str, kind: str) -> Problem:
        return Problem(severity, what, where, link, kind, row.depth)

    if row.depth and row.paused:
        what = f"{_messages(row.depth)} waiting: the channel is paused."
        yield problem("notice", what, "channel-paused")
    elif row.depth and not row.clients:
        what = f"{_messages(row.depth)} waiting: no consumers."
        yield problem("warning", what, "channel-without-consumer")
    elif row.depth:
        if (grown := _growth(row, history)) is not None:
            what = (
                f"The backlog has grown by {grown:,} to {row.depth:,} messages in"
                f" {_span(GROWING_S)}: {_consumers(row.clients)} can't keep up."
            )
            yield problem("warning", what, "channel-growing")
        if (age_s := row.oldest_age_s or 0.0) >= AGE_WARNING_S:
            severity: Severity = "critical" if age_s >= AGE_CRITICAL_S else "warning"
            what = f"The oldest of {_messages(row.depth, '')} has waited for {_span(age_s)}."
            yield problem(severity, what, "channel-old-message")
    left = row.rate_out or 0.0
    timeouts, requeues = row.rate_timeout or 0.0, row.rate_requeue or 0.0
    if timeouts >= TIMEOUT_RATE_MIN and timeouts > TIMEOUT_SHARE * left:
        what = f"{timeouts:,.1f} messages a second time out; {left:,.1f} are finished."
        yield problem("warning", what, "channel-timeouts")
    if requeues >= REQUEUE_RATE_MIN and requeues > REQUEUE_SHARE * left:
        what = f"{requeues:,.1f} messages a second are requeued; {left:,.1f} are finished."
        yield problem("warning", what, "channel-requeues")


def _growth(row: ChannelRow, history: History) -> int | None:
    """The growth of the backlog in GROWING_S, in messages; None if there is no trend."""
    if row.depth < GROWING_MIN:
        return None
    depths = history.last_depths(channel_key(row.topic, row.channel), GROWING_S)
    known = [depth for depth in depths if not math.isnan(depth)]
    if len(known) < max(3, _KNOWN_SHARE * len(depths)):
        return None
    third = len(known) // 3
    parts = known[:third], known[third:-third], known[-third:]
    first, second, last = (sum(part) / len(part) for part in parts)
    grown = row.depth - round(known[0])
    large = grown >= max(GROWING_MIN, GROWING_SHARE * known[0])
    return grown if first < second < last and large else None


def _messages(count: int, are: str | None = None) -> str:
    """``1 message is`` or ``1,234 messages are``; ``are`` replaces the verb."""
    verb = (" is" if count == 1 else " are") if are is None else are
    return f"{count:,} message{'' if count == 1 else 's'}{verb}"


def _consumers(count: int) -> str:
    return "its one consumer" if count == 1 else f"its {count:,} consumers"


_UNITS: Final[Sequence[tuple[float, str]]] = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def _span(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= 2 * size or (seconds >= size and unit == "min"):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
