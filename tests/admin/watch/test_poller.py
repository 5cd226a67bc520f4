"""When the poller asks whom, and what viewers see of it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from admin.cluster.shapes import NodeStats
from admin.upstream import UpstreamError
from admin.watch.health import LEFT_S
from admin.watch.poller import (
    ANSWER_WAIT_S,
    IDLE_EVERY_S,
    SILENT_WAIT_S,
    Poller,
)
from admin.watch.snapshot import WatchEndedError
from tests.admin.watch.fakes import (
    SAID,
    START,
    FakeNode,
    always,
    channel,
    good,
    hanging,
    make,
    polls,
    refuses,
    running,
    stats,
    topic,
)


async def test_polls_are_seldom_while_nobody_looks(autojump_clock: trio.testing.MockClock) -> None:
    """Without viewers the cluster is asked at the start, and then every IDLE_EVERY_S."""
    node = good()
    async with running(make([node])) as poller:
        await trio.sleep(3600 - 1)
        assert poller.snapshot is not None
        assert node.asked == 3600 / IDLE_EVERY_S


async def test_a_node_that_dies_while_nobody_looks_is_missed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is known from the start, and still critical hours later, with what it held."""
    node = FakeNode("dead:4151", always(stats(topic("t", 40, depth=40))))
    watched = make([node, good()])
    async with running(watched) as poller:
        await trio.sleep(61.0)
        node.answer = refuses("dead:4151")
        watched.cluster.listed = [good()]
        await trio.sleep(8 * 3600.0)
        found = await poller.current()
        assert found is not None
        row = found.nodes["dead:4151"]
        assert (row.up, row.depth, row.topics) == (False, 40, 1)
        assert row.answered_s == START + 60.0
        assert (found.problems[0].kind, found.problems[0].severity) == ("node-silent", "critical")
        assert "It held 40 messages when it last answered" in found.problems[0].what
        assert found.total.depth == 3
        assert (found.total.missing_nodes, found.total.missing_messages) == (1, 40)
        assert [producer.node for producer in poller.producers("t")] == ["dead:4151", "good1:4151"]
        assert (last := poller.last_seen("dead:4151", "t")) is not None
        assert (last[0], last[1][""].held) == (START + 60.0, 40)
        assert found.topics["t"].missing_nodes == 1


async def test_a_topic_of_a_dead_node_stays_in_the_list(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A topic that only a dead node had is there, as missing, and its chart has no zeros."""
    only = stats(topic("legacy", 40, channel("archive", 7), depth=33))
    node = FakeNode("dead:4151", always(only))
    watched = make([node, good()])
    async with running(watched) as poller:
        with poller.watch():
            await polls(poller, 2)
            node.answer = refuses("dead:4151")
            found = await polls(poller, 4)
        row, of_channel = found.topics["legacy"], found.channels["legacy", "archive"]
        assert (row.nodes, row.missing_nodes, row.missing_messages) == (0, 1, 40)
        assert (of_channel.nodes, of_channel.missing_messages) == (0, 7)
        drawn = poller.history.series(("topic", "legacy"))
        assert drawn is not None
        assert 0.0 not in drawn.depth


async def test_a_node_that_was_emptied_and_taken_away_is_a_warning(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Without messages and registered nowhere: critical for ten minutes, then a warning."""
    node = FakeNode("left:4151", always(stats()))
    watched = make([node, good()])
    async with running(watched) as poller:
        with poller.watch():
            await polls(poller, 1)
            node.answer = refuses("left:4151")
            watched.cluster.listed = [good()]
            found = await polls(poller, 10)
            assert found.problems[0].severity == "critical"
            await trio.sleep(LEFT_S)
            found = await polls(poller, 1)
            assert [problem.severity for problem in found.problems] == ["warning"]
            assert not found.nodes["left:4151"].up


async def test_a_chart_has_no_holes_because_nobody_looked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Seldom polls fill the slots between them."""
    async with running(make([good()])) as poller:
        await trio.sleep(1800.0)
        drawn = poller.history.series(("channel", "t", "c"))
        assert drawn is not None
        known = [depth for depth in drawn.depth if depth == 3.0]
        assert len(known) >= 1800 / poller.history.slot_s - 1


async def test_one_poll_for_all_viewers(autojump_clock: trio.testing.MockClock) -> None:
    """Fifty viewers cost what one costs, and all see the same snapshots."""
    node = good()
    seen = list[list[int]]()

    async def view(poller: Poller) -> None:
        numbers = list[int]()
        seen.append(numbers)
        with poller.watch():
            while len(numbers) < 4:
                numbers.append((await poller.changed(numbers[-1] if numbers else 0)).sequence)

    async with running(make([node])) as poller, trio.open_nursery() as viewers:
        for _ in range(50):
            viewers.start_soon(view, poller)
    assert seen == [[1, 2, 3, 4]] * 50
    assert node.asked == 4


async def test_polls_stay_frequent_for_two_intervals_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After the last viewer they are seldom: who changes the page starts from what is fresh."""
    node = good()
    async with running(make([node])) as poller:
        with poller.watch():
            await polls(poller, 1)
        assert node.asked == 1
        await trio.sleep(IDLE_EVERY_S)
        assert node.asked == 2
        await trio.sleep(IDLE_EVERY_S)
        assert node.asked == 3
        assert poller.viewers == 0


async def test_who_comes_later_gets_a_fresh_snapshot(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """`current` gives the last one while it is fresh, else polls at once."""
    async with running(make([good()])) as poller:
        first = await poller.current()
        assert first is not None
        assert await poller.current() is first
        await trio.sleep(3600)
        began_s = trio.current_time()
        later = await poller.current()
        assert later is not None
        assert later.sequence > first.sequence
        assert later.taken_s == START + began_s
        assert trio.current_time() == began_s


async def test_a_page_does_not_wait_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    """An nsqlookupd that hangs: `current` gives up, with what there is."""
    watched = make([good()])
    watched.cluster.lists_after_s = 1e6
    async with running(watched) as poller:
        began_s = trio.current_time()
        assert await poller.current(3.0) is None
        assert trio.current_time() == began_s + 3.0


async def test_a_node_that_hangs_costs_its_own_row(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The others are there in time, poll by poll; it says for how long it has not answered."""
    nodes = [hanging(), good(1), good(2)]
    async with running(make(nodes, interval_s=3.0)) as poller:
        with poller.watch():
            for number in range(6):
                found = await polls(poller, 1)
                # Until it is known to be silent: the first question ends in the second poll.
                assert found.poll_s <= (ANSWER_WAIT_S if number < 2 else SILENT_WAIT_S)
                assert found.poll_s >= (ANSWER_WAIT_S if number < 2 else 0.0)
                assert [row.up for row in found.nodes.values()] == [False, True, True]
                assert found.channels["t", "c"].depth == 6
                assert found.total.nodes == 2
                assert "no answer" in found.nodes["hangs1:4151"].error
            assert found.problems[0].kind == "node-silent"
            assert poller.silent_nodes == {"hangs1:4151"}
    assert nodes[1].asked == 6


async def test_many_that_hang_do_not_hold_up_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """More hanging nodes than there are places in the queue, and still the good one is up."""
    nodes = [*(hanging(number) for number in range(40)), good()]
    watched = make(nodes)
    async with running(watched) as poller:
        with poller.watch():
            # Nobody knows at first who hangs.
            await trio.sleep(60.0)
            for _ in range(5):
                found = await polls(poller, 1)
                assert found.nodes["good1:4151"].up
                assert len(found.nodes) == 41
    assert watched.cluster.fake.most <= poller.requests_max


async def test_requests_under_way_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """A hundred slow nodes are asked some at a time; half of the places are left to pages."""
    nodes = [FakeNode(f"n{number}:1", always(SAID, 0.1)) for number in range(100)]
    for node in nodes:
        node.metrics = b""
    watched = make(nodes)
    async with running(watched) as poller:
        with poller.watch():
            found = await polls(poller, 2)
        assert found.total.nodes == 100
    assert watched.cluster.fake.most == 8
    assert poller.requests_max == 12


async def test_a_slow_answer_is_part_of_the_next_poll(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Later than a poll waits, sooner than the time limit: known one poll later, asked once."""
    slow = FakeNode("slow:4151", always(SAID, ANSWER_WAIT_S + 1))
    async with running(make([slow])) as poller:
        with poller.watch():
            first = await polls(poller, 1)
            assert not first.nodes["slow:4151"].up
            for _ in range(3):
                assert (await polls(poller, 1)).nodes["slow:4151"].up
    assert slow.asked == 4


async def test_a_node_that_is_back_makes_no_jump(autojump_clock: trio.testing.MockClock) -> None:
    """Down for some polls: its row says why; then the total's rate is that of the time away."""
    down = False

    async def answer() -> NodeStats:
        await trio.lowlevel.checkpoint()
        if down:
            raise UpstreamError("n:1", "connection refused")
        return stats(topic("t", round(100 * trio.current_time())))

    async with running(make([FakeNode("n:1", answer)])) as poller:
        with poller.watch():
            found = await polls(poller, 3)
            assert found.total.rate_in == pytest.approx(100.0)
            answered_s = found.nodes["n:1"].answered_s
            down = True
            found = await polls(poller, 3)
            row = found.nodes["n:1"]
            assert (row.up, row.error, row.answered_s) == (False, "connection refused", answered_s)
            assert found.total.rate_in is None
            down = False
            found = await polls(poller, 1)
            assert found.nodes["n:1"].up
            assert found.total.rate_in == pytest.approx(100.0)


async def test_a_liar_costs_its_own_row(autojump_clock: trio.testing.MockClock) -> None:
    """Statistics of another shape are an error that names the node."""
    liar = FakeNode("liar:1", always(stats(topic(1))))  # type: ignore[arg-type]
    async with running(make([liar, good()])) as poller:
        with poller.watch():
            found = await polls(poller, 1)
    assert "liar:1 answered no statistics" in found.nodes["liar:1"].error
    assert found.total.nodes == 1


async def test_without_lookupd_the_known_nodes_stay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """nsqlookupd away: a warning, and the nodes are asked on."""
    watched = make([good()])
    async with running(watched) as poller:
        with poller.watch():
            await polls(poller, 1)
            watched.cluster.listed = None
            found = await polls(poller, 10)
    assert found.nodes["good1:4151"].up
    assert found.nodes["good1:4151"].registered
    assert [problem.kind for problem in found.problems] == ["lookup"]


async def test_without_lookupd_from_the_start_a_snapshot_says_so(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """No nodes, and why."""
    watched = make([])
    watched.cluster.listed = None
    async with running(watched) as poller:
        found = await poller.current()
    assert found is not None
    assert found.nodes == {}
    assert "connection refused" in found.warnings[0]


async def test_nodes_are_asked_for_now_and_then(autojump_clock: trio.testing.MockClock) -> None:
    """Not with each poll, for in large clusters that answer is long."""
    watched = make([good()])
    async with running(watched) as poller:
        with poller.watch():
            await polls(poller, 13)
    assert watched.cluster.asked == 5


async def test_ages_come_from_our_nsqd(autojump_clock: trio.testing.MockClock) -> None:
    """Asked once a minute where /metrics is, once where it is not, and again after a restart."""
    ours, theirs = good(1), good(2)
    ours.metrics = b'nsqd_channel_oldest_message_age_seconds{topic="t",channel="c"} 42.0\n'
    watched = make([ours, theirs])
    async with running(watched) as poller:
        with poller.watch():
            found = await polls(poller, 3)
            assert found.channels["t", "c"].oldest_age_s == 42.0
            assert found.nodes["good2:4151"].oldest_age_s is None
            theirs.metrics = ours.metrics
            found = await polls(poller, 30)
            assert found.nodes["good2:4151"].oldest_age_s is None
            theirs.answer = always(stats(*SAID.topics or (), start_time=START + 1))
            found = await polls(poller, 3)
            assert found.nodes["good2:4151"].oldest_age_s == 42.0


async def test_a_slow_viewer_skips(autojump_clock: trio.testing.MockClock) -> None:
    """It gets the newest when it comes, not those that it missed."""
    async with running(make([good()])) as poller:
        with poller.watch():
            await polls(poller, 1)
            await trio.sleep(26.0)
            assert (await poller.changed(1)).sequence == 6


async def test_the_end_wakes_all_who_wait(autojump_clock: trio.testing.MockClock) -> None:
    """At shutdown nobody waits for a snapshot that never comes."""
    watched = make([hanging()])
    ended = 0

    async def view() -> None:
        nonlocal ended
        with poller.watch(), pytest.raises(WatchEndedError):
            await poller.changed(10)
        ended += 1

    async with running(watched) as poller, trio.open_nursery() as viewers:
        for _ in range(3):
            viewers.start_soon(view)
        await trio.sleep(7.0)
        watched.stopping.set()
        with trio.fail_after(0.1):
            while ended < 3:
                await trio.lowlevel.checkpoint()


async def test_a_defect_costs_one_poll(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something raises that should not: it is logged, and the next poll is made."""
    watched = make([good()])
    broken = True

    async def health(*_: object) -> list[object]:
        if broken:
            raise RuntimeError("a defect")
        return []

    monkeypatch.setattr("admin.watch.poller.problems", health)
    async with running(watched) as poller:
        with poller.watch():
            await trio.sleep(11.0)
            assert poller.snapshot is None
            broken = False
            assert (await polls(poller, 1)).sequence == 1
