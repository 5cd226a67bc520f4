"""A time limit for each test: a pytest plugin.

A test that exceeds its limit fails by name, with the tree of its trio tasks or, where trio does not
run, with its stack. It gets three chances to end:

1. At the limit its trio tasks are cancelled, or an exception is raised where there are none.
2. `GRACE_S` later an exception is raised wherever the main thread is, inside trio too.
3. Twice `GRACE_S` later the process writes the stacks of all threads and ends. pytest-xdist names
   the test and starts another worker.

``@pytest.mark.time_limit(seconds)`` gives a test another limit.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Final

import pytest
import trio

from tests.soak import LEVEL

LIMIT_S: Final = 3600.0 if LEVEL == "full" else 600.0
"""The slowest test takes a minute alone; two cores may have ten times as much to do."""
GRACE_S: Final = 30.0
_MAX_FRAMES: Final = 60
_MAX_TASKS: Final = 500

_STDERR = pytest.StashKey[int]()
_WATCH = pytest.StashKey["Watch"]()


class Watch:
    """The clock of one test, and the complaint when its time is up."""

    def __init__(self, name: str, limit_s: float) -> None:
        self._name = name
        self._limit_s = limit_s
        self.complaint = ""

    def expire(self, signum: int, frame: FrameType | None) -> None:
        """Handle SIGALRM: the test has used up its limit, or the grace after it."""
        is_first = not self.complaint
        in_trio = trio.lowlevel.in_trio_run()
        if is_first:
            stacks = tasks() if in_trio else ""
            stacks += "".join(traceback.format_stack(frame, _MAX_FRAMES))
            self.complaint = f"{self._name} exceeded its limit of {self._limit_s:g} s\n{stacks}"
            if in_trio:
                trio.lowlevel.current_trio_token().run_sync_soon(_cancel_main_task)
                return
        pytest.fail(self.complaint, pytrace=False)


def _cancel_main_task() -> None:
    # trio's first task has three nurseries; the innermost holds the task that trio.run was given.
    root = trio.lowlevel.current_root_task()
    assert root is not None
    for main_task in root.child_nurseries[-1].child_tasks:
        for nursery in main_task.child_nurseries:
            nursery.cancel_scope.cancel()


def tasks() -> str:
    """The tree of all tasks, each with the line where it is."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return "".join(islice(_lines_of(root, 0), _MAX_TASKS))


def _lines_of(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    frames = [(frame, line) for frame, line in task.iter_await_frames() if not _of_trio(frame)][
        :_MAX_FRAMES
    ]
    where = ""
    if frames:
        frame, line = frames[-1]
        where = f"  {frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}"
    yield f"{'  ' * depth}{task.name}{where}\n"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _lines_of(child, depth + 1)


def _of_trio(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("trio.")


def pytest_configure(config: pytest.Config) -> None:
    """Keep a way to the terminal that no capturing takes away."""
    config.addinivalue_line("markers", "time_limit(seconds): another limit than LIMIT_S")
    config.stash[_STDERR] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close that way."""
    os.close(config.stash[_STDERR])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """The limit holds for the test with the fixtures that are made for it."""
    mark = item.get_closest_marker("time_limit")
    limit_s = float(mark.args[0]) if mark else LIMIT_S
    watch = item.stash[_WATCH] = Watch(item.nodeid, limit_s)
    before = signal.signal(signal.SIGALRM, watch.expire)
    signal.setitimer(signal.ITIMER_REAL, limit_s, GRACE_S)
    faulthandler.dump_traceback_later(
        limit_s + 3 * GRACE_S, exit=True, file=item.config.stash[_STDERR]
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _check(item: pytest.Item) -> Iterator[None]:
    watch = item.stash[_WATCH]
    before = watch.complaint
    try:
        return (yield)
    finally:
        if watch.complaint != before:
            # What the cancellation left behind says less.
            pytest.fail(watch.complaint, pytrace=False)


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(_check)
pytest_runtest_call = pytest_runtest_setup
pytest_runtest_teardown = pytest_runtest_setup
