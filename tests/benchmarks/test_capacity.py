"""The tables of the capacity guide can be made, and what goes wrong is not shown as a figure."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.build import Programs, build
from benchmarks.capacity import __main__ as command
from benchmarks.capacity.connections import read_frame
from benchmarks.capacity.lab import Flow, Lab
from benchmarks.capacity.tables import Table
from benchmarks.generator import Bench, MeasureError
from benchmarks.servers import kinds
from tests.soak import smoke

GUIDE = Path(__file__).parents[2] / "docs" / "capacity.md"
# Of several files; all of them take a minute and a half.
TRIED = ("channels", "connections", "disk", "lookupd")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Generator and floor, compiled anew."""
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture
def lab(programs: Programs, tmp_path: Path) -> Lab:
    """Runs that are short, against our nsqd."""
    return Lab(Bench(programs.load, kinds(programs.floor, None, tmp_path), quick=True))


@pytest.mark.parametrize(
    "name", smoke(dict(zip(TRIED, TRIED, strict=True)), in_short=("disk", "connections"))
)
def test_a_table_is_made(lab: Lab, name: str) -> None:
    """Against real daemons; it has the name by which it is asked for, and rows."""
    table = command.SECTIONS[name](lab)
    assert table.name == name
    assert len(table.rows) >= 3
    assert table.text().count("\n|") == len(table.rows) + 2


def test_a_load_that_is_not_done_is_no_figure(lab: Lab) -> None:
    """Fewer messages than there should be end in an error with nsqd's last lines."""

    def measure() -> None:
        with lab.nsqd() as server:
            lab.publish(server, 100, publishers=1, batch=10)
            lab.consume(server, 200, consumers=1, rdy=10, stall=1)

    with pytest.raises(MeasureError, match=r"(?s)100 of 200.*last lines.*TCP: listening"):
        measure()


def test_the_guide_tells_of_each_table() -> None:
    """Every table that can be measured is in docs/capacity.md, and no other."""
    named = re.findall(r"^Table `(\w+)`", GUIDE.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(command.SECTIONS)


def _table(name: str) -> Callable[[Lab], Table]:
    def measure(lab: Lab) -> Table:
        table = Table(name, "of nothing", "what, msg/s")
        table.add("this", 1234.5)
        return table

    return measure


def _failing(lab: Lab) -> Table:
    raise MeasureError("it lost one")


def test_a_failed_table_says_so_and_others_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit code 1, the reason in its place, and the tables behind it."""
    monkeypatch.setattr(command, "SECTIONS", {"first": _failing, "second": _table("second")})
    monkeypatch.setattr(command, "build", lambda: build(tmp_path))
    assert command.main([f"--data={tmp_path}"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: it lost one" in printed
    assert "| this | 1,230 |" in printed
    assert command.main([f"--data={tmp_path}", "--only=second"]) == 0


def test_an_unknown_table_is_refused() -> None:
    """With its name, before anything is started."""
    with pytest.raises(SystemExit, match="no such table: nothing"):
        command.main(["--only=sizes,nothing"])


def test_the_list_names_all_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """One a line, in the order of the guide."""
    assert command.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(command.SECTIONS)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.01234, "0.0123"), (12.34, "12.3"), (999.4, "999"), (1_234_567.0, "1,230,000")],
)
def test_figures_have_three_digits_that_count(value: float, shown: str) -> None:
    """More would pretend to an accuracy that no run has."""
    table = Table("one", "figure", "row, figure, missing")
    table.add("this", value, None)
    assert table.text().splitlines()[-1].split() == ["|", "this", "|", shown, "|", "-", "|"]


def test_a_row_must_fill_the_table() -> None:
    """A figure too few would move the others under wrong headings."""
    with pytest.raises(ValueError, match="2 cells for 3 columns"):
        Table("one", "figure", "row, figure, other").add("this", 1)


def test_costs_are_those_of_all_rounds() -> None:
    """Rounds add up, and CPU is told for a message."""
    flow = Flow(1_000, 0.5, 0.02) + Flow(1_000, 0.5, 0.04)
    assert flow.rate == 2_000
    assert flow.cpu_us == pytest.approx(30)
    assert flow.busy_percent == pytest.approx(6)


def test_a_frame_ends_where_it_ends() -> None:
    """What comes behind an answer is left for whoever speaks next, TLS say; an end is an error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"\0\0\0\6\0\0\0\0OK\x16\x03")
        assert read_frame(ours) == b"\0\0\0\0OK"
        assert ours.recv(10) == b"\x16\x03"
        theirs.sendall(b"\0\0\0\6\0\0")
        theirs.close()
        with pytest.raises(MeasureError, match="closed a connection"):
            read_frame(ours)
