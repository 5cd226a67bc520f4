"""How much one step of a task does: counted, not timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

__all__ = ["Steps", "counted_steps"]


class Steps(trio.abc.Instrument):
    """What the steps of tasks have added to a count.

    Attributes:
        most: by the one that added most.
    """

    def __init__(self, count: Callable[[], int]) -> None:
        self.most = 0
        self._count = count
        self._last = count()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Take the difference."""
        now = self._count()
        self.most = max(self.most, now - self._last)
        self._last = now


@contextmanager
def counted_steps(count: Callable[[], int]) -> Iterator[Steps]:
    """Look at a count after every step of every task: what a step does, all others wait for.

    Args:
        count: of whatever is done; it only rises.
    """
    steps = Steps(count)
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps
    finally:
        trio.lowlevel.remove_instrument(steps)
