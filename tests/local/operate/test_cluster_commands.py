"""The commands topic, channel and node, on a real cluster of three nsqd."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from functools import partial

import pytest

from tests.local.operate.stage import (
    LIMIT_S,
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

# topics


def test_a_topic_is_created_everywhere(cluster: RealCluster, run: Run) -> None:
    """On each nsqd and at the nsqlookupd, and the output says on how many."""
    ended = run("topic", "create", "made", cluster.flag)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "topic made: created on 3 nodes and at 1 nsqlookupd\n"
    assert len(places(cluster, "made")) == 3
    assert "made" in request("GET", cluster.lookupd, "/topics")["topics"]


def test_a_topic_is_only_registered(cluster: RealCluster, run: Run) -> None:
    """--register-only creates it on no nsqd; the list shows it on no node; it can be deleted."""
    assert run("topic", "create", "known", "--register-only", cluster.flag).code == 0
    assert places(cluster, "known") == []
    listed = run("topic", "list", "--json", cluster.flag).document
    (row,) = [one for one in listed["topics"] if one["topic"] == "known"]
    assert row["nodes"] == 0
    ended = run("topic", "delete", "known", "--yes", cluster.flag)
    assert (ended.code, ended.out) == (
        0,
        "topic known: deleted on 0 nodes and at 1 nsqlookupd\n",
    )
    assert "known" not in request("GET", cluster.lookupd, "/topics")["topics"]


def test_storage_of_a_new_topic(cluster: RealCluster, run: Run) -> None:
    """--storage=log gives it a log on each node; settings shows that, and changes durability."""
    assert run("topic", "create", "logged", "--storage=log", cluster.flag).code == 0
    ended = run("topic", "settings", "logged", "--json", cluster.flag)
    assert [one["storage"] for one in ended.document["settings"]] == ["log"] * 3
    ended = run("topic", "settings", "logged", "--durability=always", cluster.flag)
    assert ended.out == "topic logged: set on 3 nodes\n"
    ended = run("topic", "settings", cluster.flag)
    rows = [line.split() for line in ended.out.splitlines()]
    assert rows[0] == ["node", "topic", "storage", "durability"]
    assert [row[2:] for row in rows if row[1] == "logged"] == [["log", "always"]] * 3


def test_a_topic_is_moved(cluster: RealCluster, run: Run) -> None:
    """move gives it a log on each node; a second time is an error of each node."""
    spread(cluster, run, "moving")
    assert run("topic", "move", "moving", cluster.flag).out == (
        "topic moving: moved to the log on 3 nodes\n"
    )
    ended = run("topic", "move", "moving", "--json", cluster.flag)
    assert ended.code == 1
    assert [one["node"] for one in ended.document["errors"]] == cluster.nodes
    assert ended.err.count("TOPIC_HAS_LOG") == 3
    assert ended.document["nodes"] == []


@pytest.mark.parametrize(
    "channel",
    [pytest.param((), marks=in_short_soak), ("billing",)],
    ids=["topic", "channel"],
)
def test_pause_and_unpause(channel: tuple[str, ...], cluster: RealCluster, run: Run) -> None:
    """On each node; the list says so, and "partly" if nodes differ."""
    topic = f"pausing{len(channel)}"
    spread(cluster, run, topic, *channel)
    kind = "channel" if channel else "topic"
    paused = partial(places, cluster, topic, *channel)

    def listed() -> object:
        words = ["channel", "list", topic] if channel else ["topic", "list"]
        document = run(*words, "--json", cluster.flag).document
        (row,) = [
            one for one in document[f"{kind}s"] if one[kind] == (channel[0] if channel else topic)
        ]
        return row["paused"]

    ended = run(kind, "pause", topic, *channel, cluster.flag)
    assert ended.code == 0
    assert ended.out.endswith(f"topic {topic}: paused on 3 nodes\n")
    assert [one["paused"] for one in paused()] == [True] * 3
    assert listed() == "yes"
    single = f"--nsqd-http-address={cluster.nodes[0]}"
    assert "on 1 node\n" in run(kind, "unpause", topic, *channel, single).out
    assert listed() == "partly"
    assert run(kind, "unpause", topic, *channel, cluster.flag).code == 0
    assert listed() == "no"


def test_empty_discards_what_it_says(cluster: RealCluster, run: Run) -> None:
    """Of a topic its own messages, of a channel those of the channel."""
    spread(cluster, run, "full", "c")
    for nsqd in cluster.nsqds:
        publish(nsqd, "full", b"1", b"2")
    until(lambda: [one["depth"] for one in places(cluster, "full", "c")] == [2] * 3)
    assert run("topic", "empty", "full", "--yes", cluster.flag).code == 0
    assert [one["depth"] for one in places(cluster, "full", "c")] == [2] * 3
    assert run("channel", "empty", "full", "c", "--yes", cluster.flag).out == (
        "channel c of topic full: emptied on 3 nodes\n"
    )
    assert [one["depth"] for one in places(cluster, "full", "c")] == [0] * 3


def test_delete_leaves_nothing_registered(cluster: RealCluster, run: Run) -> None:
    """A channel, then its topic, on each node and at the nsqlookupd."""
    spread(cluster, run, "going", "c")
    assert run("channel", "delete", "going", "c", "--yes", cluster.flag).out == (
        "channel c of topic going: deleted on 3 nodes and at 1 nsqlookupd\n"
    )
    assert places(cluster, "going", "c") == []
    assert request("GET", cluster.lookupd, "/channels?topic=going")["channels"] == []
    ended = run("topic", "delete", "going", "--yes", "--json", cluster.flag)
    assert ended.document == {
        "action": "topic delete",
        "topic": "going",
        "nodes": cluster.nodes,
        "lookupds": [cluster.lookupd],
        "errors": [],
    }
    assert places(cluster, "going") == []
    assert "going" not in request("GET", cluster.lookupd, "/topics")["topics"]


def test_delete_on_one_node_of_a_cluster(cluster: RealCluster, run: Run) -> None:
    """With both addresses, the node is hidden from lookups and the others keep the topic."""
    spread(cluster, run, "partial")
    flags = [f"--nsqd-http-address={cluster.nodes[1]}", cluster.flag]
    ended = run("topic", "delete", "partial", "--yes", *flags)
    assert ended.out == "topic partial: deleted on 1 node and at 1 nsqlookupd\n"
    left = [cluster.nodes[0], cluster.nodes[2]]

    def producers() -> list[str]:
        answer = request("GET", cluster.lookupd, "/lookup?topic=partial")
        return sorted(f"127.0.0.1:{one['http_port']}" for one in answer["producers"])

    assert producers() == left
    assert len(places(cluster, "partial")) == 2


@pytest.mark.parametrize(
    ("typed", "code", "left"),
    [("y\n", 0, 0), pytest.param("no\n", 1, 3, marks=in_short_soak), ("\n", 1, 3), ("", 1, 3)],
)
def test_a_terminal_is_asked(
    typed: str,
    code: int,
    left: int,
    cluster: RealCluster,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The question names nodes, channels and messages; any answer but yes changes nothing."""
    topic = f"asked{len(typed)}{code}"
    spread(cluster, run, topic, "c")
    publish(cluster.nsqds[0], topic, b"1", b"2")
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    ended = run("topic", "delete", topic, cluster.flag)
    assert ended.code == code
    question = f"Delete topic {topic}: 3 nodes, 1 channel, 2 messages. Go on? [y/N]"
    assert ended.err.startswith(question)
    assert len(places(cluster, topic)) == left
    if code:
        assert ended.err.endswith("Nothing was done.\n")
        assert ended.out == ""


def test_without_a_terminal_nothing_is_destroyed(
    cluster: RealCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can answer: exit code 2, and a line that names --yes."""
    spread(cluster, run, "kept", "c")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    for words in (
        ("topic", "empty", "kept"),
        ("topic", "delete", "kept"),
        ("channel", "empty", "kept", "c"),
        ("channel", "delete", "kept", "c"),
        ("channel", "seek", "kept", "c", "--to=beginning"),
    ):
        ended = run(*words, cluster.flag)
        assert ended.code == 2
        assert "without a terminal, add --yes" in ended.err
    assert len(places(cluster, "kept", "c")) == 3


# channels


def test_channels_are_summed(cluster: RealCluster, run: Run) -> None:
    """A row for each channel, with its messages on all nodes."""
    spread(cluster, run, "summed", "a", "b")
    for nsqd in cluster.nsqds:
        publish(nsqd, "summed", b"x", b"y")
    until(lambda: [one["depth"] for one in places(cluster, "summed", "b")] == [2] * 3)
    ended = run("channel", "list", "summed", "--json", cluster.flag)
    assert ended.document == {
        "topic": "summed",
        "channels": [
            {
                "channel": name,
                "nodes": 3,
                "depth": 6,
                "in_flight": 0,
                "deferred": 0,
                "requeued": 0,
                "timed_out": 0,
                "clients": 0,
                "paused": "no",
            }
            for name in ("a", "b")
        ],
        "errors": [],
    }
    table = run("channel", "list", "summed", cluster.flag).out.splitlines()
    assert table[0].split() == [
        *("channel", "nodes", "depth", "in", "flight", "deferred"),
        *("requeued", "timed", "out", "clients", "paused"),
    ]
    assert table[1].split() == ["a", "3", "6", "0", "0", "0", "0", "0", "no"]


def test_a_channel_before_its_topic(cluster: RealCluster, run: Run) -> None:
    """Over nsqlookupd it is registered; an nsqd alone can't have it."""
    ended = run("channel", "create", "later", "c", cluster.flag)
    assert ended.out == "channel c of topic later: created on 0 nodes and at 1 nsqlookupd\n"
    assert request("GET", cluster.lookupd, "/channels?topic=later")["channels"] == ["c"]
    ended = run("channel", "create", "later", "c", f"--nsqd-http-address={cluster.nodes[0]}")
    assert (ended.code, ended.err) == (1, "trionsq: topic later: no node has it\n")


def test_peek(cluster: RealCluster, run: Run) -> None:
    """The messages of each node, cut to the table, whole as JSON; they stay where they are."""
    spread(cluster, run, "peeked", "c")
    long = b"x" * 300
    publish(cluster.nsqds[0], "peeked", b"one\ttab", long)
    publish(cluster.nsqds[1], "peeked", b"\xff\x00")
    until(lambda: sum(int(str(one["depth"])) for one in places(cluster, "peeked", "c")) == 3)
    ended = run("channel", "peek", "peeked", "c", cluster.flag)
    lines = ended.out.splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 100
    assert "one\\ttab" in ended.out
    assert "b'\\xff\\x00'" in ended.out
    ended = run("channel", "peek", "peeked", "c", "--limit=2", "--json", cluster.flag)
    bodies = [message["body"] for node in ended.document["nodes"] for message in node["messages"]]
    assert long.decode() in bodies
    assert [one["node"] for one in ended.document["nodes"]] == cluster.nodes
    assert len(run("topic", "peek", "peeked", cluster.flag).out.splitlines()) == 1
    state = "--state=in_flight"
    assert len(run("channel", "peek", "peeked", "c", state, cluster.flag).out.splitlines()) == 1
    assert sum(int(str(one["depth"])) for one in places(cluster, "peeked", "c")) == 3


def test_a_deferred_message_is_cancelled(cluster: RealCluster, run: Run) -> None:
    """By its id, which the list shows; an id that no node has is an error."""
    spread(cluster, run, "waiting", "c")
    words = ("channel", "deferred", "waiting", "c", cluster.flag)
    for node in cluster.nodes[:2]:
        request("POST", node, "/pub?topic=waiting&defer=600000", b"wait")
    until(lambda: len(run(*words).out.splitlines()) == 3)
    listed = run(*words).out.splitlines()
    _, id_, due, *_ = listed[1].split()
    ended = run("channel", "cancel", "waiting", "c", id_, f"--due={due}", cluster.flag)
    assert ended.err == ""
    assert ended.out == f"message {id_} of channel c of topic waiting: cancelled on 1 node\n"
    again = run("channel", "cancel", "waiting", "c", id_, f"--due={due}", cluster.flag)
    assert (again.code, "no node has deferred" in again.err) == (1, True)
    _, other, *_ = listed[2].split()
    assert run("channel", "cancel", "waiting", "c", other, cluster.flag).code == 0
    missing = run("channel", "cancel", "waiting", "c", other, cluster.flag)
    assert (missing.code, "--due" in missing.err) == (1, True)
    assert len(run(*words).out.splitlines()) == 1


def test_tail(cluster: RealCluster) -> None:
    """The bodies of a channel, a line each, from an nsqd that is named by its HTTP address."""
    address = cluster.nsqds[0].http_address
    request("POST", address, "/topic/create?topic=tailed")
    request("POST", address, "/channel/create?topic=tailed&channel=c")
    publish(cluster.nsqds[0], "tailed", b"one", b"two")
    words = ["topic", "tail", "tailed", "--channel=c", "-n", "2", f"--nsqd-http-address={address}"]
    done = subprocess.run(
        [sys.executable, "-m", "trionsq.local.main", *words],
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == b"one\ntwo\n"


def test_tail_is_nsq_tail(cluster: RealCluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flags name the nsqlookupds, or the TCP addresses of the nsqds."""
    calls: list[list[str]] = []

    def tail(words: list[str]) -> int:
        calls.append(words)
        return 0

    monkeypatch.setattr("trionsq.tools.nsq_tail.main", tail)
    assert run("topic", "tail", "t", cluster.flag).code == 0
    flags = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in cluster.nsqds]
    assert run("topic", "tail", "t", "--channel=c", *flags).code == 0
    common = ["--topic=t", "--channel=", "-n=0"]
    assert calls[0] == [*common, cluster.flag]
    assert set(calls[1]) == {
        *("--topic=t", "--channel=c", "-n=0"),
        *(f"--nsqd-tcp-address={nsqd.tcp_address}" for nsqd in cluster.nsqds),
    }
    assert run("topic", "tail", "t", "--json", cluster.flag).code == 2
    assert run("topic", "tail", "t", "--from=beginning", "--to=7", cluster.flag).code == 0
    assert run("topic", "tail", "t", "--from=end", flags[0]).code == 0
    assert calls[2] == [*common, cluster.flag, "--from=beginning", "--to=7"]
    assert calls[3] == [*common, "--from=end", flags[0]]
    for wrong in (("--to=7",), ("--from=7", "--channel=c"), ("--from=yesterday",)):
        assert run("topic", "tail", "t", *wrong, cluster.flag).code == 2


# nodes


def test_nodes(cluster: RealCluster, run: Run) -> None:
    """list, info and ready know all three."""
    document = run("node", "list", "--json", cluster.flag).document
    assert [one["node"] for one in document["nodes"]] == cluster.nodes
    assert {one["health"] for one in document["nodes"]} == {"OK"}
    info = run("node", "info", "--json", cluster.flag).document
    assert {one["broadcast_address"] for one in info["nodes"]} == {"127.0.0.1"}
    ended = run("node", "ready", cluster.flag)
    assert ended.code == 0
    assert [line.split() for line in ended.out.splitlines()] == [
        ["node", "ready", "reason"],
        *([node, "yes"] for node in cluster.nodes),
    ]


def test_every_document_is_json_and_every_table_fits(cluster: RealCluster, run: Run) -> None:
    """Topics with the longest names, in 100 columns; the JSON has the whole names."""
    name = "n" * 64
    spread(cluster, run, name, "c" * 64)
    for words in (
        ("topic", "list"),
        ("topic", "settings"),
        ("channel", "list", name),
        ("node", "list"),
        ("node", "info"),
        ("node", "ready"),
    ):
        table = run(*words, cluster.flag)
        assert table.code == 0
        assert max(map(len, table.out.splitlines())) <= 100
        document = run(*words, "--json", cluster.flag)
        assert json.loads(document.out)["errors"] == []
        assert document.out.endswith("}\n")
    assert name in run("topic", "list", "--json", cluster.flag).out
    run("topic", "delete", name, "--yes", cluster.flag)
