"""The known bad changes: all of them apply, and the simulation finds them."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import ROOT, Mutant, find, is_good_here, mutants
from tests.soak import in_short_soak, in_soak

_MUTANTS = {mutant.name: mutant for mutant in mutants()}


def test_each_bad_change_applies() -> None:
    """Its text occurs once, and what takes its place is Python."""
    for mutant in mutants():
        compile(mutant.changed(ROOT), mutant.file, "exec")
    assert len(_MUTANTS) == len(mutants()) >= 40


_AT_ONCE = {"requeue-drops"}
_IN_SHORT = {"stop-without-save", "max-in-flight-ignored"}


def _marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if name in _AT_ONCE else (in_short_soak if name in _IN_SHORT else in_soak,)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(mutant, id=name, marks=_marks(name)) for name, mutant in _MUTANTS.items()],
)
def test_a_bad_change_is_found(mutant: Mutant) -> None:
    """One of its first days becomes bad."""
    assert find(mutant, is_good_here) is not None


@in_soak
def test_a_day_without_an_end_is_bad() -> None:
    """A change that makes a loop of a day is found by the time that it takes."""
    old = "        count = start = 0\n"
    mutant = Mutant("endless", "trionsq/storage/writer.py", old, "        while True: pass\n", 3)
    bad = find(mutant, lambda seed: True)
    assert bad is not None
    assert bad.violation == "the day did not end"


@in_short_soak
def test_the_right_code_is_not_found_bad() -> None:
    """A copy of the sources with a harmless change has good days only."""
    mutant = _MUTANTS["requeue-drops"]
    mutant = Mutant("harmless", mutant.file, mutant.old, f"{mutant.old}  # as it was\n", 3)
    assert find(mutant, lambda seed: True) is None
