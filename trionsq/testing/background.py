"""Blocking disk work without threads: at once, when a test asks for it, or after a delay.

All classes are a `trionsq.storage.folder.Background`. Exceptions of ``done``, and those of a job
that are no Exception (such as `trionsq.testing.disk.Crashed`), leave the call that ran the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from trionsq.disk import DiskFile
from trionsq.storage.folder import Job, JobDefects, JobDone, NextJob

__all__ = [
    "DelayedBackground",
    "HeldBackground",
    "InlineBackground",
    "submit_as_job",
    "submit_in_turn",
]

_MAX_JOBS: Final = 10_000


class InlineBackground:
    """Runs each job, and those that it submits, before `submit` returns.

    Attributes:
        defects: exceptions of jobs other than OSError.
        writes_directly: `submit_write` is preferred to a job that writes.
    """

    def __init__(self) -> None:
        self.defects = JobDefects()
        self.writes_directly = True
        self._waiting: deque[tuple[Job, JobDone]] = deque()
        self._runs = False

    def submit(self, job: Job, done: JobDone) -> None:
        self._waiting.append((job, done))
        if self._runs:
            return  # a job that was submitted by a job runs after it, not in it
        self._runs = True
        try:
            while self._waiting:
                job, done = self._waiting.popleft()
                done(_error_of(job, self.defects))
        finally:
            self._runs = False
            self._waiting.clear()

    def submit_series(self, next_job: NextJob) -> None:
        submit_in_turn(self.submit, next_job)

    def submit_write(
        self, file: DiskFile, data: bytes, offset: int, room: int, done: JobDone
    ) -> None:
        submit_as_job(self.submit, file, data, offset, room, done)

    async def wait_idle(self) -> None:
        return None


class HeldBackground:
    """Keeps jobs until a test runs them, in order.

    Attributes:
        submitted: number of all jobs so far.
        defects: exceptions of jobs other than OSError.
        writes_directly: `submit_write` is preferred to a job that writes.
    """

    def __init__(self) -> None:
        self.submitted = 0
        self.defects = JobDefects()
        self.writes_directly = True
        self._waiting: deque[tuple[Job, JobDone]] = deque()
        self._started: deque[tuple[Exception | None, JobDone]] = deque()

    def __len__(self) -> int:
        """Return the number of jobs whose ``done`` was not called yet."""
        return len(self._waiting) + len(self._started)

    def __repr__(self) -> str:
        return f"<HeldBackground {len(self._waiting)} waiting, {len(self._started)} started>"

    def submit(self, job: Job, done: JobDone) -> None:
        self.submitted += 1
        self._waiting.append((job, done))

    def submit_series(self, next_job: NextJob) -> None:
        submit_in_turn(self.submit, next_job)

    def submit_write(
        self, file: DiskFile, data: bytes, offset: int, room: int, done: JobDone
    ) -> None:
        submit_as_job(self.submit, file, data, offset, room, done)

    def start_one(self) -> None:
        """Run the next job without calling its ``done``.

        Raises:
            IndexError: no job is waiting.
        """
        job, done = self._waiting.popleft()
        self._started.append((_error_of(job, self.defects), done))

    def run_one(self) -> None:
        """Finish the oldest job: run it, unless `start_one` did, and call its ``done``.

        Raises:
            IndexError: there is no job.
        """
        if not self._started:
            self.start_one()
        error, done = self._started.popleft()
        done(error)

    def run_all(self) -> int:
        """Finish all jobs, with those that they submit; return their number.

        Raises:
            RuntimeError: there are more than 10,000.
        """
        for count in range(_MAX_JOBS):
            if not self:
                return count
            self.run_one()
        raise RuntimeError(f"{self!r}, after {_MAX_JOBS} jobs")

    async def wait_idle(self) -> None:
        self.run_all()


class DelayedBackground:
    """Runs each job later, as a thread does; the caller says when.

    Attributes:
        defects: exceptions of jobs other than OSError.
        writes_directly: `submit_write` is preferred to a job that writes.
    """

    def __init__(self, run_later: Callable[[Callable[[], None]], None]) -> None:
        """``run_later`` calls the given function later, in the run of the broker, or never."""
        self.defects = JobDefects()
        self.writes_directly = True
        self._run_later = run_later
        self._jobs = 0
        self._idle = trio.Event()

    def __repr__(self) -> str:
        return f"<DelayedBackground {self._jobs} jobs>"

    def submit(self, job: Job, done: JobDone) -> None:
        self._jobs += 1

        def run() -> None:
            done(_error_of(job, self.defects))
            self._jobs -= 1
            if not self._jobs:
                self._idle.set()
                self._idle = trio.Event()

        self._run_later(run)

    def submit_series(self, next_job: NextJob) -> None:
        submit_in_turn(self.submit, next_job)

    def submit_write(
        self, file: DiskFile, data: bytes, offset: int, room: int, done: JobDone
    ) -> None:
        submit_as_job(self.submit, file, data, offset, room, done)

    async def wait_idle(self) -> None:
        while self._jobs:
            await self._idle.wait()


def submit_as_job(
    submit: Callable[[Job, JobDone], None],
    file: DiskFile,
    data: bytes,
    offset: int,
    room: int,
    done: JobDone,
) -> None:
    """Submit a job that writes, and makes that durable; see `Background.submit_write`."""
    submit(partial(file.write_durably, data, offset, room), done)


def submit_in_turn(submit: Callable[[Job, JobDone], None], next_job: NextJob) -> None:
    """Submit the jobs of a series: each next one is taken when the one before it has run, and
    submitted before the ``done`` of that is called."""
    work = next_job()
    if work is None:
        return
    job, done = work

    def run() -> None:
        try:
            job()
        except Exception:
            submit_in_turn(submit, next_job)
            raise
        submit_in_turn(submit, next_job)

    submit(run, done)


def _error_of(job: Job, defects: JobDefects) -> Exception | None:
    try:
        job()
    except OSError as error:
        return error
    except Exception as error:
        defects.report(error)
        return error
    return None
