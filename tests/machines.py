"""State machines whose sequences must hold every kind of event."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

__all__ = ["run_until_seen"]


def run_until_seen(
    machine: type[RuleBasedStateMachine],
    seen: Mapping[str, int],
    expected: Collection[str],
    counts: Iterable[int],
    steps: int,
) -> None:
    """Run a state machine, and raise AssertionError if its sequences missed a kind of event.

    Which sequences are drawn follows from the names in the machine, so a rare event may be missed
    after a change that has nothing to do with it: then more sequences are drawn.

    Args:
        machine: the state machine.
        seen: counts of events by name; the machine adds to them.
        expected: the names that must be there in the end.
        counts: how many sequences are drawn; the next number only if an event is missing.
        steps: of each sequence.
    """
    missing = list(expected)
    for count in counts:
        run_state_machine_as_test(
            machine,
            settings=settings(max_examples=count, stateful_step_count=steps, deadline=None),
        )
        missing = [name for name in expected if not seen.get(name)]
        if not missing:
            return
    raise AssertionError(f"never seen: {missing}")
