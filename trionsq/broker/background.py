"""Blocking disk work in threads, with the trio side of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

__all__ = ["ThreadBackground"]

# More at once would queue at the disk instead.
_THREADS_MAX: Final = 4


class ThreadBackground:
    """A `trionsq.storage.background.Background` that runs jobs in threads of trio's."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._limiter = trio.CapacityLimiter(_THREADS_MAX)
        self._under_way = 0
        self._idle = trio.Event()

    def __repr__(self) -> str:
        return f"<ThreadBackground under_way={self._under_way}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take jobs until cancelled. A job under way is abandoned then: wait for idleness first."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def submit(self, job: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        """Run ``job`` in a thread, then call ``done`` here."""
        assert self._nursery is not None, "the background does not run"
        self._under_way += 1
        self._nursery.start_soon(self._run, job, done)

    async def _run(self, job: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        error: OSError | None = None
        try:
            await trio.to_thread.run_sync(job, limiter=self._limiter, abandon_on_cancel=True)
        except OSError as caught:
            error = caught
        done(error)
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()
            self._idle = trio.Event()

    async def wait_idle(self) -> None:
        """Wait until all jobs, and those that follow from them, are done."""
        while self._under_way:
            await self._idle.wait()
