"""The rows of the log engine measure it, and what it is compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.build import Programs, build
from benchmarks.clients.deferred import DeferredError, run_deferred
from benchmarks.generator import Bench
from benchmarks.logrows import LOG_ROWS
from benchmarks.measure import run_row
from benchmarks.onlog import LOG
from benchmarks.policies import POLICY_ROWS
from benchmarks.report import Result, table
from benchmarks.rows import Row
from benchmarks.servers import OURS, Kinds
from tests.processes import nsqd_command
from tests.soak import in_short_soak, smoke

IN_SHORT = ("log-topics-50", "log-pub-sync-50", "log-consume", "log-start")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Generator and floor, compiled anew."""
    return build(tmp_path_factory.mktemp("build"))


@pytest.mark.parametrize(
    "row", smoke({row.name: row for row in (*LOG_ROWS, *POLICY_ROWS)}, in_short=IN_SHORT)
)
def test_each_row_adds_up(programs: Programs, row: Row, tmp_path: Path) -> None:
    """Every row runs against a real nsqd with a log, loses nothing, and its figures are printed."""
    servers = Kinds({OURS: nsqd_command()}, tmp_path)
    messages = min(row.quick_messages or 2_000, 10_000)
    run = run_row(Bench(programs.load, servers, 0.3, quick=True), row, OURS, messages)
    assert all(metric.of(run) >= 0 for metric in row.metrics)
    assert row.name in table([Result(row, {OURS: [run]})])
    assert list(tmp_path.iterdir()) == []


@in_short_soak
def test_messages_that_fall_due_too_soon_fail(tmp_path: Path) -> None:
    """A row whose messages would fall due while they are published is no figure."""
    with (
        Kinds({OURS: nsqd_command()}, tmp_path).start(OURS, LOG) as server,
        pytest.raises(DeferredError, match="took more than"),
    ):
        run_deferred(server, 1_000_000, 0.3)
