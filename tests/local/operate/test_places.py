"""Where channels begin in a log, seeks and retention, on a real cluster of three nsqd."""

from __future__ import annotations

import sys

import pytest

from tests.local.operate.stage import (
    RealCluster,
    Run,
    Terminal,
    places,
    publish,
    request,
    spread,
    until,
)
from tests.soak import in_short_soak


def test_retention_of_a_topic(cluster: RealCluster, run: Run) -> None:
    """Flags change it on each node; the table has it, and why the oldest segment is there."""
    assert run("topic", "create", "held", "--storage=log", cluster.flag).code == 0
    ended = run("topic", "settings", "held", "--retain=1h30m", "--retain-bytes=5000", cluster.flag)
    assert (ended.code, ended.out) == (0, "topic held: set on 3 nodes\n")
    ended = run("topic", "settings", "held", cluster.flag)
    rows = [line.split() for line in ended.out.splitlines()]
    assert " ".join(rows[0]) == "node storage durability retain retain bytes bytes oldest held by"
    assert [row[1:5] for row in rows[1:]] == [["log", "interval", "1h30m0s", "5,000"]] * 3
    assert [row[0] for row in rows[1:]] == cluster.nodes
    document = run("topic", "settings", "held", "--json", cluster.flag).document
    assert [one["retain_bytes"] for one in document["settings"]] == [5000] * 3
    assert run("topic", "settings", "held", "--retain=default", cluster.flag).code == 0
    document = run("topic", "settings", "held", "--json", cluster.flag).document
    assert [(one["retain"], one["retain_bytes"]) for one in document["settings"]] == [
        ("0s", 5000)
    ] * 3


def test_a_channel_begins_where_it_is_told(cluster: RealCluster, run: Run) -> None:
    """--from=beginning has what the first channel has; the places are shown, by node."""
    assert run("topic", "create", "begun", "--storage=log", cluster.flag).code == 0
    assert run("channel", "create", "begun", "first", cluster.flag).code == 0
    for number, nsqd in enumerate(cluster.nsqds):
        publish(nsqd, "begun", *[b"x"] * (number + 1))
    words = ["channel", "create", "begun", "audit", "--from=beginning"]
    ended = run(*words, "--json", cluster.flag)
    assert (ended.code, ended.err) == (0, "")
    assert ended.document["nodes"] == cluster.nodes
    assert [(one["node"], one["sequence"]) for one in ended.document["places"]] == [
        (node, 0) for node in cluster.nodes
    ]
    assert sorted(str(one["depth"]) for one in places(cluster, "begun", "audit")) == list("123")
    ended = run("channel", "create", "begun", "new", "--from=end", cluster.flag)
    lines = ended.out.splitlines()
    assert lines[0] == "channel new of topic begun: created on 3 nodes"
    assert [line.split()[::2] for line in lines[2:]] == [[node, "(end)"] for node in cluster.nodes]
    assert [one["depth"] for one in places(cluster, "begun", "new")] == [0] * 3
    until(lambda: "new" in request("GET", cluster.lookupd, "/channels?topic=begun")["channels"])
    ended = run(*words, cluster.flag)
    assert ended.code == 1
    assert ended.err.count("CHANNEL_EXISTS") == 3


def test_a_channel_that_nsqd_refuses_is_not_registered(cluster: RealCluster, run: Run) -> None:
    """A topic without a log has no places: each node says so, and nsqlookupd hears of nothing."""
    spread(cluster, run, "plain")
    ended = run("channel", "create", "plain", "audit", "--from=beginning", cluster.flag)
    assert ended.code == 1
    assert ended.err.count("TOPIC_HAS_NO_LOG") == 3
    assert request("GET", cluster.lookupd, "/channels?topic=plain")["channels"] == []


@pytest.mark.parametrize(
    ("to", "depth"),
    [
        ("beginning", 2),
        pytest.param("end", 0, marks=in_short_soak),
        ("2026-01-31T12:00:00.5+01:00", 2),
        pytest.param("2999-01-31t12:00:00z", 0, marks=in_short_soak),
    ],
)
def test_a_channel_is_moved(to: str, depth: int, cluster: RealCluster, run: Run) -> None:
    """Backwards and forwards in the log, on each node."""
    topic = f"sought{len(to)}"
    assert run("topic", "create", topic, "--storage=log", cluster.flag).code == 0
    assert run("channel", "create", topic, "c", cluster.flag).code == 0
    for nsqd in cluster.nsqds:
        publish(nsqd, topic, b"1", b"2")
    ended = run("channel", "seek", topic, "c", f"--to={to}", "--yes", cluster.flag)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == f"channel c of topic {topic}: moved on 3 nodes"
    rows = [line.split() for line in ended.out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [[node, str(2 - depth)] for node in cluster.nodes]
    assert [one["depth"] for one in places(cluster, topic, "c")] == [depth] * 3


@pytest.mark.parametrize(("typed", "code", "depth"), [("y\n", 0, 2), ("\n", 1, 1)])
def test_a_seek_is_asked_for(
    typed: str,
    code: int,
    depth: int,
    cluster: RealCluster,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The question says how much the channel forgets; a sequence is of one node."""
    topic = f"question{code}"
    (nsqd, *_), flag = cluster.nsqds, f"--nsqd-http-address={cluster.nsqds[0].http_address}"
    assert run("topic", "create", topic, "--storage=log", flag).code == 0
    assert run("channel", "create", topic, "c", flag).code == 0
    publish(nsqd, topic, b"1", b"2", b"3")
    assert run("channel", "seek", topic, "c", "--to=2", "--yes", flag).code == 0
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    ended = run("channel", "seek", topic, "c", "--to=1", flag)
    assert ended.code == code
    question = f"Seek channel c of topic {topic} to 1: 1 node, 1 message to forget. Go on? [y/N]"
    assert ended.err.startswith(question)
    assert [one["depth"] for one in places(cluster, topic, "c")] == [depth]
