"""Property tests run the same examples each time, and enough of them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.machines import run_until_seen

CONSTANTS = 500
"""Of a module with very many Hypothesis draws none."""


def examples() -> list[tuple[int, str]]:
    """What a property test is given."""
    drawn: list[tuple[int, str]] = []

    @settings(max_examples=200)
    @given(st.integers(), st.text())
    def test(number: int, text: str) -> None:
        drawn.append((number, text))

    test()
    return drawn


@pytest.mark.skipif("HYPOTHESIS_PROFILE" in os.environ, reason="draws other examples each time")
def test_examples_do_not_depend_on_the_loaded_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module with hundreds of constants changes no example of a test that runs after it."""
    before = examples()
    path = tmp_path / "constants.py"
    numbers = ", ".join(str(10**9 + number) for number in range(CONSTANTS))
    texts = ", ".join(repr(f"constant {number}") for number in range(CONSTANTS))
    path.write_text(f"NUMBERS = [{numbers}]\nTEXTS = [{texts}]\n")
    spec = importlib.util.spec_from_file_location("constants_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "constants_of_a_test", module)
    spec.loader.exec_module(module)
    assert examples() == before


SEEN: Counter[str] = Counter()


class Machine(RuleBasedStateMachine):
    """One event happens in each sequence, another one after a few sequences."""

    @rule()
    def step(self) -> None:
        """Do nothing."""

    def teardown(self) -> None:
        """Count the sequence."""
        SEEN["frequent"] += 1
        SEEN["rare"] += SEEN["frequent"] > 3


def test_more_sequences_are_drawn_for_a_rare_event() -> None:
    """A second, larger number is tried if an event is missing, and only then."""
    SEEN.clear()
    run_until_seen(Machine, SEEN, ["frequent"], (1, 100), steps=1)
    assert SEEN["frequent"] < 4
    run_until_seen(Machine, SEEN, ["rare"], (1, 100), steps=1)
    assert SEEN["rare"]


def test_an_event_that_never_happens_fails() -> None:
    """However many sequences were drawn, and it is named."""
    SEEN.clear()
    with pytest.raises(AssertionError, match=r"never seen: \['another'\]"):
        run_until_seen(Machine, SEEN, ["frequent", "another"], (1, 5), steps=1)
