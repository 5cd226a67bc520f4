"""Blocking work without threads: at once, or when a test says so.

Both are a `trionsq.storage.background.Background`. What a job raises that is no Exception (such as
`trionsq.testing.disk.Crashed`) comes out of the call which ran the job, and so does what ``done``
raises.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from trionsq.storage.background import Done, Job, JobDefects

__all__ = ["HeldBackground", "InlineBackground"]

_COUNT_MAX: Final = 10_000


class InlineBackground:
    """Runs each job, and what follows from it, before `submit` returns.

    Attributes:
        defects: exceptions of jobs that are no OSError.
    """

    def __init__(self) -> None:
        self.defects = JobDefects()
        self._waiting: deque[tuple[Job, Done]] = deque()
        self._runs = False

    def submit(self, job: Job, done: Done) -> None:
        self._waiting.append((job, done))
        if self._runs:
            return  # what follows from a job comes after it, not in it
        self._runs = True
        try:
            while self._waiting:
                job, done = self._waiting.popleft()
                done(_error_of(job, self.defects))
        finally:
            self._runs = False
            self._waiting.clear()

    async def wait_idle(self) -> None:
        return None


class HeldBackground:
    """Keeps jobs until told to run them, in the order in which they came.

    Attributes:
        submitted: jobs that ever came.
        defects: exceptions of jobs that are no OSError.
    """

    def __init__(self) -> None:
        self.submitted = 0
        self.defects = JobDefects()
        self._waiting: deque[tuple[Job, Done]] = deque()
        self._started: deque[tuple[Exception | None, Done]] = deque()

    def __len__(self) -> int:
        """Jobs whose ``done`` was not called yet."""
        return len(self._waiting) + len(self._started)

    def __repr__(self) -> str:
        return f"<HeldBackground {len(self._waiting)} waiting, {len(self._started)} started>"

    def submit(self, job: Job, done: Done) -> None:
        self.submitted += 1
        self._waiting.append((job, done))

    def start_one(self) -> None:
        """Run the next job, but do not tell yet that it is done.

        Raises:
            IndexError: none waits.
        """
        job, done = self._waiting.popleft()
        self._started.append((_error_of(job, self.defects), done))

    def run_one(self) -> None:
        """Tell of the oldest job that it is done, after running it if that is still to be done.

        Raises:
            IndexError: none is held.
        """
        if not self._started:
            self.start_one()
        error, done = self._started.popleft()
        done(error)

    def run_all(self) -> int:
        """Run all, also those that come meanwhile; how many they were.

        Raises:
            RuntimeError: there is no end to it.
        """
        for count in range(_COUNT_MAX):
            if not self:
                return count
            self.run_one()
        raise RuntimeError(f"{self!r}, after {_COUNT_MAX} jobs")

    async def wait_idle(self) -> None:
        self.run_all()


def _error_of(job: Job, defects: JobDefects) -> Exception | None:
    try:
        job()
    except OSError as error:
        return error
    except Exception as error:
        defects.tell(error)
        return error
    return None
