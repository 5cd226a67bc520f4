"""All changes in one pytest session: modules and tests are imported once, each change is a fork.

A child swaps the code of the changed function and runs the tests that enter it. Code that runs at
the import can't be swapped: there a new process runs tests over a changed file.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import pytest

from tests.mutants.child import TOTAL_S, Result, Tell, run_in_child, watch
from tests.mutants.draw import all_sites
from tests.mutants.reach import Reach, Recorder
from tests.mutants.report import Line
from tests.mutants.sites import Scope, Site, mutate

__all__ = ["UNIVERSE", "Session", "main", "run_tests"]

UNIVERSE: Final = (
    "tests/wire",
    "tests/core",
    "tests/storage",
    "tests/broker",
    "tests/client",
    "tests/lookupd",
    "tests/admin",
    "tests/pipelines/wal",
    "tests/pipelines/receiver",
    "tests/http",
    "tests/transports",
    "tests/testing",
    "tests/tools",
    "tests/golden/test_in_process.py",
    "tests/golden/test_http_ways.py",
    "tests/golden/test_lookupd.py",
)
"""Tests that may notice a change: those of the folders, and of what is built on them."""
_CHECK_EACH: Final = 20
_CHECKED_TESTS: Final = 30
"""After so many changes so many tests run without one: what fails then says nothing of changes."""
_FRESH_FILES: Final = 12
"""Test files over which a change of what runs at the import is tried."""

Report = Callable[[Site, Result], None]


class Session:
    """A pytest plugin whose test loop is the loop over the changes.

    Args:
        root: the copy of the project.
        sites: what is changed, in this order.
        reach_file: keeps which tests enter which functions; what is missing or of other code is
            added.
        total_s: for the tests of one change.
        report: called with each result.
    """

    def __init__(
        self,
        root: Path,
        sites: Sequence[Site],
        reach_file: Path,
        total_s: float,
        report: Report,
    ) -> None:
        self._root = root
        self._total_s = total_s
        self._sites = sites
        self._reach_file = reach_file
        self._report = report
        self._failed = ""
        self._functions: dict[tuple[str, Scope], list[FunctionType]] = {}
        self._digests: dict[str, bytes] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the first failure."""
        if report.failed and not self._failed:
            self._failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try each change; pytest runs no test itself."""
        tests = {item.nodeid: item for item in session.items}
        known = {name for name, *_ in self._recorded()}
        unknown = [item for name, item in tests.items() if name not in known]
        if unknown:
            run_unbounded(self._recording(session, unknown))
        reach = self._read_reach(tests)
        self._index_functions()
        gc.collect()
        gc.freeze()
        for number, site in enumerate(self._sites):
            names = reach.choose(site, tests)
            swaps = self._swaps(site)
            if number % _CHECK_EACH == 0:
                some = [tests[name] for name in names[:_CHECKED_TESTS]]
                unchanged = run_in_child(self._changing(session, some, []), TOTAL_S, reach.idle_s)
                if unchanged.outcome != "survived":
                    raise RuntimeError(f"without a change: {unchanged}")
            if swaps is None:
                result = self._run_fresh(site, names)
            else:
                work = self._changing(session, [tests[name] for name in names], swaps)
                result = run_in_child(work, self._total_s, reach.idle_s)
            self._report(site, result)
        return True

    def _recording(self, session: pytest.Session, items: list[pytest.Item]) -> Callable[[], None]:
        def work() -> None:
            recorder = Recorder(self._root)
            session.items[:] = items
            with self._reach_file.open("a", buffering=1) as file:
                for item, following in _in_turn(items):
                    self._failed = ""
                    recorder.start()
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                    took_s, functions = recorder.stop()
                    digest = self._digest(item.nodeid, functions)
                    line = [item.nodeid, took_s, self._failed, functions, digest]
                    file.write(json.dumps(line) + "\n")

        return work

    def _read_reach(self, tests: dict[str, pytest.Item]) -> Reach:
        """Read what was recorded; a test that failed unchanged can notice nothing."""
        reach = Reach()
        for name, took_s, failed, functions in self._recorded():
            if failed:
                print(f"left out, it fails unchanged: {name}", file=sys.__stderr__, flush=True)
                tests.pop(name, None)
            reach.add(name, took_s, () if failed else functions)
        return reach

    def _recorded(self) -> Iterator[tuple[str, float, str, list[str]]]:
        """Yield what was recorded of tests that have not changed since, nor what they enter."""
        if self._reach_file.exists():
            for line in self._reach_file.read_text().splitlines():
                if line.endswith("]"):
                    name, took_s, failed, functions, *digest = json.loads(line)
                    if digest == [self._digest(name, functions)]:
                        yield name, took_s, failed, functions

    def _digest(self, name: str, functions: Iterable[str]) -> str:
        """Return one of a test's file and of all that have a function that it enters."""
        files = {name.partition("::")[0], *(one.partition(":")[0] for one in functions)}
        found = sha256()
        for file in sorted(files):
            if file not in self._digests:
                path = self._root / file
                content = path.read_bytes() if path.is_file() else b""
                self._digests[file] = sha256(content).digest()
            found.update(self._digests[file])
        return found.hexdigest()

    def _index_functions(self) -> None:
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                code = thing.__code__
                path = code.co_filename.removeprefix(f"{self._root}/")
                key = (path, (code.co_qualname, code.co_firstlineno))
                self._functions.setdefault(key, []).append(thing)

    def _swaps(self, site: Site) -> list[tuple[FunctionType, CodeType]] | None:
        """Return the functions to change with their new code; None if that can't be done."""
        functions = self._functions.get((site.path, site.scope), []) if site.scope else []
        name = str(self._root / site.path)
        module = compile(mutate(self._root, site), name, "exec", dont_inherit=True)
        found = [code for code in _codes(module) if site.scope == _scope_of(code)]
        if not functions or len(found) != 1:
            return None
        if any(not _is_alike(function.__code__, found[0]) for function in functions):
            return None
        return [(function, found[0]) for function in functions]

    def _changing(
        self,
        session: pytest.Session,
        items: list[pytest.Item],
        swaps: list[tuple[FunctionType, CodeType]],
    ) -> Callable[[Tell], None]:
        def work(tell: Tell) -> None:
            for function, code in swaps:
                function.__code__ = code
            session.items[:] = items
            self._failed = ""
            for item, following in _in_turn(items):
                tell(f"test {item.nodeid}")
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._failed:
                    tell(f"failed {self._failed}")
                    return

        return work

    def _run_fresh(self, site: Site, names: list[str]) -> Result:
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))[:_FRESH_FILES]
        if not files:
            return Result("survived", "", 0, 0.0)
        with self._changed_file(site):
            return run_tests(self._root, files, self._total_s)

    @contextmanager
    def _changed_file(self, site: Site) -> Iterator[None]:
        path = self._root / site.path
        source, status = path.read_bytes(), path.stat()
        path.write_text(ast.unparse(mutate(self._root, site)))
        try:
            yield
        finally:
            path.write_bytes(source)
            # With its old time, so that Python takes the bytecode of before.
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def run_unbounded(work: Callable[[], None]) -> None:
    """Fork, call ``work`` there, and wait for its end; this process stays as it is."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def run_tests(root: Path, files: Sequence[str], total_s: float) -> Result:
    """Run test files in a new process, until one fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-v", "-p", "no:cacheprovider", *files]
    process = subprocess.Popen(
        command,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
        text=True,
    )

    def kill() -> None:
        os.killpg(process.pid, signal.SIGKILL)

    read_end, write_end = os.pipe()
    thread = threading.Thread(target=_translate, args=(process, write_end))
    thread.start()
    try:
        return watch(read_end, kill, total_s)
    finally:
        kill_quietly(process)
        thread.join()
        os.close(read_end)


def _translate(process: subprocess.Popen[str], write_end: int) -> None:
    """Tell in the words of a child what pytest prints."""
    assert process.stdout is not None
    failed = ""
    with process.stdout, os.fdopen(write_end, "w", buffering=1) as pipe:
        for line in process.stdout:
            name, _, rest = line.partition(" ")
            if "::" in name and line.startswith("tests/"):
                pipe.write(f"test {name}\n")
                if rest.startswith(("FAILED", "ERROR")):
                    failed = name
        code = process.wait()
        pipe.write("end\n" if code == 0 else f"failed {failed or f'exit code {code}'}\n")


def kill_quietly(process: subprocess.Popen[str]) -> None:
    """End a process and wait for it, if it has not ended itself."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _in_turn(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    following = [*items[1:], None] if items else []
    yield from zip(items, following, strict=True)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _scope_of(code: CodeType) -> Scope:
    return code.co_qualname, code.co_firstlineno


def _is_alike(before: CodeType, after: CodeType) -> bool:
    """Whether a function may get the new code: a generator stays one, and its cells remain."""
    return before.co_freevars == after.co_freevars and before.co_flags == after.co_flags


def main(plan_file: str) -> int:
    """Carry out the plan that `tests.mutants` wrote; append results as JSON lines."""
    plan = json.loads(Path(plan_file).read_text())
    root = Path.cwd()
    wanted: set[str] = set(plan["names"])
    sites = {site.name: site for site in all_sites(root) if site.name in wanted}
    names = [name for name in plan["names"] if name in sites]
    with Path(plan["results"]).open("a", buffering=1) as results:

        def report(site: Site, result: Result) -> None:
            results.write(json.dumps(asdict(Line.of(site, result))) + "\n")

        chosen = [sites[name] for name in names]
        session = Session(root, chosen, Path(plan["reach"]), plan["total_s"], report)
        options = ["-q", "-p", "no:cacheprovider", f"--basetemp={root}/.mutants"]
        return int(pytest.main([*options, *UNIVERSE], plugins=[session]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
