"""The rows of the pipelines' sink: they run, and a broker that refuses fails them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.build import Programs, build
from benchmarks.generator import Bench, MeasureError
from benchmarks.measure import run_row
from benchmarks.rows import ROWS, Row
from benchmarks.servers import OURS, kinds
from tests.soak import in_short_soak, smoke

pytest.importorskip("pyspark")

SINK = [row for row in ROWS if row.procedure == "sink"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Generator and floor, compiled anew."""
    return build(tmp_path_factory.mktemp("build"))


@pytest.mark.parametrize("row", smoke({row.name: row for row in SINK}, in_short=("sink",)))
def test_each_row_measures_its_mode(programs: Programs, row: Row, tmp_path: Path) -> None:
    """The channel has each message once; a part of a batch counts, too."""
    bench = Bench(programs.load, kinds(programs.floor, None, tmp_path), quick=True)
    run = run_row(bench, row, OURS, 12_345)
    assert run["messages"] == 12_345
    assert all(metric.of(run) > 0 for metric in row.metrics)


@in_short_soak
def test_a_program_that_fails_is_told_with_its_text(programs: Programs, tmp_path: Path) -> None:
    """Not taken for a slow one."""
    bench = Bench(programs.load, kinds(programs.floor, None, tmp_path), quick=True)
    with pytest.raises(MeasureError, match=r"has not done 10 messages"):
        run_row(bench, replace(SINK[0], layer="twice"), OURS, 10)
