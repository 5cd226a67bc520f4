"""Backoff: the state machine (trionsq.client.backoff). Spec: client, section 6."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.client.backoff import Backoff, Outcome, Pause, Phase, Resume, strategy_of
from trionsq.client.config import Config

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


def exponential(max_duration_s: float = 120.0) -> Backoff:
    """The default strategy: 2, 4, 8, ... seconds."""
    return Backoff(strategy_of(Config(), Random(0)), max_duration_s)


def test_failures_raise_the_level_and_successes_lower_it() -> None:
    """The test after each pause makes the next pause longer or shorter."""
    backoff = exponential()
    pauses = []
    for outcome in (FAILURE, FAILURE, FAILURE, SUCCESS, NEUTRAL, SUCCESS):
        todo = backoff.signal(outcome)
        assert isinstance(todo, Pause)
        pauses.append(todo.duration_s)
        phases = [backoff.phase]
        backoff.pause_over()
        assert [*phases, backoff.phase] == [Phase.PAUSED, Phase.TESTING]
    assert pauses == [2, 4, 8, 4, 4, 2]
    assert isinstance(backoff.signal(SUCCESS), Resume)
    assert (backoff.level, backoff.phase) == (0, Phase.NORMAL)


def test_signals_during_a_pause_are_ignored() -> None:
    """Messages from before the pause neither shorten nor lengthen it."""
    backoff = exponential()
    backoff.signal(FAILURE)
    assert [backoff.signal(outcome) for outcome in (FAILURE, SUCCESS, NEUTRAL)] == [None] * 3
    assert backoff.level == 1


def test_the_level_stays_where_the_longest_pause_is_reached() -> None:
    """A pause is never longer than max_backoff_duration."""
    backoff = exponential(max_duration_s=10)
    for _ in range(10):
        todo = backoff.signal(FAILURE)
        assert isinstance(todo, Pause)
        assert todo.duration_s <= 10
        backoff.pause_over()
    assert backoff.level == 3


@pytest.mark.parametrize("outcome", [SUCCESS, NEUTRAL])
def test_without_failures_nothing_happens(outcome: Outcome) -> None:
    """Without a failure the level stays 0, and there is no pause."""
    backoff = exponential()
    assert backoff.signal(outcome) is None
    assert (backoff.level, backoff.phase) == (0, Phase.NORMAL)


def test_it_can_be_switched_off() -> None:
    """With max_backoff_duration 0 no failure leads to a pause."""
    backoff = exponential(max_duration_s=0)
    assert backoff.signal(FAILURE) is None
    assert backoff.phase is Phase.NORMAL


def test_full_jitter_is_between_nothing_and_the_exponential_pause() -> None:
    """Each pause is random, up to the exponential one."""
    strategy = strategy_of(Config(backoff_strategy="full_jitter"), Random(7))
    pauses = [strategy(3) for _ in range(100)]
    assert all(0 <= pause <= 8 for pause in pauses)
    assert len(set(pauses)) > 90


@given(st.lists(st.sampled_from([SUCCESS, FAILURE, NEUTRAL, None])))
def test_level_and_phase_agree(events: list[Outcome | None]) -> None:
    """The phase is normal exactly at level 0; a pause begins exactly when one is returned."""
    backoff = exponential()
    for event in events:
        before = backoff.phase
        if event is None:
            backoff.pause_over()
            assert backoff.phase is not Phase.PAUSED
        else:
            todo = backoff.signal(event)
            began = before is not Phase.PAUSED and backoff.phase is Phase.PAUSED
            assert isinstance(todo, Pause) == began
        assert (backoff.level == 0) == (backoff.phase is Phase.NORMAL)
