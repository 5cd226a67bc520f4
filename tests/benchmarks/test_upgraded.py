"""The rows of TLS, snappy and deflate: they run, and what is missing fails them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.build import build
from benchmarks.generator import Bench, MeasureError
from benchmarks.measure import run_row
from benchmarks.rows import ROWS, Row
from benchmarks.servers import OURS, kinds
from tests.soak import smoke

UPGRADED = {row.name: row for row in ROWS if row.layer}
MESSAGES = 1_000


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Runs that are short, against our nsqd."""
    programs = build(tmp_path_factory.mktemp("build"))
    return Bench(
        programs.load, kinds(programs.floor, None, tmp_path_factory.mktemp("data")), quick=True
    )


@pytest.mark.parametrize("row", smoke(UPGRADED, in_short=("tls-mpub", "snappy-consume")))
def test_all_is_published_and_finished(bench: Bench, row: Row) -> None:
    """Over each layer, both ways."""
    run = run_row(bench, row, OURS, MESSAGES)
    assert run["messages"] == MESSAGES
    assert run["timed_seconds"] > 0


def test_a_program_that_fails_says_why(bench: Bench) -> None:
    """With its own last words."""
    row = replace(UPGRADED["tls-mpub"], layer="no such layer")
    with pytest.raises(MeasureError, match="no such layer"):
        run_row(bench, row, OURS, MESSAGES)
