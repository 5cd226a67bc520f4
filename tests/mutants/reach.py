"""Which tests enter which functions, and how long each test takes.

One run of all tests, in which Python reports each call to a profile function; some tests set a
trace function of their own. What a fixture of a module or session calls is noted for the first
test that uses it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from tests.mutants.child import IDLE_S
from tests.mutants.sites import Site

__all__ = ["Reach", "Recorder"]

_SHARED: Final = ("tests/golden/",)
"""Tests of which the first one does the work of all: a file of them is chosen as a whole."""
_FAST_S: Final = 0.2
_RECORDED_S: Final = 2.0
"""A sweep repeats itself, and calls are ten times as slow while they are recorded. Of the
processor's time: on a busy machine a recording would miss what a test does at its end."""


class Recorder:
    """Collects the functions that are entered while a test runs."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._codes: dict[int, CodeType] = {}
        self._began_s = self._until_s = 0.0

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        self._codes[id(code)] = code
        if time.process_time() > self._until_s:
            sys.setprofile(None)

    def start(self) -> None:
        """Forget what was noted, and note what this thread and new ones enter from now on."""
        self._codes = {}
        self._began_s = time.monotonic()
        self._until_s = time.process_time() + _RECORDED_S
        sys.setprofile(self._trace)
        threading.setprofile(self._trace)

    def stop(self) -> tuple[float, list[str]]:
        """Return the seconds and the functions since `start`, each as `file:qualified name`."""
        sys.setprofile(None)
        took_s = time.monotonic() - self._began_s
        names = {
            f"{code.co_filename.removeprefix(self._root)}:{code.co_qualname.partition('.<')[0]}"
            for code in list(self._codes.values())
            if code.co_filename.startswith(self._root)
        }
        return took_s, sorted(name for name in names if not name.startswith("tests/"))


@dataclass
class Reach:
    """What the recorder found, by the names of tests.

    Attributes:
        seconds: of each test, while its calls were recorded.
        functions: tests by the function that they enter.
        files: tests by the source file of which they enter anything.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    functions: dict[str, set[str]] = field(default_factory=dict)
    files: dict[str, set[str]] = field(default_factory=dict)

    def add(self, test: str, took_s: float, functions: Iterable[str]) -> None:
        """Enter what one test did."""
        self.seconds[test] = took_s
        for name in functions:
            self.functions.setdefault(name, set()).add(test)
            self.files.setdefault(name.partition(":")[0], set()).add(test)

    def idle_s(self, test: str) -> float:
        """Return after how long without a line the test hangs."""
        known_s = self.seconds.get(test)
        return IDLE_S if known_s is None else min(IDLE_S, 20.0 + 4 * known_s)

    def choose(self, site: Site, tests: Iterable[str]) -> list[str]:
        """Return those of the tests that can notice the change, the most promising first.

        These are the tests that enter the function, and those that nothing is known about. Files
        that are named like the changed one come first, then those of its folder; slow tests last.
        """
        if site.scope is None:
            reached = self.files.get(site.path, set())
        else:
            reached = self.functions.get(f"{site.path}:{site.scope[0]}", set())
        whole = {_file_of(test) for test in reached if test.startswith(_SHARED)}
        stem, folder = Path(site.path).stem, _test_folder_of(site.path)

        def rank(test: str) -> tuple[bool, bool, bool]:
            file = _file_of(test)
            is_slow = self.seconds.get(test, 0.0) > _FAST_S or file in whole
            return is_slow, stem not in Path(file).stem, not file.startswith(folder)

        chosen = (
            test
            for test in tests
            if test in reached or test not in self.seconds or _file_of(test) in whole
        )
        return sorted(chosen, key=rank)


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _test_folder_of(path: str) -> str:
    parts = Path(path).parent.parts
    return "/".join(["tests", *(parts[1:] if parts[0] == "trionsq" else parts)]) + "/"
