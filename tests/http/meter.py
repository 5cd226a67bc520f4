"""Counts the work that is done in one step of the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

__all__ = ["Meter", "metered"]


class Meter(trio.abc.Instrument):
    """Counts work between the turns of tasks."""

    def __init__(self) -> None:
        self.work = self.most = self.total = 0

    def did(self, work: int = 1) -> None:
        """Some work was done."""
        self.work += work
        self.total += work
        self.most = max(self.most, self.work)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A turn begins."""
        self.work = 0


@asynccontextmanager
async def metered(meter: Meter) -> AsyncIterator[None]:
    """Counts inside the context."""
    trio.lowlevel.add_instrument(meter)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(meter)
