"""trionsq deadletter, on a real cluster of three nsqd."""

from __future__ import annotations

import socket
import sys

import pytest

from tests.local.operate.stage import RealCluster, Run, Terminal, publish, request, spread, until
from trionsq.testing import OpenBroker


def let_die(nsqd: OpenBroker, topic: str, channel: str, count: int) -> None:
    """Make dead letters of so many new messages of a channel."""
    publish(nsqd, topic, *[b"x%d" % number for number in range(count)])
    host, _, port = nsqd.tcp_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"  V2SUB %b %b\nRDY 100\n" % (topic.encode(), channel.encode()))
        data = b""
        done = 0
        while done < count:
            data += client.recv(65536)
            while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4])):
                if data[4:8] == b"\0\0\0\2":
                    path = f"/deadletter/add?topic={topic}&channel={channel}&reason=bad"
                    id_ = data[18:34].decode()
                    request("POST", nsqd.http_address, f"{path}&id={id_}")
                    done += 1
                data = data[end:]
    listed = f"/deadletter?topic={topic}&channel={channel}"
    until(lambda: request("GET", nsqd.http_address, listed)["count"] == count)


def test_letters_of_a_cluster(
    cluster: RealCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed with their nodes, go back to their channel, and are discarded after a
    question; a node without the channel is no error."""
    spread(cluster, run, "poison", "c")
    for number, nsqd in enumerate(cluster.nsqds):
        let_die(nsqd, "poison", "c", number + 1)
    words = ["poison", "c", cluster.flag]
    ended = run("deadletter", "list", *words)
    lines = ended.out.splitlines()
    assert (ended.code, len(lines), lines[-1]) == (0, 8, "6 dead letters")
    assert lines[0].split() == ["id", "given", "up", "reason", "attempts", "state", "body"]
    document = run("deadletter", "list", "--reason=bad", "--limit=1", "--json", *words).document
    assert (document["count"], len(document["deadletters"])) == (6, 3)
    assert sorted(one["at"] for one in document["deadletters"]) == cluster.nodes
    letter = document["deadletters"][0]
    ended = run("deadletter", "replay", f"--id={letter['id']}", *words)
    assert (ended.code, ended.out) == (
        0,
        "1 dead letter on their way back to the channel, on 1 node\n",
    )
    until(lambda: run("deadletter", "list", "--json", *words).document["count"] == 5)
    ended = run("deadletter", "discard", *words)
    assert (ended.code, ended.out) == (2, "")
    assert "--yes" in ended.err
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    ended = run("deadletter", "discard", "--older-than=0s", *words)
    assert ended.code == 1
    assert "Discard 5 dead letters for good. Go on?" in ended.err
    left = run("deadletter", "list", "--json", *words).document["deadletters"]
    ended = run("deadletter", "discard", "--count=1", "--yes", "--json", *words)
    assert ended.document["count"] == len({one["at"] for one in left})  # of each node one
    assert run("deadletter", "discard", "--older-than=1h", "--yes", *words).code == 0
    assert run("deadletter", "discard", "--yes", *words).code == 0
    assert run("deadletter", "list", *words).out == "0 dead letters\n"
