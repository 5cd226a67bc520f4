"""Known bad changes to the product: days of the simulation must become bad with each of them.

python -m tests.simulation.mutants
python -m tests.simulation.mutants --only lost-fin-credit

They are listed in mutants.toml. Each is made in a copy of the sources, where a new process lives
days until one is bad that is good without the change.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

import trionsq
from tests.simulation.day import live
from tests.simulation.plan import draw_plan

__all__ = ["ROOT", "BadDay", "Mutant", "find", "is_good_here", "mutants"]

ROOT: Final = Path(__file__).parents[2]
_SOURCES: Final = ("trionsq", "lookupd", "admin", "tests/simulation", "tests/promises")
# A day that takes so much processor time is in a loop without an end: that, too, is a bad day. On a
# busy machine it may take a hundred times as long.
_DAY_CPU_S: Final = 20.0
# So long a process is silent only if it waits for something that does not come.
_SILENT_S: Final = 1800.0


class Mutant(msgspec.Struct, forbid_unknown_fields=True):
    """A bad change.

    Attributes:
        name: of it.
        file: that it changes.
        old: text that occurs once in the file.
        new: takes its place.
        seeds: one of the first so many days must be bad.
    """

    name: str
    file: str
    old: str
    new: str
    seeds: int

    def changed(self, folder: Path) -> str:
        """The file's new text, below a folder with the sources.

        Raises:
            ValueError: the old text does not occur exactly once.
        """
        text = (folder / self.file).read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its text occurs {count} times in {self.file}")
        return text.replace(self.old, self.new)


class BadDay(msgspec.Struct):
    """The first bad day of a process, and the first promise that it broke."""

    seed: int
    violation: str


class _Progress(msgspec.Struct):
    """A line of a process: the day that begins, or the bad one."""

    begins: int = 0
    bad: BadDay | None = None


def mutants() -> list[Mutant]:
    """All known bad changes."""
    text = Path(__file__).with_suffix(".toml").read_text()
    return msgspec.convert(tomllib.loads(text)["mutant"], list[Mutant])


def find(mutant: Mutant, is_good: Callable[[int], bool]) -> BadDay | None:
    """The first day that is bad for the change, and good without it; None if there is none.

    Raises:
        RuntimeError: with the change the simulation does not even begin.
        ValueError: the change does not apply.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy_sources(folder)
        file = folder / mutant.file
        file.write_text(mutant.changed(folder))
        for cached in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            cached.unlink()
        first = 0
        while first < mutant.seeds:
            bad = _first_bad_day(folder, first, mutant.seeds)
            if bad is None or is_good(bad.seed):
                return bad
            first = bad.seed + 1
    return None


def copy_sources(folder: Path) -> None:
    """Copy what a simulation needs, bytecode included."""
    for source in _SOURCES:
        shutil.copytree(ROOT / source, folder / source)


def is_good_here(seed: int) -> bool:
    """Whether the day is good without a change. Lives it in this process."""
    return not live(draw_plan(seed)).violations


def _first_bad_day(folder: Path, first: int, end: int) -> BadDay | None:
    """Live days in a new process, with the sources of a folder, until one is bad."""
    begun = first
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.simulation.mutants", "--live", str(first), str(end)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdout is not None
        while True:
            watchdog = threading.Timer(_SILENT_S, process.kill)
            watchdog.start()
            line = process.stdout.readline()
            watchdog.cancel()
            if not line:
                break
            progress = msgspec.json.decode(line, type=_Progress)
            if progress.bad is not None:
                return progress.bad
            begun = progress.begins
        if process.wait() > 0:
            errors.seek(0)
            raise RuntimeError(errors.read())
    return BadDay(begun, "the day did not end") if process.returncode else None


def _live(first: int, end: int) -> None:
    """What the process does: tells each day that it begins, and the first bad one."""
    assert Path(trionsq.__file__).is_relative_to(Path.cwd()), "these are not the copied sources"

    def tell(progress: _Progress) -> None:
        print(msgspec.json.encode(progress).decode(), flush=True)

    for seed in range(first, end):
        tell(_Progress(seed))
        signal.setitimer(signal.ITIMER_PROF, _DAY_CPU_S)  # its signal ends the process
        if violations := live(draw_plan(seed)).violations:
            tell(_Progress(seed, BadDay(seed, violations[0])))
            return


@functools.cache
def _is_good(seed: int) -> bool:
    return _first_bad_day(ROOT, seed, seed + 1) is None


def main() -> int:
    """Return the exit code: 0 if each change was found."""
    options = _options().parse_args()
    if options.live:
        _live(*options.live)
        return 0
    chosen = [each for each in mutants() if not options.only or each.name in options.only]

    def tell(mutant: Mutant) -> bool:
        bad = find(mutant, _is_good)
        if bad is None:
            print(f"{mutant.name:32} NOT FOUND with {mutant.seeds} seeds", flush=True)
        else:
            print(f"{mutant.name:32} {bad.seed:4}  {bad.violation[:110]}", flush=True)
        return bad is not None

    with ThreadPoolExecutor(options.jobs) as threads:
        found = sum(threads.map(tell, chosen))
    print(f"{found} of {len(chosen)} bad changes were found")
    return int(not chosen or found < len(chosen))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="NAME", action="append", help="this change; repeatable")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--live", type=int, nargs=2, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
