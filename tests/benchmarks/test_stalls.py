"""The table of what holds the event loop up can be made, and says what it saw."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.generator import MeasureError
from benchmarks.stalls import __main__ as command
from benchmarks.stalls.rows import Row, longest, longest_pause_ms, table, where
from benchmarks.stalls.shapes import SHAPES
from benchmarks.stalls.stage import Stage
from tests.soak import in_short_soak

GUIDE = Path(__file__).parents[2] / "docs" / "capacity.md"


def step(own_ms: float, ran: str | None, duration_ms: float = 0.0) -> dict[str, Any]:
    return {
        "own_ms": own_ms,
        "duration_ms": duration_ms or own_ms,
        "cpu_ms": own_ms,
        "ran": ran,
        "task": "trionsq.broker.channel.Channel.run",
    }


def row(load: str, tree: str, *steps: dict[str, Any], ping_ms: float = 5.0) -> Row:
    return Row(
        shape="some",
        load=load,
        tree=tree,
        seconds=1.0,
        pings={"longest_ms": ping_ms, "count": 10, "late_ms": 0.0},
        idle={"longest_ms": 1.0, "count": 10, "late_ms": 0.0},
        watched={
            "slowest": list(steps),
            "longest_turn_cpu_ms": 7.0,
            "garbage": {"0": {"longest_cpu_ms": 2.0}, "1": {"longest_cpu_ms": 4.0}},
        },
    )


def test_the_longest_step_is_the_longest_by_what_it_did_itself() -> None:
    """One that only waited for a processor is not blamed."""
    waited, computed = step(2.0, "a b", duration_ms=100.0), step(30.0, "c d")
    assert longest(row("load", "now", waited, computed)) is computed
    assert longest(row("load", "now")) is None
    assert longest_pause_ms(row("load", "now")) == 4.0


def test_a_step_is_named_by_its_function_else_by_its_task() -> None:
    """Names are short; a step too short to be looked at has none."""
    assert (
        where(step(30.0, "trionsq.core.channel Channel.f.<locals>.g")) == "core.channel Channel.f.g"
    )
    assert where(step(30.0, None)) == "broker.channel.Channel.run"
    assert where(step(1.0, None)) == "-"
    assert where(None) == "-"


def test_two_trees_stand_beside_each_other() -> None:
    """Before and after in one line, with a dash where one of them failed."""
    rows = [
        row("one", "before", step(100.0, "a b"), ping_ms=200.0),
        row("one", "now", step(3.0, "c d"), ping_ms=4.0),
        row("two", "before", step(50.0, "e f")),
    ]
    lines = table(rows, ["before", "now"]).text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[-2:]]
    assert cells == [
        ["one", "200", "4", "100", "3", "a b", "c d"],
        ["two", "5", "-", "50", "-", "e f", "-"],
    ]


@in_short_soak
def test_a_load_is_put_on_real_daemons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A small one, against this checkout: rows with pings, steps and turns; JSON has all of it."""
    figures = tmp_path / "figures.json"
    code = command.main(["--quick", "--only", "late", "--json", str(figures)])
    assert code == 0
    document = json.loads(figures.read_text())
    assert document["failures"] == []
    assert len(document["rows"]) == 3
    for each in document["rows"]:
        assert each["pings"]["count"] > 0
        assert each["pings"]["longest_ms"] > 0
        assert each["watched"]["steps"] > 0
        assert each["watched"]["longest_turn_cpu_ms"] > 0
        assert each["watched"]["slowest"]
    assert capsys.readouterr().out.count("\n| ") == 3 + 2


def test_a_load_that_fails_says_why_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the reason below the table, and the rows behind it."""

    def failing(stage: Stage) -> None:
        raise MeasureError("it did not come")

    def fine(stage: Stage) -> None:
        stage.rows.append({**row("a load", stage.tree, step(4.0, "a b")), "shape": stage.shape})

    monkeypatch.setattr(command, "SHAPES", {"failing": failing, "fine": fine})
    assert command.main([]) == 1
    said = capsys.readouterr().out
    assert "failing (now) FAILED: it did not come" in said
    assert "a load" in said


def test_names_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """--list starts nothing; a name that there is not is an error with a hint."""
    assert command.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SHAPES)
    with pytest.raises(SystemExit, match="no such load: nothing; --list"):
        command.main(["--only", "nothing"])


def test_the_guide_names_every_load() -> None:
    """docs/capacity.md lists each that `--only` takes, and no other."""
    section = GUIDE.read_text().partition("## Stalls")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE) == list(SHAPES)
