"""Positions in a log (trionsq.storage.log.seeking), and what is kept for them (retention)."""

from __future__ import annotations

import time
from bisect import bisect_left
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak import by_level, more_in_soak
from tests.storage.log.test_rounds import Node
from trionsq.storage.log import retention, seeking, segmentwriter
from trionsq.storage.log.ranges import MessageRange, pack_open, unpack_open, unpack_replay
from trionsq.storage.log.retention import Holder, Retention, Retentions
from trionsq.storage.log.seeking import (
    LogPosition,
    WantedPosition,
    find_position,
    parse_position,
    rfc3339,
)
from trionsq.wire.bodies import ListBodies

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS


class WallClock:
    """The wall clock of segments, in place of the module `time`."""

    def __init__(self, now_ns: int = DAY_NS) -> None:
        self.now_ns = now_ns

    def patched(self, module: object) -> object:
        clock = SimpleNamespace(time_ns=lambda: self.now_ns, perf_counter=time.perf_counter)
        return patch.object(module, "time", clock)


@more_in_soak
@pytest.mark.parametrize("part", range(by_level(test=1, short=3, full=20)))
def test_each_position_is_where_a_model_has_it(part: int) -> None:
    """With segments and records of any size, several messages a record, gaps, and messages that
    have one time; however the log is cut into blocks."""
    for seed in range(60 * part, 60 * part + 60):
        compare_positions(Random(seed))


def compare_positions(random: Random) -> None:
    rounds = random.randint(0, 40)
    clock = WallClock()
    node = Node(segment_bytes=random.choice((300, 2_000, 100_000)))
    times: list[int] = []
    with (
        clock.patched(segmentwriter),  # type: ignore[attr-defined]
        patch.object(seeking, "_WALK_BYTES", random.choice((0, 150, 700))),
    ):
        for _ in range(rounds):
            for _ in range(random.choice((1, 1, 2, 4))):
                clock.now_ns += random.choice((0, 1, SECOND_NS))
                count = random.choice((1, 1, 3))
                bodies = [random.randbytes(random.choice((1, 60, 900))) for _ in range(count)]
                defer_ms = random.choice((0, 0, 0, 500))
                node.topic.publish(ListBodies(bodies), clock.now_ns, defer_ms)
                times += [clock.now_ns] * count
            if random.random() < 0.1:
                node.topic.empty()
            node.jobs.run_all()
            if random.random() < 0.1:
                for _ in node.topic.empty():
                    pass
        log = node.log
        there = [place for place in range(len(times)) if log.gap_end(place) is None]
        if random.random() < 0.5:
            for segment in log.segments:
                segment.index = None  # as after a start
        first = random.randint(0, len(times))
        end = random.randint(first, len(times))
        for _ in range(10):
            wanted = random.choice((
                WantedPosition("beginning"),
                WantedPosition("end"),
                WantedPosition("sequence", random.randint(0, len(times) + 2)),
                WantedPosition("time", random.choice([*times, DAY_NS]) + random.choice((-1, 0, 1))),
            ))  # fmt: skip
            least = {"beginning": 0, "end": end, "sequence": wanted.value}.get(
                wanted.kind, bisect_left(times, wanted.value)
            )
            candidates = [one for one in there if max(first, least) <= one < end]
            expected = LogPosition(end)
            if candidates:
                expected = LogPosition(candidates[0], times[candidates[0]])
            assert find_position(log.part, wanted, first, end) == expected, wanted


def test_a_clock_that_was_set_back_finds_a_message_of_the_time() -> None:
    """One that was published then or later, before which there is one of before, or none."""
    clock = WallClock()
    node = Node(segment_bytes=300)
    seconds = [*range(40), *range(20, 60)]
    with clock.patched(segmentwriter):  # type: ignore[attr-defined]
        for second in seconds:
            clock.now_ns = DAY_NS + second * SECOND_NS
            node.topic.publish(ListBodies([b"x" * 50]), clock.now_ns)
            node.jobs.run_all()
    for second in range(60):
        wanted = WantedPosition("time", DAY_NS + second * SECOND_NS)
        found = find_position(node.log.part, wanted, 0, len(seconds)).sequence
        assert seconds[found] >= second
        assert found == 0 or seconds[found - 1] < second or seconds[found] == second


def test_a_damaged_record_is_a_position() -> None:
    """The channel that begins there counts it as lost; the search goes on behind bad heads."""
    node = Node()
    for number in range(9):
        node.topic.publish(ListBodies([b"%0300d" % number]), DAY_NS + number)
        node.jobs.run_all()
    name = node.log.segments[0].name
    whole = node.disk.files()[name][: node.log.segments[0].end]
    size = (len(whole) - 128) // 9
    for at, expected in ((128 + 4 * size, 5), (128 + 4 * size + 200, 4)):
        node.disk.write_file(name, whole[:at] + b"\0\0" + whole[at + 2 :])
        with patch.object(seeking, "_WALK_BYTES", 0):
            for wanted in (WantedPosition("sequence", 4), WantedPosition("time", DAY_NS + 4)):
                found = find_position(node.log.part, wanted, 0, 9)
                assert found == LogPosition(expected, DAY_NS + expected)


@given(st.integers(-(10**18), 9 * 10**18))
def test_a_time_that_is_written_is_read_again(time_ns: int) -> None:
    """To the nanosecond."""
    assert parse_position(rfc3339(time_ns)) == WantedPosition("time", time_ns)


@given(st.lists(st.builds(MessageRange, st.integers(0, 2**63), st.just(3), st.just(2))))
def test_a_replay_stands_beside_what_is_open(ranges: list[MessageRange]) -> None:
    """Of each number of ranges; without a replay the bytes are those of earlier releases."""
    plain = pack_open(ranges, 7)
    assert len(plain) == 8 + 14 * len(ranges)
    assert (*unpack_open(plain), unpack_replay(plain)) == (ranges, 7, 0)
    replaying = pack_open(ranges, 7, 9)
    assert (*unpack_open(replaying), unpack_replay(replaying)) == (ranges, 7, 9)
    assert (*unpack_open(b""), unpack_replay(b"")) == ([], 0, 0)


def hourly_log(count: int) -> Node:
    """A log with one message an hour, each in a segment of its own, of which none is needed."""
    clock = WallClock()
    node = Node(segment_bytes=200)
    cursor = node.node.new_cursor(node.log, "c")
    with clock.patched(segmentwriter):  # type: ignore[attr-defined]
        for hour in range(count):
            clock.now_ns = DAY_NS + hour * 3600 * SECOND_NS
            node.topic.publish(ListBodies([b"x" * 300]), clock.now_ns)
            node.jobs.run_all()
    assert len(node.log.segments) == count
    node.log.frontier = cursor.frontier = cursor.next = cursor.low = count
    node.log.depth = 0
    return node


KEPT = [
    (Retention(), 9),
    (Retention(time_ns=3 * 3600 * SECOND_NS), 7),
    (Retention(time_ns=3 * 3600 * SECOND_NS + 1), 6),
    (Retention(time_ns=DAY_NS), 0),
    (Retention(nbytes=1), 9),
    (Retention(nbytes=3), 9),
    (Retention(nbytes=10**9), 0),
    (Retention(time_ns=DAY_NS, nbytes=1), 9),
    (Retention(time_ns=3 * 3600 * SECOND_NS, nbytes=10**9), 7),
]


@pytest.mark.parametrize(("kept", "first"), KEPT)
def test_what_is_finished_stays_so_long(kept: Retention, first: int) -> None:
    """A segment goes when the next one is as old as the time, or when the others have the bytes."""
    node, clock = hourly_log(10), WallClock(DAY_NS + 10 * 3600 * SECOND_NS)
    retentions = Retentions(kept)
    with clock.patched(retention):  # type: ignore[attr-defined]
        assert retentions.low(node.log, 10) == first
        assert retentions.low(node.log, 4) == min(first, 4)


def test_so_many_bytes_stay_at_least() -> None:
    """Whole segments have them, without the oldest one that is not needed for it."""
    node = hourly_log(10)
    sizes = [segment.end for segment in node.log.segments]
    for nbytes in range(1, sum(sizes) + 100, 97):
        low = Retentions(Retention(nbytes=nbytes)).low(node.log, 10)
        left = sum(sizes[low:])
        assert left >= min(nbytes, sum(sizes))
        assert low == 9 or left - sizes[low] < nbytes


def test_a_snapshot_leaves_some_segments() -> None:
    """The job that removes their files is before publishes; the next snapshots leave the others."""
    node = hourly_log(70)
    lows = []
    for _ in range(3):
        lows.append(Retentions().low(node.log, 70))
        node.log.retire_segments(lows[-1])
    assert lows == [32, 64, 69]
    assert Retentions().low(node.log, 70) == 69
    assert Retentions().low(Node().log, 0) == 0


def test_what_keeps_the_oldest_segment_has_a_name() -> None:
    """The last channel, nobody who has had it, retention, or there is no other segment."""
    node = hourly_log(5)
    retentions, log = Retentions(Retention(nbytes=10**9)), node.log
    assert retentions.holder(log) == Holder("retention")
    [cursor] = log.cursors.values()
    cursor.low = 0
    other = node.node.new_cursor(log, "d")
    other.low = 3
    assert retentions.holder(log) == Holder("channel", "c")
    cursor.low = 5
    log.frontier = 0
    assert retentions.holder(log) == Holder("topic")
    assert retentions.holder(Node().log) == Holder("none")


def test_each_topic_may_have_its_own_retention() -> None:
    """Of time, of bytes or of both; the state has it, as long as there is the topic."""
    node = Node()
    retentions = Retentions(Retention(5, 6))
    assert retentions.of(node.log) == Retention(5, 6)
    for own, expected in (
        ((1, None), Retention(1, 6)),
        ((None, 0), Retention(5, 0)),
        ((None, None), Retention(5, 6)),
        ((3, 4), Retention(3, 4)),
    ):
        change = retentions.change(node.log, own, [node.log.number])
        assert retentions.of(node.log) == expected
        again = Retentions(Retention(5, 6))
        again.load({change.key: change.value}, [node.log.number])
        assert again.of(node.log) == expected
        again.load({change.key: change.value}, [])
        assert again.of(node.log) == Retention(5, 6)


def test_a_channel_reads_what_is_there_in_no_gap() -> None:
    """From anywhere on, also if a gap begins or ends within a record, or behind a damaged one; and
    what is published with a delay."""
    for seed in range(60):
        random = Random(seed)
        node = Node(segment_bytes=random.choice((300, 100_000)))
        records: list[range] = []
        for _ in range(random.randint(1, 12)):
            count = random.choice((1, 3, 6))
            records.append(range(node.log.end, node.log.end + count))
            node.topic.publish(
                ListBodies([b"%0100d." % number for number in records[-1]]),
                DAY_NS,
                random.choice((0, 0, 500)),
            )
            node.jobs.run_all()
        end = node.log.end
        while node.log.read(1000, 1 << 20) is not None:
            pass
        expected = set(range(end))
        for _ in range(random.randint(0, 3)):
            first = random.randint(0, end)
            behind = min(end, first + random.randint(0, 5))
            node.log.gaps.add(first, behind)
            expected -= {*range(first, behind)}
        lost: set[int] = set()
        if random.random() < 0.5:
            node.log.cache.clear()
            lost = {*random.choice(records)} & expected
            for name, data in node.disk.files().items():
                for number in lost:
                    if ".log." in name and (at := data.find(b"%0100d." % number)) >= 0:
                        data = data[:at] + b"x" + data[at + 1 :]
                        node.disk.write_file(name, data)
        begin_at = random.randint(0, end)
        cursor = node.node.new_cursor(node.log, "c", begin_at)
        expected = {one for one in expected if one >= begin_at}
        assert cursor.depth == len(expected)
        found: list[int] = []
        for _ in range(100):
            if (segment := cursor.read(random.choice((1, 4, 1000)), 1 << 20)) is not None:
                bodies = segment.batch.bodies.slice(segment.first, segment.last)
                found += [int(bytes(body)[:100]) for body in bodies]
            node.jobs.run_all()
        assert found == sorted(expected - lost), seed
        assert cursor.depth == 0
        assert cursor.dropped.total() == len(expected & lost)
