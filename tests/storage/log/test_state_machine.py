"""The log engine's state against its model: any changes, failures, crashes and restarts."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.soak import by_level, more_in_soak
from tests.storage.log.state_model import KINDS, Candidates, draw_changes
from trionsq.storage.log.rows import State, StateError
from trionsq.testing.disk import Crashed, SimulatedDisk

seeds = st.integers(0, 2**32)
places = st.integers(1, 12)


class _StateMachine(RuleBasedStateMachine):
    """A state on a simulated disk."""

    open_it: Callable[[SimulatedDisk], State]

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk(random=Random(0))
        self.numbers = [1]
        self.candidates = Candidates(type(self).open_it(self.disk))

    @rule(seed=seeds, count=st.integers(1, 20))
    def commit(self, seed: int, count: int) -> None:
        assert self.candidates.apply(draw_changes(Random(seed), self.numbers, count))

    @rule(seed=seeds, at=places, error=st.sampled_from([errno.EIO, errno.ENOSPC]))
    def fail(self, seed: int, at: int, error: int) -> None:
        self.disk.fail(error, at, only={"write", "sync"})
        self.candidates.apply(draw_changes(Random(seed), self.numbers, 3))
        self.disk.heal()

    @rule(seed=seeds, at=places, power=st.booleans())
    def crash(self, seed: int, at: int, power: bool) -> None:
        self.disk.crash_at(at)
        with suppress(Crashed, StateError):
            self.candidates.apply(draw_changes(Random(seed), self.numbers, 3))
        self.disk = self.disk.after_power_loss() if power else self.disk.after_kill()
        self.candidates = self.candidates.reopened(type(self).open_it(self.disk))

    @rule()
    def checkpoint(self) -> None:
        self.candidates.state.checkpoint()

    @rule()
    def restart(self) -> None:
        assert self.candidates.apply([])
        self.candidates.state.close()
        self.candidates = self.candidates.reopened(type(self).open_it(self.disk))

    @invariant()
    def is_the_model(self) -> None:
        assert self.candidates.state.load() == self.candidates.model.content()

    def teardown(self) -> None:
        self.candidates.state.close()


@more_in_soak
@pytest.mark.parametrize("open_it", KINDS.values(), ids=KINDS)
def test_the_state_is_its_model(open_it: Callable[[SimulatedDisk], State]) -> None:
    """The state is all that was committed, in order, or after a crash perhaps with what failed."""

    class Machine(_StateMachine):
        pass

    Machine.open_it = staticmethod(open_it)
    count = by_level(test=12, short=150, full=2_000)
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=count, stateful_step_count=25, deadline=None)
    )
