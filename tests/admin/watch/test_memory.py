"""What the poller remembers of nodes: dead ones, expected ones, restarts, over its own restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from admin.watch.node import WatchedNode
from admin.watch.snapshot import NodeRow, Restart
from tests.admin.watch.fakes import (
    SAID,
    START,
    FakeNode,
    always,
    channel,
    good,
    make,
    polls,
    refuses,
    running,
    stats,
    topic,
)


async def test_a_node_lookupd_forgot_stays_until_it_is_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """That is how a dead node looks; only an admin knows whether it was taken away."""
    node = FakeNode("dead:4151", always(SAID))
    watched = make([node, good()])
    async with running(watched) as poller:
        with poller.watch():
            await polls(poller, 1)
            watched.cluster.listed = [good()]
            found = await polls(poller, 15)
            assert not found.nodes["dead:4151"].registered
            assert "node-unregistered" in [problem.kind for problem in found.problems]
            assert not poller.forget("dead:4151")
            node.answer = refuses("dead:4151")
            found = await polls(poller, 10)
            assert found.problems[0].kind == "node-silent"
        await trio.sleep(5 * 3600.0)
        assert not poller.forget("good1:4151")
        with poller.watch():
            assert "dead:4151" in (await polls(poller, 1)).nodes
            assert poller.forget("dead:4151")
            assert list((await polls(poller, 1)).nodes) == ["good1:4151"]


async def test_an_expected_node_is_missed_from_the_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """--expect-nsqd: it never answered and nobody lists it, and still it is critical."""
    expected = FakeNode("must:4151", refuses("must:4151"))
    watched = make([good(), expected], expect_nsqd=("must:4151",))
    watched.cluster.listed = [good()]
    async with running(watched) as poller:
        found = await poller.current()
        assert found is not None
        assert found.problems[0].where == "must:4151"
        assert found.problems[0].severity == "critical"
        assert not poller.forget("must:4151")
        expected.answer = always(SAID)
        with poller.watch():
            found = await polls(poller, 2)
        assert found.nodes["must:4151"].up


async def test_a_restart_that_lost_messages_is_a_warning(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With their number, for an hour, and a mark in the charts; another restart is a notice."""
    node = FakeNode("a:1", always(stats(topic("t", 100, channel("c", 90, 100)))))
    async with running(make([node])) as poller:
        with poller.watch():
            await polls(poller, 2)
            at = START + round(trio.current_time())
            node.answer = always(stats(topic("t", 0, channel("c", 30, 0)), start_time=at))
            (problem,) = (await polls(poller, 2)).problems
            assert (problem.severity, problem.kind) == ("warning", "node-restarted")
            assert "Of 90 messages that it held before, 60 are gone." in problem.what
            assert [mark.text for mark in poller.marks.all()] == ["restart of a:1, 60 lost"]
            at += 60
            node.answer = always(stats(topic("t", 0, channel("c", 30, 0)), start_time=at))
            (problem,) = (await polls(poller, 2)).problems
            assert (problem.severity, problem.kind) == ("notice", "node-restarted")
            await trio.sleep(3700.0)
            assert (await polls(poller, 1)).problems == []


async def test_the_state_file_outlives_nsqadmin(tmp_path: Path) -> None:
    """A node that died while nsqadmin was down is missed, with what it held."""
    path = str(tmp_path / "state")
    dead = FakeNode("dead:4151", always(stats(topic("t", 40, channel("c", 7), depth=33))))
    async with running(make([dead, good()], interval_s=0.05, state_file=path)) as poller:
        with poller.watch():
            await polls(poller, 2)
    dead.answer = refuses("dead:4151")
    watched = make([dead, good()], interval_s=0.05, state_file=path)
    watched.cluster.listed = [good()]
    async with running(watched) as poller:
        with poller.watch():
            found = await polls(poller, 1)
        row = found.nodes["dead:4151"]
        assert (row.up, row.depth, row.answered_s is None) == (False, 40, False)
        assert found.problems[0].kind == "node-silent"
        assert found.channels["t", "c"].missing_messages == 7
        # Its restart is seen too, though another nsqadmin saw it before.
        again = stats(topic("t", 0, channel("c", 7)), start_time=START + 500)
        dead.answer = always(again)
        with poller.watch():
            found = await polls(poller, 2)
        assert found.restarts["dead:4151"].missing == 33


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff\x00", b'{"version":9,"nodes":[]}'])
async def test_a_state_file_that_makes_no_sense_is_moved_aside(body: bytes, tmp_path: Path) -> None:
    """nsqadmin starts without it, and keeps it for whoever wants to look."""
    path = tmp_path / "state"
    path.write_bytes(body)
    async with running(make([good()], interval_s=0.05, state_file=str(path))) as poller:
        with poller.watch():
            found = await polls(poller, 1)
        assert list(found.nodes) == ["good1:4151"]
    assert (tmp_path / "state.bad").read_bytes() == body
    assert b"good1" in path.read_bytes()


def test_what_consumers_may_have_finished_is_not_missing() -> None:
    """Between the last answer and the restart, at the last rate: a proper restart is no alarm."""
    node = WatchedNode(good().producer())
    node.answered = NodeRow(answered_s=START + 10.0, rate_out=2.0)
    node.note_restart((100, 50), START + 20)
    assert node.restart == Restart(START + 20.0, 100, 30)
    node.note_restart((100, 50), START + 60)
    assert node.restart == Restart(START + 60.0, 100, 0)
