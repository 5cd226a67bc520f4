"""Blocking work without threads: at once, or when a test says so.

Both are a `trionsq.storage.background.Background`. An error of a job that is no OSError comes out
of the call which ran the job; its ``done`` is not called then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["HeldBackground", "InlineBackground"]

_COUNT_MAX: Final = 10_000


class InlineBackground:
    """Runs each job, and what follows it, before `submit` returns."""

    def submit(self, job: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        done(_error_of(job))

    async def wait_idle(self) -> None:
        return None


class HeldBackground:
    """Keeps jobs until told to run them, in the order in which they came.

    Attributes:
        submitted: jobs that ever came.
    """

    def __init__(self) -> None:
        self.submitted = 0
        self._waiting: deque[tuple[Callable[[], None], Callable[[OSError | None], None]]] = deque()
        self._started: deque[tuple[OSError | None, Callable[[OSError | None], None]]] = deque()

    def __len__(self) -> int:
        """Jobs whose ``done`` was not called yet."""
        return len(self._waiting) + len(self._started)

    def __repr__(self) -> str:
        return f"<HeldBackground {len(self._waiting)} waiting, {len(self._started)} started>"

    def submit(self, job: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        self.submitted += 1
        self._waiting.append((job, done))

    def start_one(self) -> None:
        """Run the next job, but do not tell yet that it is done.

        Raises:
            IndexError: none waits.
        """
        job, done = self._waiting.popleft()
        self._started.append((_error_of(job), done))

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


def _error_of(job: Callable[[], None]) -> OSError | None:
    try:
        job()
    except OSError as error:
        return error
    return None
