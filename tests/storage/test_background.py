"""Blocking work without threads (trionsq.testing.background)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from trionsq.storage.folder import Background, Job, JobDone
from trionsq.testing.background import HeldBackground, InlineBackground
from trionsq.testing.disk import Crashed, SimulatedDisk


def test_inline_work_is_done_at_once() -> None:
    """When `submit` returns, the job has run and its end was told, with its OSError if any."""
    background: Background = InlineBackground()
    told: list[object] = []
    error = OSError(errno.EIO, "broken")

    def failing() -> None:
        raise error

    background.submit(lambda: told.append("job"), told.append)
    background.submit(failing, told.append)
    assert told == ["job", None, error]


def test_held_work_waits() -> None:
    """Jobs run in order when told to; the end of one may be held back on its own."""
    held = HeldBackground()
    background: Background = held
    told: list[str] = []
    for name in "abcd":
        background.submit(
            lambda name=name: told.append(f"{name} runs"),  # type: ignore[misc]
            lambda error, name=name: told.append(f"{name} done"),  # type: ignore[misc]
        )
    assert (told, len(held), held.submitted) == ([], 4, 4)
    held.start_one()
    assert told == ["a runs"]
    held.start_one()
    held.run_one()
    assert told == ["a runs", "b runs", "a done"]
    assert held.run_all() == 3
    assert told[3:] == ["b done", "c runs", "c done", "d runs", "d done"]
    assert len(held) == 0
    for call in (held.run_one, held.start_one):
        with pytest.raises(IndexError):
            call()


def test_the_next_of_a_series_is_taken_before_the_end_is_told() -> None:
    """As a thread does it: what gathers while a job runs is the next one."""
    held = HeldBackground()
    background: Background = held
    told: list[str] = []
    names = iter("abc")

    def next_job() -> tuple[Job, JobDone] | None:
        name = next(names, None)
        told.append(f"{name} taken")
        if name is None:
            return None
        return lambda: told.append(f"{name} runs"), lambda error: told.append(f"{name} done")

    background.submit_series(next_job)
    assert told == ["a taken"]
    held.start_one()
    held.start_one()
    assert told[1:] == ["a runs", "b taken", "b runs", "c taken"]
    assert held.run_all() == 3
    assert told[5:] == ["a done", "b done", "c runs", "None taken", "c done"]


def test_held_work_tells_errors_and_may_go_on() -> None:
    """An OSError reaches ``done``, which may submit more; work without end is noticed."""
    held = HeldBackground()
    disk = SimulatedDisk()
    disk.fail(errno.EIO, forever=True)
    errors: list[int | None] = []

    def again(error: Exception | None) -> None:
        errors.append(error.errno if isinstance(error, OSError) else None)
        if error:
            held.submit(disk.sync_folder, again)

    held.submit(disk.sync_folder, again)
    held.run_one()
    disk.heal()
    assert held.run_all() == 1
    assert errors == [errno.EIO, None]
    disk.fail(errno.EIO, forever=True)
    held.submit(disk.sync_folder, again)
    with pytest.raises(RuntimeError, match="1 waiting"):
        held.run_all()


@pytest.mark.parametrize("kind", [InlineBackground, HeldBackground])
def test_a_crash_goes_through(kind: type[InlineBackground | HeldBackground]) -> None:
    """What is no Exception comes out at once: after a crash nobody is told that a job is done."""
    background = kind()
    disk = SimulatedDisk()
    disk.crash_at(1)
    told: list[Exception | None] = []
    with pytest.raises(Crashed):
        _submit_and_run(background, disk.sync_folder, told.append)
    assert told == []
    if isinstance(background, HeldBackground):
        assert len(background) == 0


def _submit_and_run(
    background: InlineBackground | HeldBackground,
    job: Callable[[], None],
    done: Callable[[Exception | None], None],
) -> None:
    background.submit(job, done)
    if isinstance(background, HeldBackground):
        background.run_one()
