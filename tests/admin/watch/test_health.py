"""Is anything wrong?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from admin.watch.health import (
    AGE_CRITICAL_S,
    AGE_WARNING_S,
    GROWING_S,
    MANY,
    REQUEUE_RATE_MIN,
    TIMEOUT_RATE_MIN,
    problems,
)
from admin.watch.history import History
from admin.watch.incidents import PATIENCE_S, REMEMBERED_S, Incidents, grouped
from admin.watch.snapshot import ChannelRow, NodeRow, Problem, Snapshot, TopicRow
from admin.watch.vitals import Reading, read_metrics, vitals_of

NOW_S = 1_790_000_000.0


def node(**given: Any) -> NodeRow:
    """A healthy node."""
    row = NodeRow(node="n:4151", version="1.3.0", up=True, health="OK", answered_s=NOW_S)
    for name, value in given.items():
        setattr(row, name, value)
    return row


def channel(**given: Any) -> ChannelRow:
    """A channel with a consumer."""
    row = ChannelRow(topic="t", channel="c", clients=1, rate_out=100.0)
    for name, value in given.items():
        setattr(row, name, value)
    return row


async def found(*rows: Any, warnings: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Severity and kind of what is wrong with a snapshot that has these rows."""
    snapshot = Snapshot(1, NOW_S, warnings=list(warnings))
    for row in rows:
        if isinstance(row, NodeRow):
            snapshot.nodes[row.node] = row
        elif isinstance(row, ChannelRow):
            snapshot.channels[row.topic, row.channel] = row
        else:
            snapshot.topics[row.topic] = row
    return [(each.severity, each.kind) for each in await problems(snapshot, History(3600.0, 5.0))]


NODES: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({}, []),
    ({"up": False, "error": "connection refused"}, [("critical", "node-silent")]),
    ({"up": False, "health": "NOK", "out_of_date": True}, [("critical", "node-silent")]),
    ({"health": "NOK - disk full"}, [("critical", "node-unhealthy")]),
    ({"health": ""}, [("critical", "node-unhealthy")]),
    ({"registered": False}, [("warning", "node-unregistered")]),
    ({"out_of_date": True}, [("notice", "node-old")]),
]


@pytest.mark.parametrize(("given", "wrong"), NODES)
async def test_nodes(given: dict[str, Any], wrong: list[tuple[str, str]]) -> None:
    """A node that is silent has one problem, whatever was known of it."""
    assert await found(node(**given)) == wrong


CHANNELS: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({}, []),
    ({"depth": 10_000}, []),
    ({"clients": 0}, []),
    ({"depth": 1, "clients": 0}, [("warning", "channel-without-consumer")]),
    ({"paused": True}, []),
    (
        {"depth": 1, "clients": 0, "oldest_age_s": AGE_CRITICAL_S},
        [("critical", "channel-old-message"), ("warning", "channel-without-consumer")],
    ),
    (
        {"depth": 50, "unserved_depth": 40, "unserved_nodes": 1, "unserved_node": "n:4151"},
        [("warning", "channel-node-unserved")],
    ),
    ({"depth": 1, "paused": True}, [("notice", "channel-paused")]),
    ({"depth": 1, "paused": True, "clients": 0}, [("notice", "channel-paused")]),
    ({"depth": 1, "oldest_age_s": AGE_WARNING_S - 1}, []),
    ({"depth": 1, "oldest_age_s": AGE_WARNING_S}, [("warning", "channel-old-message")]),
    ({"depth": 1, "oldest_age_s": AGE_CRITICAL_S}, [("critical", "channel-old-message")]),
    ({"depth": 1, "oldest_age_s": 1e6, "paused": True}, [("notice", "channel-paused")]),
    ({"rate_timeout": TIMEOUT_RATE_MIN * 0.9, "rate_out": 0.0}, []),
    ({"rate_timeout": TIMEOUT_RATE_MIN, "rate_out": 0.0}, [("warning", "channel-timeouts")]),
    ({"rate_timeout": 0.9}, []),
    ({"rate_timeout": 1.1}, [("warning", "channel-timeouts")]),
    ({"rate_requeue": REQUEUE_RATE_MIN * 0.9, "rate_out": None}, []),
    ({"rate_requeue": REQUEUE_RATE_MIN, "rate_out": None}, [("warning", "channel-requeues")]),
    ({"rate_requeue": 9.0}, []),
    ({"rate_requeue": 11.0}, [("warning", "channel-requeues")]),
]


@pytest.mark.parametrize(("given", "wrong"), CHANNELS)
async def test_channels(given: dict[str, Any], wrong: list[tuple[str, str]]) -> None:
    """What is usual is no problem; limits are as stated."""
    assert await found(channel(**given)) == wrong


TOPICS: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({}, []),
    ({"paused": True}, []),
    ({"paused": True, "depth": 3, "channels": 1}, [("notice", "topic-paused")]),
    ({"depth": 3, "channels": 1}, []),
    ({"depth": 3}, [("notice", "topic-without-channel")]),
    ({"depth": MANY}, [("warning", "topic-without-channel")]),
    ({"depth": 3, "oldest_age_s": AGE_WARNING_S}, [("warning", "topic-without-channel")]),
]


@pytest.mark.parametrize(("given", "wrong"), TOPICS)
async def test_topics(given: dict[str, Any], wrong: list[tuple[str, str]]) -> None:
    """Messages that wait at the topic itself."""
    assert await found(TopicRow(topic="t", **given)) == wrong


GROWTHS: list[tuple[str, list[int], bool]] = [
    ("steadily", [1000 + 100 * step for step in range(20)], True),
    ("with ups and downs", [1000 + 100 * step + 300 * (step % 2) for step in range(20)], True),
    ("not at all", [5000] * 20, False),
    ("it shrinks", [5000 - 100 * step for step in range(20)], False),
    ("a peak that shrinks again", [1000] * 8 + [9000] * 6 + [5000] * 6, False),
    ("by less than a tenth", [10_000 + 40 * step for step in range(20)], False),
    ("by few messages", [4 * step for step in range(20)], False),
    ("too short a time is known", [1000 + 100 * step for step in range(10)], False),
]


@pytest.mark.parametrize(("how", "depths", "grows"), GROWTHS, ids=[each[0] for each in GROWTHS])
async def test_a_backlog_that_grows(how: str, depths: list[int], grows: bool) -> None:
    """For so long, by so much; with consumers, else it is another problem."""
    history, row, snapshot = History(3600.0, 15.0), channel(), Snapshot(1, NOW_S)
    assert len(depths) <= GROWING_S / 15.0
    for number, depth in enumerate(depths):
        row.depth = depth
        snapshot = Snapshot(1, NOW_S + 15.0 * number, channels={("t", "c"): row})
        await history.add_snapshot(snapshot)
    kinds = [each.kind for each in await problems(snapshot, history)]
    assert kinds == (["channel-growing"] if grows else [])
    row.clients = 0
    kinds = [each.kind for each in await problems(snapshot, history)]
    assert kinds == ["channel-without-consumer"]


async def test_the_worst_comes_first() -> None:
    """By severity, then by messages at stake."""
    rows = [
        channel(channel="few", depth=5, clients=0),
        channel(channel="many", depth=500, clients=0),
        channel(channel="held", depth=9000, paused=True),
    ]
    snapshot = Snapshot(1, NOW_S, nodes={"n": node(up=False)}, warnings=["lookupd is away"])
    snapshot.channels = {("t", row.channel): row for row in rows}
    where = [each.where for each in await problems(snapshot, History(60.0, 5.0))]
    assert where == ["n:4151", "", "t / many", "t / few", "t / held"]
    snapshot.all_failed = True
    assert (await problems(snapshot, History(60.0, 5.0)))[0].kind == "lookup"


async def test_sentences_and_links() -> None:
    """One sentence each, with figures for people, and the page's path with its parts quoted."""
    silent = node(up=False, error="connection refused", answered_s=NOW_S - 300, node="[::1]:4151")
    held = channel(topic="a", channel="c#ephemeral", depth=1234, paused=True)
    waiting = channel(topic="a", channel="d", depth=1, clients=0)
    snapshot = Snapshot(1, NOW_S, nodes={"n": silent})
    snapshot.channels = {("a", row.channel): row for row in (held, waiting)}
    first, second, third = await problems(snapshot, History(60.0, 5.0))
    assert first.what == "[::1]:4151 has not answered for 5 min: connection refused."
    assert first.link == "/nodes/%5B%3A%3A1%5D%3A4151"
    assert second.what == "1 message is waiting: no consumers."
    assert third.what == "1,234 messages are waiting: the channel is paused."
    assert third.link == "/topics/a/c%23ephemeral"


async def test_a_snapshot_is_only_looked_at() -> None:
    """Nothing of it is changed: other tasks show the same one."""
    row = channel(depth=5, clients=0)
    before = msgspec.structs.asdict(row)
    snapshot = Snapshot(1, NOW_S, channels={("t", "c"): row})
    await problems(snapshot, History(60.0, 5.0))
    assert msgspec.structs.asdict(row) == before
    assert snapshot.problems == []


VITALS: list[tuple[str, list[tuple[str, str]]]] = [
    ("nsqd_disk_low 1", [("critical", "node-disk-full")]),
    ("nsqd_log_disk_full 1", [("critical", "node-disk-full")]),
    ("nsqd_disk_free_bytes 1e9", [("warning", "node-disk")]),
    ("nsqd_disk_free_bytes 1e10", []),
    ("process_open_fds 95\nprocess_max_fds 100", [("warning", "node-files")]),
    ('nsqd_event_loop_lag_seconds_bucket{le="0.1"} 100', []),
    (
        'nsqd_event_loop_lag_seconds_bucket{le="0.1"} 90\n'
        'nsqd_event_loop_lag_seconds_bucket{le="0.25"} 100\n'
        'nsqd_event_loop_lag_seconds_bucket{le="+Inf"} 100',
        [("warning", "node-late")],
    ),
    ('nsqd_fsync_duration_seconds_bucket{le="1.0"} 5', [("warning", "node-fsync")]),
    ('nsqd_dead_letters{topic="t",channel="c"} 3', [("warning", "channel-dead-letters")]),
    ("nsqd_connections_refused_total 5", [("warning", "node-refuses")]),
    (
        'nsqd_channel_dropped_messages_total{topic="t",channel="c",reason="ephemeral_overflow"} 5',
        [("warning", "channel-drops")],
    ),
    (
        'nsqd_channel_dropped_messages_total{topic="t",channel="c",reason="max_age"} 5\n'
        'nsqd_channel_dropped_messages_total{topic="t",channel="c",reason="max_bytes"} 5',
        [("notice", "policy-drops")],
    ),
    (
        'nsqd_topic_dropped_messages_total{topic="t",reason="expired"} 5',
        [("notice", "policy-drops")],
    ),
    ('nsqd_channel_dropped_messages_total{topic="t",channel="c",reason="emptied"} 5', []),
]


@pytest.mark.parametrize(("lines", "wrong"), VITALS)
async def test_what_a_node_tells_of_itself(lines: str, wrong: list[tuple[str, str]]) -> None:
    """By the limits of the alert rules, since the reading before."""
    reading = Reading()
    read_metrics(f"{lines}\n".encode(), reading)
    snapshot = Snapshot(1, NOW_S, nodes={"n:4151": node()})
    snapshot.vitals["n:4151"] = vitals_of(reading, Reading(), NOW_S)
    found = await problems(snapshot, History(60.0, 5.0))
    assert [(each.severity, each.kind) for each in found] == wrong


def problem(kind: str, where: str = "t / c", severity: Any = "warning") -> Problem:
    """One without a figure."""
    return Problem(severity, f"{kind}.", where, "/", kind)


async def test_since_when() -> None:
    """A problem that comes back soon did not end; some are told only if they last."""
    incidents = Incidents()
    assert [each.since_s for each in await incidents.date([problem("a")], 100.0)] == [100.0]
    assert await incidents.date([], 150.0) == []
    assert [each.since_s for each in await incidents.date([problem("a")], 200.0)] == [100.0]
    again = Incidents()
    again.restore(incidents.state())
    await incidents.date([], 200.0 + 2 * REMEMBERED_S)
    assert incidents.state() == []
    assert [each.since_s for each in await again.date([problem("a")], 210.0)] == [100.0]
    kind, patience_s = "node-unregistered", PATIENCE_S["node-unregistered"]
    assert await again.date([problem(kind)], 300.0) == []
    assert [each.kind for each in await again.date([problem(kind)], 300.0 + patience_s)] == [kind]


def test_a_place_has_one_line() -> None:
    """The worst of its problems, with the sentences of all; what has no place stays apart."""
    several = [
        problem("old", severity="critical"),
        problem("slow"),
        problem("lookup", ""),
        problem("lookup", ""),
        problem("slow", "u / c"),
    ]
    found = [(each.severity, each.what) for each in grouped(several)]
    assert found == [
        ("critical", "old. slow."),
        ("warning", "lookup."),
        ("warning", "lookup."),
        ("warning", "slow."),
    ]
