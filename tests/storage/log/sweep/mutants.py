"""Known bad changes of the log engine: a promise must be broken with each.

python -m tests.storage.log.sweep.mutants
python -m tests.storage.log.sweep.mutants --only record-fsync

They are listed in the files *.toml, each with the rule (docs of the log engine) that it breaks.
Each is made in a copy of the sources, where a new process runs histories of the sweep, or the tests
that keep what is outside of its world.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["ROOT", "BadChange", "Found", "bad_changes", "find"]

ROOT: Final = Path(__file__).parents[4]
_SOURCES: Final = ("trionsq", "tests/storage/log/sweep")
_TESTED: Final = ("trionsq", "admin", "lookupd", "tests", "docs", "pyproject.toml")
_NO_TESTS: Final = 5  # pytest's exit code
_FAILED: Final = re.compile(r"^FAILED .*", re.MULTILINE)
_FOUND: Final = re.compile(r"after (\d+) crashes: (.*)")
# What Python says of a program whose text does not fit together, and an assertion of the sweep.
_UNFIT: Final = re.compile(r"(?:^|- )(?:TypeError|NameError|UnboundLocalError)\b|^AssertionError")


class BadChange(msgspec.Struct, forbid_unknown_fields=True):
    """A bad change.

    Attributes:
        name: of it.
        rule: that it breaks.
        file: that it changes, in trionsq/storage/log.
        old: text that occurs once in the file.
        new: takes its place.
        points: so many crashes must be enough.
        tests: files of tests, one of which must fail; none: the sweep finds it.
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    points: int = 6_000
    tests: list[str] = []

    def apply(self, folder: Path) -> None:
        """Change the file below a folder with the sources.

        Raises:
            ValueError: the old text does not occur exactly once.
        """
        file = folder / "trionsq/storage/log" / self.file
        text = file.read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its text occurs {count} times in {self.file}")
        changed = text.replace(self.old, self.new)
        compile(changed, self.file, "exec")
        file.write_text(changed)


class Found(msgspec.Struct):
    """What became of a bad change: after how many crashes which promise was broken.

    Raises:
        ValueError: none was, the changed program does not fit together.
    """

    points: int
    promise: str

    def __post_init__(self) -> None:
        if _UNFIT.search(self.promise):
            raise ValueError(f"it does not fit together: {self.promise}")


def bad_changes() -> list[BadChange]:
    """All known bad changes."""
    found: list[BadChange] = []
    for file in sorted(Path(__file__).parent.glob("*.toml")):
        found += msgspec.convert(tomllib.loads(file.read_text())["change"], list[BadChange])
    return found


def find(change: BadChange | None, points: int) -> Found | None:
    """Run histories with a change, or without one; None if all promises were kept.

    Raises:
        ValueError: the change does not fit the sources.
    """
    with tempfile.TemporaryDirectory(prefix="sweep-") as name:
        folder = Path(name)
        tests = [] if change is None else change.tests
        _copy_sources(folder, _TESTED if tests else _SOURCES)
        if change is not None:
            change.apply(folder)
        if tests:
            return _run_tests(folder, tests)
        done = subprocess.run(
            [sys.executable, "-m", "tests.storage.log.sweep", "--points", str(points)],
            cwd=folder,
            env=_environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.returncode:
        return None
    match = _FOUND.search(done.stdout)
    if match is None:
        raise RuntimeError(done.stderr)
    return Found(int(match[1]), match[2])


def _copy_sources(folder: Path, sources: Iterable[str]) -> None:
    for source in sources:
        if (ROOT / source).is_file():
            shutil.copy(ROOT / source, folder / source)
        else:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, folder / source, ignore=ignored)


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def _run_tests(folder: Path, tests: list[str]) -> Found | None:
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    for level in ("", "full"):  # those of `make test`, then what the soak has more of them
        environment = {**_environment(folder), "TRIONSQ_SOAK": level}
        done = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode in (0, _NO_TESTS):
            continue
        match = _FAILED.search(done.stdout)
        if done.returncode != 1 or match is None:
            raise RuntimeError(done.stdout + done.stderr)
        return Found(0, match[0])
    return None


def main() -> int:
    """Return the exit code: 0 if each change was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.storage.log.sweep.mutants")
    parser.add_argument("--only", metavar="NAME", action="append", help="this change; repeatable")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--points", type=int, help="crashes to try instead of those listed")
    options = parser.parse_args()
    chosen = [one for one in bad_changes() if not options.only or one.name in options.only]

    def tell(change: BadChange) -> bool:
        found: Found | None = None
        result = "NOT FOUND"
        try:
            found = find(change, options.points or change.points)
        except ValueError as error:
            result = f"NOT TRIED: {error}"
        if found is not None:
            result = f"{'' if change.tests else found.points:6}  {found.promise[:90]}"
        print(f"{change.rule:8} {change.name:34} {result}", flush=True)
        return found is not None

    with ThreadPoolExecutor(options.jobs) as threads:
        found = sum(threads.map(tell, chosen))
    print(f"{found} of {len(chosen)} bad changes were found")
    return int(not chosen or found < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
