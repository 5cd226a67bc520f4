"""The HTTP rows: they run against our nsqd, and a refusal ends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.build import Programs, build
from benchmarks.generator import Bench, MeasureError, run_load
from benchmarks.measure import run_row
from benchmarks.rows import ROWS, Row
from benchmarks.servers import OURS, kinds
from tests.soak import smoke

HTTP_ROWS = {row.name: row for row in ROWS if row.http}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Generator and floor, compiled anew."""
    return build(tmp_path_factory.mktemp("build"))


@pytest.mark.parametrize("row", smoke(HTTP_ROWS, in_short=("http-mpub",)))
def test_an_http_row_measures_it(programs: Programs, row: Row, tmp_path: Path) -> None:
    """Each request is answered OK, and the broker has as many messages as were sent."""
    bench = Bench(programs.load, kinds(programs.floor, None, tmp_path), quick=True)
    run = run_row(bench, row, OURS, 1_000)
    assert run["oks"] == run["commands"] == 1_000 / int(row.options.get("batch", 1))
    assert all(metric.of(run) > 0 for metric in row.metrics)


def test_a_refusal_fails_with_its_text(programs: Programs, tmp_path: Path) -> None:
    """What the server answers other than OK is in the failure."""
    with kinds(programs.floor, None, tmp_path).start(OURS, ()) as server:
        where: dict[str, int | str] = {
            "port": server.http_port or 0,
            "topic": "bad$",
            "publishers": 1,
            "messages": 10,
        }
        with pytest.raises(MeasureError, match="INVALID_TOPIC"):
            run_load(programs.load, "publish", {**where, "http": True})
