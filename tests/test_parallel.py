"""What is run where: groups for the workers, marks for the soaks, ports for the daemons."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import parallel
from tests.parallel import SPARK, group_of, rank
from tests.processes import PORTS, free_address, split_address
from tests.soak import smoke, swept

ROOT = Path(__file__).parents[1]
HEAVY = "tests/hostile/test_hostile.py::test_others_flow_on_and_memory_stays_bounded"


def test_what_is_named_is_there() -> None:
    """A file that was moved is not forgotten in the plan."""
    files = (*parallel.SPARK_FILES, *parallel.BY_TEST, *parallel.BY_CUTTING)
    named = (*files, *(each for each in parallel.LONG if each != SPARK))
    assert [each for each in named if not (ROOT / each).exists()] == []


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/wire/test_names.py::test_one[a]", "tests/wire/test_names.py"),
        ("tests/pipelines/sink/test_spark.py::test_one", SPARK),
        ("tests/browser/test_live.py::test_one[a]", "tests/browser/"),
        (f"{HEAVY}[snappy]", f"{HEAVY}[snappy]"),
        (
            "tests/golden/test_process.py::test_tcp_conversation[tcp-fin-random]",
            "tests/golden/test_process.py::random]",
        ),
    ],
)
def test_what_shares_something_stays_together(nodeid: str, group: str) -> None:
    """A file, a session of Spark, a browser, a replay of one cutting; or nothing but the test."""
    assert group_of(nodeid) == group


def test_what_takes_long_begins_first() -> None:
    """So that no worker is left alone with it in the end."""
    order = [
        f"{parallel.SPARK_FILES[0]}::test_one",
        f"{HEAVY}[x]",
        "tests/wire/test_names.py::test_one",
    ]
    assert [rank(nodeid) for nodeid in order] == sorted({rank(nodeid) for nodeid in order})


def collected(*arguments: str, level: str = "") -> str:
    """What pytest would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    env = {**os.environ, "TRIONSQ_SOAK": level}
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_each_test_belongs_to_a_run() -> None:
    """`make test` has what has no mark, the short soak what is marked for it, the full one all
    that is marked; and `make test` says how many it leaves out."""
    told = {
        level: collected("tests/hostile/test_hostile.py", level=level)
        for level in ("", "short", "full")
    }
    counts = [each.count("memory_stays_bounded") for each in told.values()]
    assert counts == sorted(set(counts))
    assert "tests are left to `make soak`" in told[""]
    assert "short_form_names" in told[""]
    assert "short_form_names" not in told["full"]


def test_another_level_is_refused() -> None:
    """A misspelt one does not become a soak that runs nothing."""
    assert "TRIONSQ_SOAK=shrot: it may be short or full" in collected(
        "tests/soak.py", level="shrot"
    )


def test_a_sweep_is_short_in_make_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries each fifth place, the first among them, but of many fewer; the full soak tries
    every one."""
    monkeypatch.setattr("tests.soak.LEVEL", "test")
    assert [*swept(11)] == [1, 6, 11]
    assert len(swept(1_000)) == 25
    monkeypatch.setattr("tests.soak.LEVEL", "full")
    assert [*swept(11)] == [*range(1, 12)]


@pytest.mark.parametrize("count", [1, 2, 11, 60, 100, 1_000])
def test_a_sweep_of_the_short_soak_is_no_longer(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries 10 places at most, over the whole sweep, and of many others than `make test`."""
    monkeypatch.setattr("tests.soak.LEVEL", "test")
    before = {*swept(count)}
    monkeypatch.setattr("tests.soak.LEVEL", "short")
    places = [*swept(count)]
    assert 1 <= len(places) <= 10
    assert 1 <= places[0] <= places[-1] <= count
    assert count - places[-1] <= count // 10
    assert count < 100 or before.isdisjoint(places)


def test_what_is_not_named_for_the_short_soak_is_of_the_full_one() -> None:
    """Without such names all that `make test` leaves out is of both soaks."""
    named = {"a": 1, "b": 2, "c": 3}

    def lowest(params: list[Any]) -> list[str]:
        return [each.marks[0].kwargs["lowest"] if each.marks else "" for each in params]

    assert lowest(smoke(named, "a")) == ["", "short", "short"]
    assert lowest(smoke(named, "a", in_short=("c",))) == ["", "full", "short"]


@pytest.fixture
def ports() -> Callable[[int], set[int]]:
    """Some ports for daemons."""
    return lambda how_many: {split_address(free_address())[1] for _ in range(how_many)}


def test_a_free_port_is_nobodys(ports: Callable[[int], set[int]]) -> None:
    """Each is another one, out of the range that the kernel gives away by itself."""
    assert len(ports(50)) == 50
    assert ports(50) <= set(PORTS)
