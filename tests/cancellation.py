"""Each await of some tasks is cancelled once: the sweep, and the runs that it repeats.

A test writes one scenario, an async function that gets a `CancelAt`, tells it which task to count
and what "cancel" means (`run_counted` does both for a task of its own), and checks what must hold
whichever step it was::

    async def scenario(cancel_at: CancelAt) -> None:
        await run_counted(cancel_at, work)
        assert nothing_is_left()

    @pytest.mark.parametrize("when", ["parked", "woken"])
    def test_work_can_be_cancelled_at_any_await(when: When) -> None:
        sweep_awaits(scenario, when)
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import AsyncGeneratorType
from typing import Any, Final, Literal, TypeVar

import outcome
import pytest
import trio
from trio.testing import MockClock

import trionsq
from tests.soak import in_short_soak, more_in_soak, swept

__all__ = [
    "BOTH_IN_SOAK",
    "CancelAt",
    "Scenario",
    "When",
    "run_counted",
    "run_repeatable",
    "sweep_awaits",
]

T = TypeVar("T")
ROOT: Final = Path(trionsq.__file__).parents[1]
LINES_FILE: Final = os.environ.get("TRIONSQ_AWAITS", "")
"""File that gets the source lines at which counted tasks waited, for `tests/awaits.py`."""
# A task that waits for ever fails after this time.
_PATIENCE_S: Final = 300.0

When = Literal["parked", "woken"]

BOTH_IN_SOAK: Final = [
    pytest.param("parked", marks=more_in_soak),
    pytest.param("woken", marks=in_short_soak),
]
"""For the sweeps that take longest: `make test` does one of the two."""

ASYNC_GENERATOR_STEPS: Final = ("async_generator_asend", "async_generator_athrow")
"""Types of what a coroutine awaits that resumes an async generator; they do not name it."""


class CancelAt(trio.abc.Instrument):
    """Calls ``cancel`` at one of the steps of a task and its descendants.

    ``parked`` is just after the task began to wait: what it waits for is lost to it. ``woken`` is
    just before it goes on: it has what it waited for, and hears of the cancellation next time.

    Attributes:
        steps: counted so far.
        lines: source lines of the project at which the tasks waited; only with `LINES_FILE`.
        has_fired: whether it cancelled.
    """

    def __init__(self, at: int, when: When) -> None:
        self.steps = 0
        self.has_fired = False
        self.lines: set[tuple[str, int]] = set()
        self.root: trio.lowlevel.Task | None = None
        self.cancel: Callable[[], None] = lambda: None
        self._at = at
        self._when = when

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._when == "woken":
            self._count(task)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._when == "parked":
            self._count(task)

    def _count(self, task: trio.lowlevel.Task) -> None:
        if not self._is_ours(task):
            return
        self.steps += 1
        if LINES_FILE:
            _waiting_lines(task.coro, self.lines)
        if self.steps == self._at:
            self.has_fired = True
            self.cancel()

    def _is_ours(self, task: trio.lowlevel.Task | None) -> bool:
        if self.root is None:
            return False
        while task is not None:
            if task is self.root:
                return True
            task = task.parent_nursery.parent_task if task.parent_nursery else None
        return False


def _waiting_lines(coroutine: Any, lines: set[tuple[str, int]]) -> None:
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        waits_for = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
        if type(coroutine).__name__ in ASYNC_GENERATOR_STEPS:
            [waits_for] = [
                part for part in gc.get_referents(coroutine) if isinstance(part, AsyncGeneratorType)
            ]
        coroutine = waits_for


def _record_lines(lines: set[tuple[str, int]]) -> None:
    with open(LINES_FILE, "a") as file:
        for name, line in sorted(lines):
            path = Path(name)
            if path.is_relative_to(ROOT) and ".venv" not in path.parts:
                file.write(f"{path.relative_to(ROOT)}:{line}\n")


Scenario = Callable[[CancelAt], Awaitable[object]]


async def run_counted(cancel_at: CancelAt, work: Callable[[], Awaitable[object]]) -> None:
    """Run ``work`` in a task that is counted, and that is cancelled at the chosen step."""
    with trio.fail_after(_PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            [cancel_at.root] = nursery.child_tasks
            cancel_at.cancel = nursery.cancel_scope.cancel
    cancel_at.root = None


async def _run_inline(
    function: Callable[..., T],
    *arguments: Any,
    abandon_on_cancel: bool = False,
    limiter: object = None,
) -> T:
    """`trio.to_thread.run_sync` without a thread, during whose work the clock would leap."""
    await trio.lowlevel.checkpoint_if_cancelled()
    try:
        return function(*arguments)
    finally:
        if abandon_on_cancel:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()


def _start_inline(
    function: Callable[[], T], deliver: Callable[[outcome.Outcome[T]], object]
) -> None:
    """`trio.lowlevel.start_thread_soon` without a thread."""
    deliver(outcome.capture(function))


def run_repeatable(
    function: Callable[[CancelAt], Awaitable[T]], cancel_at: CancelAt, seed: int = 1
) -> T:
    """Run with leaping time and a seeded order of tasks, so that the k-th step is the same one.

    What a worker thread would do is done at once.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", _run_inline)
        patch.setattr(trio.lowlevel, "start_thread_soon", _start_inline)
        patch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr("trio._core._run._r", random.Random(seed))
        clock = MockClock(autojump_threshold=0)
        return trio.run(function, cancel_at, clock=clock, instruments=[cancel_at])


def sweep_awaits(
    scenario: Scenario, when: When, *, seed: int = 1, least: int = 10, one_in: int = 5
) -> int:
    """Run the scenario undisturbed, then once for each step that it counted; return their number.

    Args:
        scenario: what is run; it checks the outcome itself.
        when: see `CancelAt`.
        seed: of the order of tasks.
        least: steps that the undisturbed run must have.
        one_in: `make test` tries one step in so many (see `swept`).
    """
    whole = CancelAt(0, when)
    run_repeatable(scenario, whole, seed)
    assert whole.steps >= least, whole.steps
    if LINES_FILE:
        _record_lines(whole.lines)
    for at in swept(whole.steps, one_in):
        cancel_at = CancelAt(at, when)
        try:
            run_repeatable(scenario, cancel_at, seed)
        except BaseException as error:
            error.add_note(f"cancelled at step {at} of {whole.steps}, {when}, seed {seed}")
            raise
        assert cancel_at.has_fired, at
    return whole.steps
