"""Blocking disk work in threads, with the trio side of it."""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from trionsq.storage.background import Done, Job, JobDefects

__all__ = ["ThreadBackground"]

# More at once would queue at the disk instead.
_THREADS_MAX: Final = 4


class ThreadBackground:
    """A `trionsq.storage.background.Background` that runs jobs in threads of trio's.

    No exception of a job, or of what is told of its end, ends the broker.

    Attributes:
        defects: exceptions that nobody expected.
    """

    def __init__(self) -> None:
        self.defects = JobDefects()
        self._nursery: trio.Nursery | None = None
        self._limiter = trio.CapacityLimiter(_THREADS_MAX)
        # Each disk queue has one job here at most.
        self._waiting: deque[tuple[Job, Done]] = deque()
        self._workers = 0
        self._idle = trio.Event()

    def __repr__(self) -> str:
        return f"<ThreadBackground workers={self._workers} waiting={len(self._waiting)}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take jobs until cancelled. A job under way is abandoned then: wait for idleness first."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def submit(self, job: Job, done: Done) -> None:
        """Run ``job`` in a thread, then call ``done`` here. They begin in the order they came."""
        assert self._nursery is not None, "the background does not run"
        self._waiting.append((job, done))
        if self._workers < _THREADS_MAX:
            self._workers += 1
            self._nursery.start_soon(self._work, name="disk job")

    async def _work(self) -> None:
        """Run jobs until none waits."""
        while self._waiting:
            await self._run(*self._waiting.popleft())
        self._workers -= 1
        if not self._workers:
            self._idle.set()
            self._idle = trio.Event()

    async def _run(self, job: Job, done: Done) -> None:
        error: Exception | None = None
        try:
            await trio.to_thread.run_sync(job, limiter=self._limiter, abandon_on_cancel=True)
        except OSError as caught:
            error = caught
        except Exception as caught:
            self.defects.tell(caught)
            error = caught
        try:
            done(error)
        except Exception as caught:
            self.defects.tell(caught)

    async def wait_idle(self) -> None:
        """Wait until all jobs, and those that follow from them, are done."""
        while self._workers:
            await self._idle.wait()
