"""The problems of a snapshot: what an operator should check.

The limits are in this file; docs/watching.md explains them. They are quiet on purpose: a shrinking
backlog or an occasional timeout is usual in a healthy cluster, and no problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import trio

from admin.watch.history import History, Key, channel_key, topic_key
from admin.watch.node_health import channel_link, node_problems, queue_problems, span
from admin.watch.requests import reason
from admin.watch.snapshot import (
    ChannelRow,
    NodeRow,
    Problem,
    Restart,
    Severity,
    Snapshot,
    TopicRow,
)

__all__ = [
    "AGE_CRITICAL_S",
    "AGE_WARNING_S",
    "GONE_S",
    "GROWING_MIN",
    "GROWING_S",
    "GROWING_SHARE",
    "LEFT_S",
    "MANY",
    "REQUEUE_RATE_MIN",
    "REQUEUE_SHARE",
    "RESTART_S",
    "TIMEOUT_RATE_MIN",
    "TIMEOUT_SHARE",
    "problems",
    "rank",
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
probably taken out of service,"""
GONE_S: Final = 86_400.0
"""... and a notice after this time."""
RESTART_S: Final = 3600.0
"""Time for which a restart is told."""
MANY: Final = 1000
"""Messages at a topic without channel that are a warning."""
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
    result = list(_of_lookupds(snapshot))
    for node in snapshot.nodes.values():
        result += _of_node(node, snapshot.taken_s)
        if node.up and (restart := snapshot.restarts.get(node.node)) is not None:
            result += _of_restart(node, restart, snapshot.taken_s)
        if node.up and (vitals := snapshot.vitals.get(node.node)) is not None:
            result += node_problems(node.node, vitals)
            result += queue_problems(vitals)
    for number, topic in enumerate(snapshot.topics.values()):
        if topic.depth:
            result += _of_topic(topic, history)
        if number % _ROWS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    for number, channel in enumerate(snapshot.channels.values()):
        if channel.depth or channel.rate_timeout or channel.rate_requeue:
            result += _of_channel(channel, history)
        if number % _ROWS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    result.sort(key=rank)
    return result


def rank(problem: Problem) -> tuple[int, int, float, str]:
    """The sort key of problems: by severity; nsqlookupds, then nodes; then messages at stake."""
    first = {"lookup": 0, "node-silent": 1}.get(problem.kind, 2)
    return _RANK[problem.severity], first, -problem.weight, problem.where


def _of_lookupds(snapshot: Snapshot) -> Iterator[Problem]:
    link = "/lookup"
    if snapshot.all_failed:
        what = "No nsqlookupd answers: consumers find no nodes. " + _sentence(snapshot.warnings[0])
        yield Problem("critical", what, "", link, "lookup", math.inf)
        return
    for warning in snapshot.warnings:
        yield Problem("warning", _sentence(warning), "", link, "lookup", math.inf)


def _sentence(text: str) -> str:
    return f"{reason(text, named=True)[:300].rstrip('.')}."


def _of_node(row: NodeRow, now_s: float) -> Iterator[Problem]:
    link = f"/nodes/{quote(row.node, safe='')}"
    if not row.up:
        since = (
            f" for {span(now_s - row.answered_s)}"
            if row.answered_s is not None
            else " since nsqadmin started"
        )
        held = row.depth + row.in_flight + row.deferred
        what = f"{row.node} has not answered{since}: {row.error}."
        if held:
            what += f" It held {_messages(held, '')} when it last answered."
        # A node that was emptied, stopped and removed looks the same.
        silent_s = 0.0 if row.answered_s is None else now_s - row.answered_s
        if silent_s > LEFT_S and not (row.registered or row.expected or held):
            what += " If it was taken out of service, an admin can have it forgotten."
            severity: Severity = "notice" if silent_s > GONE_S else "warning"
            yield Problem(severity, what, row.node, link, "node-gone", 0.0, row.answered_s)
        else:
            yield Problem("critical", what, row.node, link, "node-silent", math.inf, row.answered_s)
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


def _of_restart(row: NodeRow, restart: Restart, now_s: float) -> Iterator[Problem]:
    if now_s - restart.at_s > RESTART_S:
        return
    link = f"/nodes/{quote(row.node, safe='')}"
    at = datetime.fromtimestamp(restart.at_s, UTC).strftime("%H:%M:%S")
    what = f"{row.node} was restarted at {at} UTC."
    severity: Severity = "notice"
    if restart.missing:
        severity = "warning"
        what += (
            f" Of {_messages(restart.held, '')} that it held before,"
            f" {restart.missing:,} {'is' if restart.missing == 1 else 'are'} gone."
        )
    yield Problem(severity, what, row.node, link, "node-restarted", restart.missing, restart.at_s)


def _of_topic(row: TopicRow, history: History) -> Iterator[Problem]:
    link = f"/topics/{quote(row.topic, safe='')}"
    if row.paused:
        what = f"{_messages(row.depth)} waiting: the topic is paused."
        yield Problem("notice", what, row.topic, link, "topic-paused", row.depth)
    elif not row.channels:
        grows = _growth(topic_key(row.topic), row.depth, history) is not None
        old = (row.oldest_age_s or 0.0) >= AGE_WARNING_S
        severity: Severity = "warning" if grows or old or row.depth >= MANY else "notice"
        what = f"{_messages(row.depth)} waiting: the topic has no channel."
        yield Problem(severity, what, row.topic, link, "topic-without-channel", row.depth)


def _of_channel(row: ChannelRow, history: History) -> Iterator[Problem]:
    where = f"{row.topic} / {row.channel}"
    link = channel_link(row.topic, row.channel)

    def problem(severity: Severity, what: str, kind: str, weight: float = row.depth) -> Problem:
        return Problem(severity, what, where, link, kind, weight)

    if row.depth and row.paused:
        what = f"{_messages(row.depth)} waiting: the channel is paused."
        yield problem("notice", what, "channel-paused")
    elif row.depth:
        grown = _growth(channel_key(row.topic, row.channel), row.depth, history)
        if not row.clients:
            what = f"{_messages(row.depth)} waiting: no consumers."
            yield problem("warning", what, "channel-without-consumer")
        elif grown is not None:
            what = (
                f"The backlog has grown by {grown:,} to {row.depth:,} messages in"
                f" {span(GROWING_S)}: {_consumers(row.clients)} can't keep up."
            )
            yield problem("warning", what, "channel-growing")
        if (age_s := row.oldest_age_s or 0.0) >= AGE_WARNING_S:
            severity: Severity = "critical" if age_s >= AGE_CRITICAL_S else "warning"
            what = f"The oldest of {_messages(row.depth, '')} has waited for {span(age_s)}."
            yield problem(severity, what, "channel-old-message")
        if row.clients and row.unserved_depth:
            others = f" and {row.unserved_nodes - 1} more" if row.unserved_nodes > 1 else ""
            what = (
                f"{_messages(row.unserved_depth)} waiting on {row.unserved_node}{others},"
                f" where no consumer is connected; {_consumers(row.clients)}"
                f" {'is' if row.clients == 1 else 'are'} connected to other nodes."
            )
            yield problem("warning", what, "channel-node-unserved", row.unserved_depth)
    left = row.rate_out or 0.0
    timeouts, requeues = row.rate_timeout or 0.0, row.rate_requeue or 0.0
    if timeouts >= TIMEOUT_RATE_MIN and timeouts > TIMEOUT_SHARE * left:
        what = f"{timeouts:,.1f} messages a second time out; {left:,.1f} are finished."
        yield problem("warning", what, "channel-timeouts")
    if requeues >= REQUEUE_RATE_MIN and requeues > REQUEUE_SHARE * left:
        what = f"{requeues:,.1f} messages a second are requeued; {left:,.1f} are finished."
        yield problem("warning", what, "channel-requeues")


def _growth(key: Key, depth: int, history: History) -> int | None:
    """The growth of a backlog in GROWING_S, in messages; None if there is no trend."""
    if depth < GROWING_MIN:
        return None
    depths = history.last_depths(key, GROWING_S)
    known = [depth for depth in depths if not math.isnan(depth)]
    if len(known) < max(3, _KNOWN_SHARE * len(depths)):
        return None
    third = len(known) // 3
    parts = known[:third], known[third:-third], known[-third:]
    first, second, last = (sum(part) / len(part) for part in parts)
    grown = depth - round(known[0])
    large = grown >= max(GROWING_MIN, GROWING_SHARE * known[0])
    return grown if first < second < last and large else None


def _messages(count: int, are: str | None = None) -> str:
    """``1 message is`` or ``1,234 messages are``; ``are`` replaces the verb."""
    verb = (" is" if count == 1 else " are") if are is None else are
    return f"{count:,} message{'' if count == 1 else 's'}{verb}"


def _consumers(count: int) -> str:
    return "its one consumer" if count == 1 else f"its {count:,} consumers"
