"""The commands when nodes are down, stall or talk nonsense."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from tests.local.operate.stage import (
    LIMIT_S,
    Run,
    Stub,
    lookupd_answers,
    nsqd_answers,
    stalled,
)
from tests.processes import free_address

QUICK = "--http-client-request-timeout=200ms"


def lookupd_flag(lookupd: Stub) -> str:
    return f"--lookupd-http-address={lookupd.address}"


def nsqd_flags(*addresses: str) -> list[str]:
    return [f"--nsqd-http-address={address}" for address in addresses]


DELETED: dict[str, Any] = {
    "/topic/delete": (200, b""),
    "/channel/delete": (200, b""),
    "/lookup": (200, {"channels": ["c"], "producers": []}),
}


def test_a_failed_node_is_named_and_the_others_are_done(run: Run) -> None:
    """One is down, one stalls, one talks nonsense, one refuses: the fifth is done; exit code 1."""
    good = Stub(nsqd_answers("t", "c", **{"/topic/pause": (200, b"")}))
    refusing = Stub(nsqd_answers("t", **{"/topic/pause": (503, {"message": "EXITING"})}))
    nonsense = Stub({"/stats": (200, b"\x1b[2J<html>")})
    down = free_address()
    with ExitStack() as stack:
        hanging = stack.enter_context(stalled())
        for stub in (good, refusing, nonsense):
            stack.enter_context(stub)
        known = (good.address, refusing.address, nonsense.address, down, hanging)
        lookupd = stack.enter_context(Stub(lookupd_answers(*known)))
        ended = run("topic", "pause", "t", QUICK, lookupd_flag(lookupd))
        document = run("topic", "pause", "t", "--json", QUICK, lookupd_flag(lookupd)).document
    assert ended.code == 1
    assert ended.out == "topic t: paused on 1 node, 4 failed\n"
    lines = dict(line.removeprefix("trionsq: ").split(": ", 1) for line in ended.err.splitlines())
    assert list(lines) == sorted({*known} - {good.address})
    assert "Connection refused" in lines[down]
    assert "no answer within 0.2 s" in lines[hanging]
    assert "answered no statistics" in lines[nonsense.address]
    assert "EXITING" in lines[refusing.address]
    assert "\x1b" not in ended.err
    assert document["nodes"] == [good.address]
    assert [one["node"] for one in document["errors"]] == list(lines)
    assert good.posts == [("POST /topic/pause", {"topic": "t"})] * 2


@pytest.mark.parametrize("channel", [(), ("c",)], ids=["topic", "channel"])
def test_delete_goes_to_nsqlookupds_first(channel: tuple[str, ...], run: Run) -> None:
    """So that no consumer looks it up any more; what fails there does not stop the rest."""
    order: list[str] = []

    class Noting(Stub):
        """Notes the order among the stubs."""

        def __init__(self, name: str, answers: dict[str, tuple[int, Any]]) -> None:
            super().__init__(answers)
            self.requests = _Noted(name, order)

    path = "/channel/delete" if channel else "/topic/delete"
    nsqd = Noting("nsqd", nsqd_answers("t", "c", **DELETED))
    with nsqd, Noting("lookupd", lookupd_answers(nsqd.address) | DELETED) as lookupd:
        failing = Noting("failing", {path: (500, {"message": "INTERNAL_ERROR"})})
        with failing:
            kind = "channel" if channel else "topic"
            flags = [lookupd_flag(failing), lookupd_flag(lookupd)]
            ended = run(kind, "delete", "t", *channel, "--yes", *flags)
    assert ended.code == 1
    assert failing.address in ended.err
    assert sorted(order[:2]) == ["failing", "lookupd"]
    assert order[2:] == ["nsqd"]


class _Noted(list[tuple[str, dict[str, str]]]):
    """Requests; those that change something are noted elsewhere, too."""

    def __init__(self, name: str, order: list[str]) -> None:
        super().__init__()
        self._name, self._order = name, order

    def append(self, each: tuple[str, dict[str, str]]) -> None:
        super().append(each)
        if each[0].startswith("POST"):
            self._order.append(self._name)


def test_a_tombstone_has_the_name_that_nsqlookupd_knows(run: Run) -> None:
    """The node may be reached by another address than the one it announces."""
    info = {"broadcast_address": "nsqd.example.com", "http_port": 4151}
    nsqd = Stub(nsqd_answers("t", **DELETED, **{"/info": (200, info)}))
    lookupd = Stub({"/topic/tombstone": (200, b""), "/lookup": (404, {})})
    with nsqd, lookupd:
        flags = [lookupd_flag(lookupd), *nsqd_flags(nsqd.address)]
        assert run("topic", "delete", "t", "--yes", *flags).code == 0
    node = "nsqd.example.com:4151"
    assert lookupd.posts == [("POST /topic/tombstone", {"topic": "t", "node": node})]
    assert nsqd.posts == [("POST /topic/delete", {"topic": "t"})]


def test_a_node_that_can_not_be_hidden_keeps_its_topic(run: Run) -> None:
    """Nobody knows under which name nsqlookupds have it: consumers would still be sent there."""
    nsqd = Stub(nsqd_answers("t", **DELETED, **{"/info": (200, {"version": "1.3.0"})}))
    with nsqd, Stub({"/lookup": (404, {})}) as lookupd:
        flags = [lookupd_flag(lookupd), *nsqd_flags(nsqd.address)]
        ended = run("topic", "delete", "t", "--yes", *flags)
        assert (nsqd.posts, lookupd.posts) == ([], [])
    assert ended.code == 1
    assert ended.err == f"trionsq: {nsqd.address}: /info has no address; the topic is still there\n"


@pytest.mark.parametrize("info", [{}, {"tcp_port": -1}, {"tcp_port": "4150"}], ids=str)
def test_a_node_without_a_tcp_port_has_no_tail(info: dict[str, object], run: Run) -> None:
    """It listens on a unix socket, or is no nsqd: one line, and nothing is read."""
    with Stub({"/info": (200, info)}) as nsqd:
        ended = run("topic", "tail", "t", *nsqd_flags(nsqd.address))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"trionsq: {nsqd.address}: it listens on no TCP port\n"


def test_an_nsqlookupd_that_is_down(run: Run) -> None:
    """The other one is enough, and the exit code says it; without any nothing is done."""
    down = f"--lookupd-http-address={free_address()}"
    with Stub(nsqd_answers("t", **{"/topic/pause": (200, b"")})) as nsqd:
        with Stub(lookupd_answers(nsqd.address)) as lookupd:
            ended = run("topic", "pause", "t", down, lookupd_flag(lookupd))
        assert ended.code == 1
        assert nsqd.posts
    assert "Connection refused" in ended.err
    ended = run("node", "list", "--json", down)
    assert ended.code == 1
    assert ended.err.endswith("trionsq: no nsqlookupd answered\n")
    assert [one["node"] for one in ended.document["errors"]][1:] == [None]


def test_what_no_node_has(run: Run) -> None:
    """A topic or channel that is nowhere is an error, and nothing is sent."""
    with Stub(nsqd_answers("t", "c")) as nsqd:
        flags = nsqd_flags(nsqd.address)
        for words in (
            ("topic", "pause", "u"),
            ("topic", "delete", "u", "--yes"),
            ("channel", "list", "u"),
            ("channel", "empty", "t", "d", "--yes"),
            ("channel", "seek", "t", "d", "--to=end", "--yes"),
            ("channel", "create", "u", "c"),
            ("topic", "peek", "u"),
        ):
            ended = run(*words, *flags)
            assert (ended.code, ended.out) == (1, "")
            assert ended.err.endswith(": no node has it\n")
        assert nsqd.posts == []


def test_a_seek_that_is_answered_with_nonsense(run: Run) -> None:
    """It was done; where, is not known."""
    with Stub(nsqd_answers("t", "c", **{"/channel/seek": (200, [1])})) as nsqd:
        ended = run("channel", "seek", "t", "c", "--to=1", "--yes", *nsqd_flags(nsqd.address))
    assert ended.code == 0
    assert ended.out.splitlines()[0] == "channel c of topic t: moved on 1 node"
    assert ended.out.splitlines()[2].split() == [nsqd.address, "?", "?"]


def test_a_sequence_is_of_one_node(run: Run) -> None:
    """Several nodes number their messages by themselves: exit code 2, and nothing is sent."""
    with Stub(nsqd_answers("t", "c")) as first, Stub(nsqd_answers("t", "c")) as second:
        flags = nsqd_flags(first.address, second.address)
        ended = run("channel", "seek", "t", "c", "--to=12", "--yes", *flags)
        created = run("channel", "create", "t", "d", "--from=12", *flags)
        assert first.posts == second.posts == []
    assert (ended.code, created.code) == (2, 2)
    assert "a sequence number is of one node" in ended.err


def test_ctrl_c_is_no_answer_of_a_node() -> None:
    """Amid a request: one line, no traceback, and the exit code of shells for SIGINT."""
    with socket.create_server(("127.0.0.1", 0)) as node:
        flag = f"--nsqd-http-address=127.0.0.1:{node.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "trionsq.local.main", "topic", "list", flag],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell lets jobs in the background ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        with process, node.accept()[0] as connection:
            connection.settimeout(LIMIT_S)
            assert connection.recv(100).startswith(b"GET /stats")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert out == ""
    assert err == "trionsq: interrupted; a change may have reached some nodes\n"


def test_ready_of_other_nodes(run: Run) -> None:
    """The original has no /ready, and its /ping counts; a node that is not ready makes it 1."""
    unready = Stub({"/ready": (503, {"status": "not ready", "reason": "disk full"})})
    with Stub({"/ping": (200, b"OK")}) as original, unready:
        assert run("node", "ready", *nsqd_flags(original.address)).code == 0
        ended = run("node", "ready", "--json", *nsqd_flags(original.address, unready.address))
    assert ended.code == 1
    rows = {one["node"]: one for one in ended.document["nodes"]}
    assert rows[original.address]["ready"] is True
    assert "disk full" in rows[unready.address]["reason"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["topic", "list"], "is required"),
        (["topic", "list", "--nsqd-http-address=http://h:1"], "is not HOST:PORT"),
        (["topic", "list", "--nsqd-http-address=h:1", "--lookupd-http-address=h:2"], "not both"),
        (["topic", "pause", "a b", "--nsqd-http-address=h:1"], "is not the name of a topic"),
        (["topic", "list", "--nsqd-http-address=h:1", "--http-client-max-requests=0"], "at least"),
        (["topic", "list", "--nsqd-http-address=h:1", "--http-client-request-timeout=x"], "'x'"),
        (["topic", "settings", "--durability=always", "--nsqd-http-address=h:1"], "name of a"),
        (["topic", "settings", "--retain=0s", "--nsqd-http-address=h:1"], "name of a"),
        (["topic", "settings", "t", "--retain=long", "--nsqd-http-address=h:1"], "no duration of"),
        (["topic", "settings", "t", "--retain-bytes=-1", "--nsqd-http-address=h:1"], "nor default"),
        (["topic", "create", "t", "--register-only", "--nsqd-http-address=h:1"], "is for"),
        (["channel", "seek", "t", "c", "--to=tomorrow", "--nsqd-http-address=h:1"], "tomorrow"),
        (["channel", "seek", "t", "c", "--to=" + "9" * 19, "--nsqd-http-address=h:1"], "999"),
        (["channel", "create", "t", "c", "--from=2026-11", "--nsqd-http-address=h:1"], "2026"),
        (["channel", "peek", "t", "c", "--limit=0", "--nsqd-http-address=h:1"], "0"),
        (["channel", "fly"], "No such command"),
        (
            ["node", "list", "--nsqd-http-address=h:1", "--http-client-tls-root-ca-file=/no"],
            "failed to build the TLS config",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors(words: list[str], text: str, run: Run) -> None:
    """Nothing is asked; the exit code is 2."""
    ended = run(*words)
    assert (ended.code, ended.out) == (2, "")
    assert text in ended.err
