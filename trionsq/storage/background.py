"""Work that may block for long and must not hold up the broker: fsync, renames, removals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

__all__ = ["Background", "Done", "Job", "JobDefects"]

log = logging.getLogger("trionsq")

Job = Callable[[], None]
"""Runs outside of the event loop."""

Done = Callable[[Exception | None], None]
"""Hears how a job ended: its exception, or None. An OSError is the disk's, any other is a defect
of ours."""


class JobDefects:
    """Exceptions that nobody expected, in jobs or in what hears of their end.

    Attributes:
        count: how many there were.
        last: the last one, as the log has it; empty if there was none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self._told: set[tuple[type[Exception], str]] = set()

    def tell(self, error: Exception) -> None:
        """Count it; log it with its trace, but only once for each line of code."""
        self.count += 1
        self.last = f"a disk job failed by a defect of nsqd: {error!r}"
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        if (type(error), where) not in self._told:
            self._told.add((type(error), where))
            log.error("%s", self.last, exc_info=error)


class Background(Protocol):
    """Runs jobs elsewhere, and tells here when they are done.

    Attributes:
        defects: what went wrong that is not the disk's.
    """

    defects: JobDefects

    def submit(self, job: Job, done: Done) -> None:
        """Run ``job``, as a rule in a thread; then call ``done`` with its exception, if any.

        ``done`` is called in the thread of the broker, once. Both calls come from there, too.
        """

    async def wait_idle(self) -> None:
        """Wait until all that was submitted is done."""
