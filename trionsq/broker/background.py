"""Blocking disk work in threads of trio."""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from trionsq.storage.folder import Job, JobDefects, JobDone

__all__ = ["ThreadBackground"]

# More threads would only wait for each other at the disk.
_MAX_THREADS: Final = 4


class ThreadBackground:
    """A `trionsq.storage.folder.Background` that runs jobs in threads.

    An exception of a job, or of its ``done``, does not end the broker.

    Attributes:
        defects: unexpected exceptions.
    """

    def __init__(self) -> None:
        self.defects = JobDefects()
        self._nursery: trio.Nursery | None = None
        self._has_ended = False
        self._limiter = trio.CapacityLimiter(_MAX_THREADS)
        # At most one job of each disk queue, and of each other file.
        self._waiting: deque[tuple[Job, JobDone]] = deque()
        self._workers = 0
        self._idle = trio.Event()
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<ThreadBackground workers={self._workers} waiting={len(self._waiting)}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept jobs until cancelled. Then running jobs are abandoned: call `wait_idle` before.

        Later ones do not begin: a broker that is cancelled at the same time may still submit some.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                # From now on the nursery may close at any time.
                self._has_ended = True

    def submit(self, job: Job, done: JobDone) -> None:
        """Run ``job`` in a thread, then call ``done`` in trio's. Jobs begin in order.

        After the end of `run` nothing happens: whoever waits for the job is being cancelled, too.
        """
        assert self._nursery is not None, "the background is not running"
        if self._has_ended:
            return
        self._waiting.append((job, done))
        if self._workers < _MAX_THREADS:
            self._workers += 1
            self._nursery.start_soon(self._work, name="disk job")

    async def _work(self) -> None:
        """Run jobs until none is waiting."""
        while self._waiting:
            await self._run(*self._waiting.popleft())
        self._workers -= 1
        if not self._workers:
            self._idle.set()
            self._idle = trio.Event()

    async def _run(self, job: Job, done: JobDone) -> None:
        error: Exception | None = None
        try:
            await trio.to_thread.run_sync(job, limiter=self._limiter, abandon_on_cancel=True)
        except OSError as failure:
            error = failure
        except Exception as defect:
            self.defects.report(defect)
            error = defect
        try:
            done(error)
        except Exception as defect:
            self.defects.report(defect)

    async def wait_idle(self) -> None:
        """Wait until all jobs are done, with those that they submit."""
        while self._workers:
            await self._idle.wait()
