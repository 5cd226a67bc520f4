"""Property tests run the same examples each time, whatever ran before them in the process."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
