"""The last hour."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.watch.history import (
    LONG_POINTS,
    MAX_SERIES,
    POINTS,
    WHOLE,
    History,
    channel_key,
    latency_key,
    topic_key,
)
from admin.watch.snapshot import ChannelRow, Row, Snapshot, TopicRow

START_S = 1_790_000_000.0


def snapshot(now_s: float, depths: dict[str, int], rate: float | None = None) -> Snapshot:
    """Topics by name, each with that depth and both rates."""
    topics = {
        name: TopicRow(topic=name, depth=depth, rate_in=rate, rate_out=rate)
        for name, depth in depths.items()
    }
    return Snapshot(1, START_S + now_s, topics=topics, total=Row(depth=sum(depths.values())))


def known(values: list[float]) -> list[float]:
    """Without the slots in which nothing is known."""
    return [value for value in values if not math.isnan(value)]


async def test_points_come_in_order_of_time() -> None:
    """A poll, a point; the last time is that of the last poll."""
    history = History(60.0, 5.0)
    for number in range(5):
        await history.add_snapshot(snapshot(5.0 * number, {"t": number}, 2.0 * number))
    series = history.series(topic_key("t"))
    assert series is not None
    assert known(series.depth) == [0, 1, 2, 3, 4]
    assert known(series.rate_in) == known(series.rate_out) == [0, 2, 4, 6, 8]
    assert len(series.times) == len(series.depth) == history.points == 12
    assert series.times == sorted(series.times)
    assert series.times[-1] == START_S + 20.0


async def test_a_slot_has_the_highest_depth_and_the_mean_rate() -> None:
    """With fewer slots than polls no peak of depth is lost."""
    history = History(POINTS * 15.0, 5.0)
    for number, (depth, rate) in enumerate([(1, None), (9, 2.0), (2, 4.0)]):
        await history.add_snapshot(snapshot(5.0 * number, {"t": depth}, rate))
    series = history.series(topic_key("t"))
    assert series is not None
    assert history.slot_s == 15.0
    start = START_S % 15.0
    assert start == 5.0  # two polls in the first slot, the third in the next
    assert known(series.depth) == [9, 2]
    assert known(series.rate_in) == [2.0, 4.0]


async def test_time_without_polls_is_a_gap() -> None:
    """Nobody looked: nothing is known, and nothing of a round before shows."""
    history = History(50.0, 5.0)
    for number in range(10):
        await history.add_snapshot(snapshot(5.0 * number, {"t": 7}))
    await history.add_snapshot(snapshot(45.0 + 30.0, {"t": 1}))
    series = history.series(topic_key("t"))
    assert series is not None
    assert [None if math.isnan(depth) else depth for depth in series.depth] == [
        *[7.0] * 4,
        *[None] * 5,
        1.0,
    ]


async def test_what_is_gone_for_the_window_is_forgotten() -> None:
    """A deleted topic's memory is given back."""
    history = History(50.0, 5.0)
    await history.add_snapshot(snapshot(0.0, {"old": 1, "t": 1}))
    for number in range(1, 12):
        await history.add_snapshot(snapshot(5.0 * number, {"t": 1}))
    assert history.series(topic_key("old")) is None
    assert len(history) == 2


async def test_a_topic_away_for_a_while_has_a_gap_only() -> None:
    """What the ring holds of a round before is not shown while it is away."""
    history = History(50.0, 5.0)
    for number in range(13):
        await history.add_snapshot(snapshot(5.0 * number, {"t": 7}))
    for number in range(13, 16):
        await history.add_snapshot(snapshot(5.0 * number, {}))
    series = history.series(topic_key("t"))
    assert series is not None
    assert known(series.depth) == [7.0] * 7
    assert all(math.isnan(depth) for depth in series.depth[-3:])


async def test_memory_is_bounded() -> None:
    """No more series than the limit, of the stated size, whatever comes."""
    history = History(3600.0, 5.0, series_max=50)
    for number in range(20):
        names = {f"t{number}-{each}": each % 2 for each in range(40)}
        await history.add_snapshot(snapshot(15.0 * number, names))
    assert len(history) == 50
    assert history.nbytes == 50 * POINTS * 3 * 4
    assert MAX_SERIES * (POINTS + LONG_POINTS) * 3 * 4 < 64e6


async def test_who_has_messages_takes_the_place_of_who_has_none() -> None:
    """Full: idle ones get no series, busy ones take that of one idle; busy ones keep theirs."""
    history = History(3600.0, 15.0, series_max=3)
    await history.add_snapshot(snapshot(0.0, {"idle": 0, "busy": 5}))
    await history.add_snapshot(snapshot(60.0, {"idle": 0, "busy": 5, "idle too": 0, "new": 1}))
    assert history.series(topic_key("new")) is not None
    assert history.series(topic_key("idle")) is history.series(topic_key("idle too")) is None
    await history.add_snapshot(snapshot(75.0, {"newer": 1, "busy": 5, "new": 1}))
    assert history.series(topic_key("newer")) is None
    assert history.series(topic_key("busy")) is not None
    assert history.series(WHOLE) is not None


@pytest.mark.parametrize(("back_s", "points"), [(5.0, 3), (3600.0, 1)])
async def test_a_wall_clock_set_back_harms_nothing(back_s: float, points: int) -> None:
    """By a little: waited for. By much: begun anew."""
    history = History(50.0, 5.0)
    for number in range(3):
        await history.add_snapshot(snapshot(5.0 * number, {"t": 1}))
    for step_s in (0.0, 0.1):
        await history.add_snapshot(snapshot(10.0 - back_s + step_s, {"t": 2}))
    series = history.series(topic_key("t"))
    assert series is not None
    assert len(known(series.depth)) == points


async def test_a_day_has_longer_slots() -> None:
    """The last hour in detail, and the whole day; each has the highest depth of its slots."""
    history = History(86_400.0, 5.0, idle_interval_s=30.0)
    for number in range(2 * 3600 // 30):
        await history.add_snapshot(snapshot(30.0 * number, {"t": number}, 1.0))
    hour, day = history.series(topic_key("t")), history.series(topic_key("t"), 86_400.0)
    quarter = history.series(topic_key("t"), 900.0)
    assert hour is not None
    assert day is not None
    assert quarter is not None
    assert (len(hour.depth), len(quarter.depth), len(day.depth)) == (POINTS, 60, LONG_POINTS)
    assert not any(math.isnan(depth) for depth in [*hour.depth, *quarter.depth])
    assert len(known(day.depth)) == 25
    assert hour.depth[-1] == quarter.depth[-1] == day.depth[-1] == 239
    assert known(day.depth) == sorted(known(day.depth))


async def test_latencies_are_a_series() -> None:
    """Up to three quantiles, the highest first."""
    history = History(3600.0, 15.0)
    found = Snapshot(1, START_S, latencies={("t", "c"): [(0.99, 0.2), (0.5, 0.1)]})
    await history.add_snapshot(found)
    series = history.series(latency_key("t", "c"))
    assert series is not None
    assert known(series.depth) == [pytest.approx(0.2)]
    assert known(series.rate_in) == [pytest.approx(0.1)]
    assert known(series.rate_out) == []


async def test_depths_of_the_last_while() -> None:
    """What health looks at."""
    history = History(60.0, 5.0)
    row = ChannelRow(topic="t", channel="c", depth=3)
    for number in range(5):
        row.depth = number
        await history.add_snapshot(Snapshot(1, START_S + 5.0 * number, channels={("t", "c"): row}))
    assert history.last_depths(channel_key("t", "c"), 15.0) == [2, 3, 4]
    assert history.last_depths(channel_key("t", "d"), 15.0) == []


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40))
async def test_a_ring_shows_what_a_plain_list_would(polls: list[tuple[int, bool]]) -> None:
    """Whatever is left out in time, and whenever the topic is there."""
    history = History(40.0, 5.0)
    plain = deque[tuple[int, int]]()
    slot = round(START_S / 5.0)
    for number, (step, present) in enumerate(polls):
        slot += step + 1
        await history.add_snapshot(snapshot(slot * 5.0 - START_S, {"t": number} if present else {}))
        if present:
            plain.append((slot, number))
        expected = [depth for at, depth in plain if at > slot - 8]
        series = history.series(topic_key("t"))
        assert (known(series.depth) if series is not None else []) == expected
