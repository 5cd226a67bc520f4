"""Rates from counters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from admin.watch.node import Counted, Counters, Rates

KEY = ("t", "c")


def answer(
    counters: Counters, now_s: float, messages: int, held: int = 0, more: int = 0, start: int = 1
) -> tuple[float, ...] | None:
    """One answer of an original nsqd with a channel; ``more`` requeues and twice the timeouts."""
    counters.begin_answer(now_s, start)
    found = counters.rates(KEY, Counted(messages, held, more, 2 * more))
    counters.end_answer()
    if found is None:
        return None
    assert found.removed is None
    return found[:4]


def test_the_first_answer_has_no_rates() -> None:
    """A counter alone says nothing of now."""
    assert answer(Counters(), 10.0, 1000) is None


def test_rates_are_differences_by_time() -> None:
    """In is what the counter grew, out is what came and is not held."""
    counters = Counters()
    answer(counters, 10.0, 1000, held=50)
    assert answer(counters, 15.0, 1100, held=100, more=5) == (20.0, 10.0, 1.0, 2.0)


def test_a_restart_gives_what_was_counted_since() -> None:
    """After a restart counters are low: no rate is negative, none is that of a lifetime."""
    counters = Counters()
    answer(counters, 10.0, 1_000_000, held=70, more=500, start=1)
    assert answer(counters, 20.0, 30, held=5, more=10, start=2) == (3.0, 0.0, 1.0, 2.0)


def test_a_restart_is_seen_though_the_counter_is_higher() -> None:
    """A new start_time means that the counter began at 0, whatever it shows."""
    counters = Counters()
    answer(counters, 10.0, 10, start=1)
    assert answer(counters, 20.0, 500, start=2) == (50.0, 0.0, 0.0, 0.0)


def test_a_topic_made_again_counts_from_zero() -> None:
    """Deleted and made again between two polls, without a restart."""
    counters = Counters()
    answer(counters, 10.0, 900, held=900)
    assert answer(counters, 20.0, 100) == (10.0, 0.0, 0.0, 0.0)


def test_a_new_topic_counts_from_zero() -> None:
    """What was not there at the last answer was made since."""
    counters = Counters()
    counters.begin_answer(10.0, 1)
    counters.end_answer()
    assert answer(counters, 20.0, 100, held=40) == (10.0, 6.0, 0.0, 0.0)


def test_the_rate_after_an_absence_is_the_mean_of_it() -> None:
    """A node that missed polls does not come back with all their messages at once."""
    counters = Counters()
    answer(counters, 10.0, 0)
    assert answer(counters, 110.0, 1000) == (10.0, 10.0, 0.0, 0.0)


def test_what_is_gone_is_forgotten() -> None:
    """Counters of deleted topics take no memory, and are no base for a later one of the name."""
    counters = Counters()
    answer(counters, 10.0, 1000)
    counters.begin_answer(20.0, 1)
    counters.end_answer()
    assert answer(counters, 30.0, 1200) == (120.0, 120.0, 0.0, 0.0)


COUNT = st.integers(min_value=-(2**63), max_value=2**63 - 1)


@given(st.lists(st.tuples(COUNT, COUNT, COUNT, st.integers(0, 2)), min_size=2, max_size=6))
def test_no_rate_is_ever_negative(answers: list[tuple[int, int, int, int]]) -> None:
    """Whatever a node says."""
    counters = Counters()
    for number, (messages, held, more, start) in enumerate(answers):
        found = answer(counters, float(number), messages, held, more, start)
        if found is not None:
            assert min(found) >= 0.0


def ours(counters: Counters, now_s: float, messages: int, held: int, finished: int) -> Rates | None:
    """One answer of an nsqd that tells what was finished."""
    counters.begin_answer(now_s, 1)
    found = counters.rates(KEY, Counted(messages, held, finished=finished))
    counters.end_answer()
    return found


def test_what_was_emptied_is_not_finished() -> None:
    """Messages leave by a client's FIN or by being thrown away; only the first are finished."""
    counters = Counters()
    ours(counters, 10.0, 1000, held=900, finished=100)
    assert ours(counters, 20.0, 1000, held=0, finished=150) == (0.0, 5.0, 0.0, 0.0, 85.0)
    assert ours(counters, 30.0, 1100, held=100, finished=150) == (10.0, 0.0, 0.0, 0.0, 0.0)


def restarted(held: int, messages: int, finished: int, start: int = 2) -> tuple[int, int] | None:
    """What is missing of 100 messages after a restart."""
    counters = Counters()
    counters.begin_answer(10.0, 1)
    counters.rates(KEY, Counted(5000, 100, finished=4900))
    counters.rates(("t", "c#ephemeral"), Counted(5000, 70, finished=4900))
    counters.rates(("t", ""), Counted(5000, 0))
    assert counters.end_answer() is None
    counters.begin_answer(20.0, start)
    counters.rates(KEY, Counted(messages, held, finished=finished))
    counters.rates(("t", ""), Counted(messages, 0))
    return counters.end_answer()


def test_what_a_restart_lost_is_counted() -> None:
    """Of what a node held, without what its clients finished since; ephemeral ones don't count."""
    assert restarted(held=100, messages=0, finished=0) == (100, 0)
    assert restarted(held=0, messages=0, finished=0) == (100, 100)
    assert restarted(held=40, messages=0, finished=0) == (100, 60)
    assert restarted(held=40, messages=0, finished=60) == (100, 0)
    assert restarted(held=50, messages=10, finished=60) == (100, 0)
    assert restarted(held=10, messages=10, finished=0) == (100, 100)
    assert restarted(held=0, messages=0, finished=0, start=1) is None
