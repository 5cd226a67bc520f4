"""Answers of nodes become rows."""

from __future__ import annotations

import msgspec
import pytest
import trio

from admin.cluster.shapes import NodeStats
from admin.upstream import UpstreamError
from admin.watch.gathering import Gathering
from admin.watch.node import Counters
from admin.watch.requests import NodeMetrics, poll_stats
from admin.watch.snapshot import NodeRow, Snapshot
from admin.watch.vitals import Age, Ages, Reading, read_metrics
from tests.admin.watch.fakes import channel, stats, topic


async def figures(said: NodeStats) -> NodeMetrics:
    """As it comes from the node."""
    return await poll_stats("a:1", msgspec.json.encode(said))


async def gathered(*nodes: tuple[NodeStats, Counters, Ages | None], now_s: float = 1.0) -> Snapshot:
    """A snapshot of nodes a:1, a:2 and so on."""
    gathering = Gathering(Snapshot(1, now_s))
    for number, (said, counters, ages) in enumerate(nodes, 1):
        row = NodeRow(node=f"a:{number}")
        await gathering.add_answer(row, await figures(said), counters, now_s, ages)
    return await gathering.finish()


async def test_rows_are_sums_over_nodes() -> None:
    """A channel on two nodes is one row; a node's row has what is on it, the total has all."""
    one = stats(topic("t", 10, channel("c", 3, 10, 2, in_flight_count=1), depth=5))
    two = stats(topic("t", 20, channel("c", 4, 20, 1), channel("d", 0, 20, 0)), topic("u", 7))
    found = await gathered((one, Counters(), None), (two, Counters(), None))
    t, c = found.topics["t"], found.channels["t", "c"]
    assert (t.depth, t.channels_depth, t.messages, t.channels, t.nodes) == (5, 7, 30, 2, 2)
    assert (c.depth, c.in_flight, c.clients, c.nodes) == (7, 1, 3, 2)
    assert found.channels["t", "d"].nodes == 1
    assert (found.nodes["a:1"].depth, found.nodes["a:2"].depth) == (8, 4)
    assert (found.nodes["a:2"].topics, found.nodes["a:2"].channels) == (2, 2)
    assert (found.total.depth, found.total.messages, found.total.clients) == (12, 37, 3)


async def test_rates_are_sums_over_nodes_too() -> None:
    """In of a topic is what was published; out of it is what left its channels."""
    counters = Counters(), Counters()
    before = stats(topic("t", 0, channel("c", 0, 0)))
    await gathered((before, counters[0], None), (before, counters[1], None), now_s=10.0)
    one = stats(topic("t", 100, channel("c", 100, 100)))
    two = stats(topic("t", 300, channel("c", 0, 300)))
    found = await gathered((one, counters[0], None), (two, counters[1], None), now_s=20.0)
    t, c = found.topics["t"], found.channels["t", "c"]
    assert (t.rate_in, t.rate_out) == (40.0, 30.0)
    assert (c.rate_in, c.rate_out) == (40.0, 30.0)
    assert (found.nodes["a:1"].rate_in, found.nodes["a:1"].rate_out) == (10.0, 0.0)
    assert (found.total.rate_in, found.total.rate_out) == (40.0, 30.0)


async def test_rates_are_unknown_at_first_and_zero_of_nothing() -> None:
    """None until a second answer came; of a node without topics then 0."""
    counters = Counters()
    first = await gathered((stats(topic("t", 5)), counters, None), now_s=1.0)
    assert first.topics["t"].rate_in is None
    assert first.total.rate_in is None
    second = await gathered((stats(), counters, None), now_s=2.0)
    assert second.nodes["a:1"].rate_in == second.total.rate_in == 0.0


async def test_a_node_back_after_polls_it_missed_makes_no_jump() -> None:
    """The total's rate with it is not higher than what really came in a second."""
    steady, away = Counters(), Counters()
    for now_s in (0.0, 5.0):
        said = stats(topic("t", int(100 * now_s)))
        await gathered((said, steady, None), (said, away, None), now_s=now_s)
    for now_s in (10.0, 15.0):
        await gathered((stats(topic("t", int(100 * now_s))), steady, None), now_s=now_s)
    said = stats(topic("t", 2000))
    found = await gathered((said, steady, None), (said, away, None), now_s=20.0)
    assert found.total.rate_in == 200.0


AGES: list[tuple[list[tuple[int, Ages | None]], float | None]] = [
    ([(0, None)], 0.0),
    ([(5, None)], None),
    ([(5, {})], None),
    ([(5, {("t", "c"): Age(7.0, 0)})], 7.0),
    ([(5, {("t", "c"): Age(7.0, 0)}), (5, {("t", "c"): Age(9.0, 0)})], 9.0),
    ([(5, {("t", "c"): Age(7.0, 0)}), (5, None)], 7.0),
    ([(0, {("t", "c"): Age(7.0, 0)})], 0.0),
    ([(0, None), (5, None)], None),
]


@pytest.mark.parametrize(("nodes", "age_s"), AGES)
async def test_the_age_is_the_oldest_that_is_known(
    nodes: list[tuple[int, Ages | None]], age_s: float | None
) -> None:
    """Unknown is never shown as 0, and nothing waiting is 0."""
    said = [(stats(topic("t", 9, channel("c", depth))), Counters(), ages) for depth, ages in nodes]
    found = await gathered(*said)
    assert found.channels["t", "c"].oldest_age_s == age_s
    assert found.topics["t"].oldest_age_s == age_s
    assert found.total.oldest_age_s == age_s


async def test_a_large_answer_lets_other_tasks_run() -> None:
    """Decoding and adding 20,000 channels gives way many times."""
    said = stats(*(topic(f"t{number}", 1, channel("c"), channel("d")) for number in range(10_000)))
    body = msgspec.json.encode(said)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        answer = await poll_stats("a:1", body)
        after_decoding = turns
        gathering = Gathering(Snapshot(1, 1.0))
        await gathering.add_answer(NodeRow(node="a:1"), answer, Counters(), 1.0, None)
        nursery.cancel_scope.cancel()
    assert after_decoding >= 10
    assert turns - after_decoding >= 50


LIES = [
    b"",
    b"[]",
    b'{"topics":1}',
    b'{"topics":[{"topic_name":1}]}',
    b'{"topics":[{"depth":1}]}',
    b'{"topics":[{"topic_name":"t","depth":1e400}]}',
    b'{"topics":[{"topic_name":"t","depth":99999999999999999999999999}]}',
    b'{"topics":[{"topic_name":"t","channels":[null]}]}',
    b'{"topics":[{"topic_name":"t"',
]


@pytest.mark.parametrize("body", LIES)
async def test_what_is_no_answer_is_refused(body: bytes) -> None:
    """Other types, numbers beyond all bounds, and what is cut off."""
    with pytest.raises(UpstreamError):
        await poll_stats("a:1", body)


def test_ages_are_read_from_metrics() -> None:
    """Topics and channels, labels in any order; what makes no sense is passed over."""
    page = b"""# HELP nsqd_channel_oldest_message_age_seconds Age.
# TYPE nsqd_channel_oldest_message_age_seconds gauge
nsqd_channel_oldest_message_age_seconds{topic="t",channel="c#ephemeral"} 12.5
nsqd_channel_oldest_message_age_seconds{channel="d",topic="t"} 1e3
nsqd_channel_oldest_message_age_seconds{topic="t",channel="zero"} 0.0
nsqd_channel_oldest_message_age_seconds{topic="t",channel="odd"} NaN
nsqd_channel_oldest_message_age_seconds{topic="t",channel="odd"} +Inf
nsqd_channel_oldest_message_age_seconds{topic="t",channel="odd"} old
nsqd_topic_oldest_message_age_seconds{topic="u"} 3.0
nsqd_topic_depth_messages{topic="u"} 4.0
"""
    reading = Reading()
    read_metrics(page, reading)
    assert reading.ages == {("t", "c#ephemeral"): 12.5, ("t", "d"): 1000.0, ("u", ""): 3.0}


@pytest.mark.parametrize(("left", "age_s"), [(0, 7.0), (99, 7.0), (100, None), (500, None)])
async def test_an_age_ends_with_its_message(left: int, age_s: float | None) -> None:
    """When all messages of the time of the reading have left, it says nothing of those of now."""
    said = stats(topic("t", 9, channel("c", 5, left + 5)))
    found = await gathered((said, Counters(), {("t", "c"): Age(7.0, 100)}))
    assert found.channels["t", "c"].oldest_age_s == age_s
