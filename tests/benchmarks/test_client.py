"""The rows of client libraries: they run, and a client that leaves messages behind fails them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.build import Programs, build
from benchmarks.clientrows import CLIENT_ROWS, FOREIGN
from benchmarks.generator import Bench, MeasureError
from benchmarks.measure import run_row
from benchmarks.rows import ROWS, Row
from benchmarks.servers import OURS, kinds
from tests.soak import in_short_soak, smoke

CLIENTS = {row.name: row for row in (*ROWS, *CLIENT_ROWS) if row.client}
MESSAGES = 2_000


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Runs that are short, against our nsqd."""
    programs: Programs = build(tmp_path_factory.mktemp("build"))
    data: Path = tmp_path_factory.mktemp("data")
    return Bench(programs.load, kinds(programs.floor, None, data), quick=True)


def test_every_client_has_a_row() -> None:
    """The development environment has all foreign clients, so none is left out unseen."""
    ours = {"client-batches", "client-messages", "client-threads", "receiver"}
    ours |= {f"client-{way}-{w}" for way in ("batches", "messages") for w in ("asyncio", "uvloop")}
    ours |= {f"client-publish{name}" for name in ("", "-asyncio", "-uvloop", "-threads")}
    others = {f"client-{way}{name}" for way in ("", "publish-") for name in FOREIGN}
    assert CLIENTS.keys() == ours | others


@pytest.mark.parametrize(
    "row", smoke(CLIENTS, "client-batches", in_short=("client-pynsq", "client-publish-threads"))
)
def test_a_client_does_all(bench: Bench, row: Row) -> None:
    """The broker has each of its messages, or it gets each message and the broker has each FIN; and
    each of the row's figures is there."""
    run = run_row(bench, row, OURS, MESSAGES)
    assert run["messages"] == MESSAGES
    assert run["beside"].keys() == set(row.beside)
    assert all(metric.of(run) > 0 for metric in row.metrics)


def test_a_client_that_fails_says_why(bench: Bench) -> None:
    """A program that ends early fails its row with its own last words."""
    row = replace(CLIENTS["client-batches"], client="no_such_client", beside=())
    with pytest.raises(MeasureError, match=r"No module named benchmarks\.clients\.no_such_client"):
        run_row(bench, row, OURS, MESSAGES)


@in_short_soak
def test_messages_of_another_size_fail(bench: Bench) -> None:
    """What a client gets is compared with what was published, in messages and bytes."""
    row = CLIENTS["client-batches"]
    other = replace(row, beside=(), options={**row.options, "size-min": 100})
    with pytest.raises(MeasureError, match=f"{MESSAGES} messages of "):
        run_row(bench, other, OURS, MESSAGES)
