"""When a client gets heartbeats, and when it is given up (broker.heartbeats)."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.broker.heartbeats import CHECK_INTERVAL_S, Finding, Heartbeats, TimingWheel

INTERVAL_S = 8.0


def found(heartbeats: Heartbeats, until_s: float, **client: Any) -> list[tuple[float, Finding]]:
    """Look whenever it is asked for, up to that time; what was found but that all is fine."""
    said = {"commands": 0, "is_read": True, "blocked_since_s": None, **client}
    findings: list[tuple[float, Finding]] = []
    while heartbeats.next_check_s <= until_s:
        now_s = heartbeats.next_check_s
        finding = heartbeats.check(INTERVAL_S, now_s, **said)
        if finding is not Finding.FINE:
            findings.append((now_s, finding))
            if finding is not Finding.DUE:
                break
        assert heartbeats.next_check_s > now_s
    return findings


def test_heartbeats_come_in_their_interval_and_silence_ends_it() -> None:
    """A client that says nothing gets one heartbeat, and is given up when the second is due."""
    heartbeats = Heartbeats(0.0)
    heartbeats.restart(INTERVAL_S, 0.0)
    assert found(heartbeats, 100.0) == [(8.0, Finding.DUE), (16.0, Finding.SILENT)]


def test_what_is_not_read_is_no_silence() -> None:
    """While its answers are not taken, and from then on, the time counts anew."""
    heartbeats = Heartbeats(0.0)
    heartbeats.restart(INTERVAL_S, 0.0)
    assert {each for _, each in found(heartbeats, 40.0, is_read=False)} == {Finding.DUE}
    assert found(heartbeats, 100.0)[-1] == (56.0, Finding.SILENT)


def test_a_client_that_takes_nothing_is_given_up() -> None:
    """After more than an interval; soon after that, whatever it sends."""
    heartbeats = Heartbeats(0.0)
    heartbeats.restart(INTERVAL_S, 0.0)
    at_s, finding = found(heartbeats, 100.0, is_read=False, blocked_since_s=4.0)[-1]
    assert finding is Finding.STUCK
    assert 12.0 < at_s <= 13.0


def test_stopped_it_is_not_looked_at() -> None:
    """Until it begins anew."""
    heartbeats = Heartbeats(0.0)
    heartbeats.stop()
    assert found(heartbeats, 1e9) == []
    heartbeats.restart(INTERVAL_S, 50.0)
    heartbeats.check(INTERVAL_S, 50.0, commands=1, is_read=True, blocked_since_s=None)
    assert found(heartbeats, 100.0, commands=1) == [(58.0, Finding.DUE), (66.0, Finding.SILENT)]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100), st.floats(1, 100)), max_size=40),
    st.sets(st.integers(0, 9)),
    st.integers(1, 4),
)
def test_an_item_is_due_at_its_last_time_and_little_later(
    plans: list[tuple[int, float, float]], removed: set[int], count_max: int
) -> None:
    """Once, never early, later by a part of its interval at most; not after it was removed."""
    wheel = TimingWheel[int]()
    wanted: dict[int, tuple[float, float]] = {}
    for item, at_s, interval_s in plans:
        wheel.schedule(item, at_s, interval_s)
        wanted[item] = at_s, interval_s
    for item in removed:
        wheel.remove(item)
        wanted.pop(item, None)
    assert len(wheel) == len(wanted)
    while wheel.next_s < inf:
        now_s = wheel.next_s
        assert wheel.pop_due(now_s - 1e-3, 1) == []
        while items := wheel.pop_due(now_s, count_max):
            assert len(items) <= count_max
            for item in items:
                at_s, interval_s = wanted.pop(item)
                assert at_s <= now_s <= at_s + min(max(interval_s / 25, 1 / 32), CHECK_INTERVAL_S)
    assert not wanted
    assert len(wheel) == 0


@pytest.mark.parametrize("interval_s", [1.0, 2.0, 5.0, 6.0, 60.0])
def test_many_items_wake_the_timer_seldom(interval_s: float) -> None:
    """At most 28 times in a short interval and 4 times in a second of a long one."""
    wheel = TimingWheel[int]()
    for number in range(2000):
        wheel.schedule(number, interval_s * number / 2000, interval_s)
    assert len(wheel._ticks) <= max(34, 4 * interval_s + 1)


def test_a_wheel_holds_no_more_than_its_items_and_ticks() -> None:
    """However often one item is scheduled anew, as by a client that repeats IDENTIFY."""
    wheel = TimingWheel[str]()
    for number in range(100_000):
        wheel.schedule("client", 1 + number / 1e5, 1.0)
    assert len(wheel) == 1
    assert len(wheel._ticks) == len(wheel._items) <= 34
