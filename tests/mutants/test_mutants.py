"""The tool that changes the code: its sites, its draw, its children, its list, its report."""

from __future__ import annotations

import ast
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.mutants.child import Tell, run_in_child
from tests.mutants.draw import FOLDERS, all_sites, draw, folder_of, read_listed
from tests.mutants.reach import Reach, Recorder
from tests.mutants.report import Line, read_lines, table
from tests.mutants.session import Session, run_tests
from tests.mutants.sites import Site, find_sites, mutate
from tests.soak import in_short_soak
from trionsq.testing.disk import SimulatedDisk

ROOT = Path(__file__).parents[2]

SOURCE = '''
import trio

SIZE: int = 4

def tested(a: int = 1) -> int:
    """A text."""
    log.info("x", 1)
    assert a == 2
    if a < 2 and a:
        raise ValueError(3)
    with self._lock:
        await trio.lowlevel.checkpoint()
        file.sync()
        self.a = a + 1
    return f"{a + 1}"

class Thing:
    def __repr__(self):
        return 1 + 1

    def method(self):
        del self.flag[True]
'''

EXPECTED = {
    "4 to 5",
    "1 to 2",
    "condition negated",
    "and to or",
    "Lt to LtE",
    "2 to 3",
    "raise removed",
    "`self._lock` removed",
    "await removed",
    "sync removed",
    "assignment removed",
    "Add to Sub",
    "returns None",
    "del removed",
    "True to False",
}


@pytest.fixture(scope="module")
def project() -> list[Site]:
    return all_sites(ROOT)


@pytest.fixture
def sites(tmp_path: Path) -> list[Site]:
    (tmp_path / "m.py").write_text(SOURCE)
    return find_sites(tmp_path, "m.py")


def test_each_kind_of_place_is_found_and_nothing_else(sites: list[Site]) -> None:
    """Logging, assertions, annotations, texts and `__repr__` have none."""
    assert {site.change for site in sites} == EXPECTED
    assert {site.line_number for site in sites} == {4, 6, 10, 11, 12, 13, 14, 15, 16, 23}
    scopes = {site.line: site.scope for site in sites}
    assert scopes["SIZE: int = 4"] is None
    assert scopes["file.sync()"] == ("tested", 6)
    assert scopes["del self.flag[True]"] == ("Thing.method", 22)


def test_one_place_is_changed(sites: list[Site], tmp_path: Path) -> None:
    """Each change differs from the source and from all others, and can be compiled."""
    texts = {ast.unparse(mutate(tmp_path, site)) for site in sites}
    assert len(texts) == len(sites)
    assert ast.unparse(ast.parse(SOURCE)) not in texts
    [lock] = [site for site in sites if site.change == "`self._lock` removed"]
    assert "if True:\n        await" in ast.unparse(mutate(tmp_path, lock))


def test_a_draw_depends_on_its_seed_alone(project: list[Site]) -> None:
    """The same again from the same seed; a longer draw begins with the shorter one."""
    names = [site.name for site in project]
    assert len(set(names)) == len(names)
    drawn = draw(project, 50, 17)
    assert draw(project, 20, 17) == drawn[:20]
    assert draw(project, 50, 18) != drawn
    assert len(set(drawn)) == 50
    assert {folder_of(site.path) for site in draw(project, 500, 17)} == set(FOLDERS)


def test_the_list_names_what_is_there(project: list[Site]) -> None:
    """Each entry of equivalent.toml is of a line that the code still has, once in the list."""
    listed = read_listed()
    names = {site.name for site in project}
    assert [entry for entry in listed if entry.name not in names] == []
    assert len({entry.name for entry in listed}) == len(listed)
    assert {entry.kind for entry in listed} <= {"equivalent", "speed"}
    assert all(entry.reason for entry in listed)


def _hang(tell: Tell) -> None:
    tell("test a")
    tell("test b")
    time.sleep(60)


def _fail(tell: Tell) -> None:
    tell("test a")
    tell("failed a")


def _busy(tell: Tell) -> None:
    while True:
        tell("test a")
        time.sleep(0.01)


def test_code_elsewhere_does_not_change_the_draw(project: list[Site]) -> None:
    """With one place less at the start, nearly all that was drawn is drawn again."""
    drawn = {site.name for site in draw(project, 500, 17)}
    again = {site.name for site in draw(project[1:], 500, 17)}
    assert len(drawn - again) < 10


@pytest.mark.parametrize(
    ("work", "outcome", "by"),
    [
        (lambda tell: tell("test a"), "survived", ""),
        (_fail, "found", "a"),
        (lambda tell: 1 / 0, "found", "ZeroDivisionError"),
        (lambda tell: os._exit(3), "found", " (the process ended)"),
        (_hang, "hang", "b"),
        (_busy, "unfinished", "a"),
    ],
)
def test_a_child_ends_however_it_goes(
    work: object, outcome: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure, a defect, a crash and a hang are findings; a limit that is reached is none."""
    assert callable(work)
    pids: list[int] = []
    fork = os.fork

    def noted_fork() -> int:
        pids.append(fork())
        return pids[-1]

    monkeypatch.setattr(os, "fork", noted_fork)
    result = run_in_child(work, 0.5, lambda test: 0.2)
    assert (result.outcome, result.by) == (outcome, by)
    [pid] = pids
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_a_change_that_no_test_enters_lives() -> None:
    """It is a hole like any other, and not an error that would count as noticed."""
    work = Session(ROOT, [], Path("reach"), 1.0, lambda site, result: None)._changing
    session = SimpleNamespace(items=[])
    result = run_in_child(work(cast(pytest.Session, session), [], []), 20.0, lambda test: 20.0)
    assert (result.outcome, result.tests) == ("survived", 0)


@pytest.mark.parametrize("changed", ["tests/test_x.py", "m.py", "other.py"])
def test_what_was_recorded_of_other_code_is_recorded_anew(changed: str, tmp_path: Path) -> None:
    """A function that has moved, or is called by others now, would seem to have no test."""
    (tmp_path / "tests").mkdir()
    files = [tmp_path / name for name in ("tests/test_x.py", "m.py", "other.py")]
    for file in files:
        file.write_text("1")

    def session() -> Session:
        return Session(tmp_path, [], tmp_path / "reach", 1.0, lambda site, result: None)

    one = ["tests/test_x.py::a", 0.1, "", ["m.py:f"]]
    line = [*one, session()._digest("tests/test_x.py::a", ["m.py:f"])]
    (tmp_path / "reach").write_text(json.dumps(line) + "\n" + json.dumps(one) + "\n")
    assert [*map(list, session()._recorded())] == [one], "and none of before there was a digest"
    (tmp_path / changed).write_text("2")
    assert [*map(list, session()._recorded())] == ([one] if changed == "other.py" else [])


def test_a_test_that_waits_is_recorded_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine each one waits; what it calls last counts as well."""
    monkeypatch.setattr("tests.mutants.reach._RECORDED_S", 0.05)
    recorder = Recorder(ROOT)
    for is_busy in (False, True):
        recorder.start()
        time.sleep(0.1)
        if is_busy:
            began_s = time.process_time()
            while time.process_time() < began_s + 0.1:
                sum(one for one in range(100))
        SimulatedDisk().files()
        names = recorder.stop()[1]
        assert ("trionsq/testing/disk.py:SimulatedDisk.files" in names) == (not is_busy)


def test_what_enters_the_function_is_run_and_the_nearest_first() -> None:
    """Tests of which nothing is known run too; of golden cases all if one enters it."""
    recorder = Recorder(ROOT)
    recorder.start()
    draw([], 0, 1)
    assert "tests/mutants/draw.py:draw" not in recorder.stop()[1], "tests are not recorded"
    reach = Reach()
    reach.add("tests/http/test_x.py::a", 0.1, ["trionsq/core/m.py:f"])
    reach.add("tests/core/test_x.py::a", 0.1, ["trionsq/core/m.py:f"])
    reach.add("tests/core/test_m.py::slow", 9.0, ["trionsq/core/m.py:f"])
    reach.add("tests/core/test_m.py::a", 0.1, ["trionsq/core/m.py:f"])
    reach.add("tests/core/test_m.py::b", 0.1, ["trionsq/core/m.py:g"])
    reach.add("tests/golden/test_g.py::a", 0.0, ["trionsq/core/m.py:f"])
    reach.add("tests/golden/test_g.py::b", 0.0, [])
    tests = [*reach.seconds, "tests/core/test_m.py::new"]
    site = Site("trionsq/core/m.py", 0, 0, "bool", "True to False", 1, "x", ("f", 1))
    assert reach.choose(site, tests) == [
        "tests/core/test_m.py::a",
        "tests/core/test_m.py::new",
        "tests/core/test_x.py::a",
        "tests/http/test_x.py::a",
        "tests/core/test_m.py::slow",
        "tests/golden/test_g.py::a",
        "tests/golden/test_g.py::b",
    ]


@in_short_soak
def test_a_changed_file_is_tried_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that passes lives, and one without tests is found by pytest's exit code."""
    monkeypatch.delenv("TRIONSQ_SOAK", raising=False)
    good = run_tests(ROOT, ["tests/test_hostport.py"], 60)
    assert good.outcome == "survived"
    assert good.tests > 1
    assert run_tests(ROOT, ["tests/missing.py"], 60).by == "exit code 4"


def test_results_are_read_and_counted(tmp_path: Path) -> None:
    """The latest of each; a line that was cut off is tried again; what lives is shown."""
    line = Line("n", "lookupd/x.py", 7, "a < b", "comparison", "Lt to LtE", "survived", "", 3, 1.0)
    text = table([line])
    assert "lookupd/x.py:7: Lt to LtE (survived, 3 tests, 1 s)\n    a < b" in text
    assert text.splitlines()[6].split() == ["lookupd", "1", "0", "0", "0", "0", "1"]
    path = tmp_path / "results.jsonl"
    path.write_text('{"name": "cut')
    assert read_lines(path) == {}
