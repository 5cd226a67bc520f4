"""Blocking disk work in threads, and single writes by the kernel itself where it lets us."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Final, TypeAlias

import outcome
import trio

from trionsq.broker.uring import Ring, open_ring
from trionsq.disk import DiskFile, RealFile
from trionsq.storage.folder import Job, JobDefects, JobDone, NextJob
from trionsq.transports.poller import Poller

__all__ = ["ThreadBackground"]

# Most writes have ended after so long; the poller need not wait for longer ones in this way.
_SOON_S: Final = 0.002
# More threads would only wait for each other at the disk.
_MAX_THREADS: Final = 4

_Work: TypeAlias = tuple[Job, JobDone]


class ThreadBackground:
    """A `trionsq.storage.folder.Background` that runs jobs in threads.

    An exception of a job, or of its ``done``, does not end the broker. No task stands between a job
    and the event loop: a publish that waits for its fsync pays for each switch.

    Attributes:
        defects: unexpected exceptions.
    """

    def __init__(self, poller: Poller | None = None) -> None:
        """``poller`` tells of writes that have ended while it runs."""
        self.defects = JobDefects()
        self._poller = Poller() if poller is None else poller
        self._token: trio.lowlevel.TrioToken | None = None
        self._has_ended = False
        # At most one job of each disk queue, and of each other file; with what follows it.
        self._waiting: deque[tuple[_Work, NextJob]] = deque()
        self._running = 0
        self._ring: Ring | None = None
        self._idle = trio.Event()

    def __repr__(self) -> str:
        return f"<ThreadBackground running={self._running} waiting={len(self._waiting)}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept jobs until cancelled. Then running jobs are abandoned: call `wait_idle` before.

        Later ones do not begin: a broker that is cancelled at the same time may still submit some.
        """
        self._token = trio.lowlevel.current_trio_token()
        ring = self._ring = open_ring()
        task_status.started()
        try:
            if ring is None:
                await trio.sleep_forever()
            else:
                await self._hear_of_writes(ring)
        finally:
            self._has_ended = True
            self._ring = None
            if ring is not None:
                ring.close()

    async def _hear_of_writes(self, ring: Ring) -> None:
        def end_writes() -> None:
            ring.end_writes()
            if not len(ring):
                self._poller.expects_until_s = 0.0
                if not self._running:
                    self._tell_idle()

        while True:
            await self._poller.watch_input(ring.fileno(), end_writes)
            await trio.lowlevel.wait_readable(ring.fileno())
            with self._poller.turn:
                end_writes()

    @property
    def writes_directly(self) -> bool:
        return self._ring is not None

    def submit_write(
        self, file: DiskFile, data: bytes, offset: int, room: int, done: JobDone
    ) -> None:
        """Have the kernel write, or a thread; see `Background`.

        After the end of `run` nothing happens.
        """
        ring = self._ring
        if (
            ring is None
            or type(file) is not RealFile
            or not ring.submit_write(file.fileno(), data, offset, room, partial(self._tell, done))
        ):
            self.submit(partial(file.write_durably, data, offset, room), done)
        else:
            self._poller.expects_until_s = perf_counter() + _SOON_S

    def submit(self, job: Job, done: JobDone) -> None:
        """Run ``job`` in a thread, then call ``done`` in trio's. Jobs begin in order.

        After the end of `run` nothing happens: whoever waits for the job is being cancelled, too.
        """
        self._submit((job, done), lambda: None)

    def submit_series(self, next_job: NextJob) -> None:
        """Run jobs one after the other, in one thread; see `Background`.

        After the end of `run` no further one begins.
        """
        work = next_job()
        if work is not None:
            self._submit(work, next_job)

    def _submit(self, work: _Work, next_job: NextJob) -> None:
        assert self._token is not None, "the background is not running"
        if self._has_ended:
            return
        if self._running == _MAX_THREADS:
            self._waiting.append((work, next_job))
        else:
            self._running = self._poller.threads = self._running + 1
            self._start(self._token, work, next_job)

    def _start(self, token: trio.lowlevel.TrioToken, work: _Work, next_job: NextJob) -> None:
        newest = work

        def run() -> Exception | None:
            nonlocal newest
            while True:
                job, done = newest
                error: Exception | None = None
                try:
                    job()
                except Exception as raised:
                    error = raised
                following = None if self._has_ended else next_job()
                if following is None:
                    return error
                newest = following
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._tell_in_turn, done, error)

        def deliver(ended: outcome.Outcome[Exception | None]) -> None:
            try:
                error = ended.unwrap()
            except Exception as raised:
                error = raised
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._end, token, newest[1], error)

        try:
            trio.lowlevel.start_thread_soon(run, deliver)
        except RuntimeError as error:  # the system has no thread left
            deliver(outcome.Error(error))

    def _tell(self, done: JobDone, error: Exception | None) -> None:
        """Hear in trio's thread that a job has ended."""
        if self._has_ended:
            return
        if error is not None and not isinstance(error, OSError):
            self.defects.report(error)
        try:
            done(error)
        except Exception as defect:
            self.defects.report(defect)

    def _tell_in_turn(self, done: JobDone, error: Exception | None) -> None:
        with self._poller.turn:
            self._tell(done, error)

    def _end(self, token: trio.lowlevel.TrioToken, done: JobDone, error: Exception | None) -> None:
        """Hear in trio's thread that the last job of a thread has ended."""
        if self._has_ended:
            return
        if self._waiting:
            self._start(token, *self._waiting.popleft())
        else:
            self._running = self._poller.threads = self._running - 1
        self._tell_in_turn(done, error)
        if not self._running:
            self._tell_idle()

    def _tell_idle(self) -> None:
        self._idle.set()
        self._idle = trio.Event()

    async def wait_idle(self) -> None:
        """Wait until all jobs and writes are done, with those that they submit."""
        while self._running or self._ring:
            await self._idle.wait()
