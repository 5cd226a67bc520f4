"""Work that is too long for one turn of the event loop, done in steps.

All chores of a broker share one task: in each turn one chore does one step, in rotation. So any
number of chores holds up the event loop for one step at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import TypeVar

import trio

from trionsq.broker.defects import Defects
from trionsq.core.round import Round

__all__ = ["Chore", "Chores", "in_turns", "wait_for_round"]

T = TypeVar("T")


class Chore:
    """Work in progress.

    Attributes:
        steps: yields where a step ends.
        is_done: whether it has ended, by itself, by a defect or by `stop`.
    """

    __slots__ = ("_done", "is_done", "steps")

    def __init__(self, steps: Iterator[None]) -> None:
        self.steps = steps
        self.is_done = False
        self._done: trio.Event | None = None

    def stop(self) -> None:
        """Do no more steps."""
        self.is_done = True
        if self._done is not None:
            self._done.set()

    async def wait(self) -> None:
        """Wait until the chore is done. A cancellation ends the wait, not the work."""
        if not self.is_done:
            if self._done is None:
                self._done = trio.Event()
            await self._done.wait()


class Chores:
    """The chores of a broker. A defect in a chore ends that chore only."""

    def __init__(self, defects: Defects) -> None:
        self._defects = defects
        self._chores: deque[Chore] = deque()
        self._wake = trio.Event()
        self._has_ended = False

    def __len__(self) -> int:
        return len(self._chores)

    def start(self, steps: Iterator[None]) -> Chore:
        """Do the first step at once; most chores have no second one."""
        chore = Chore(steps)
        self._step(chore)
        return chore

    def start_later(self, steps: Iterator[None]) -> Chore:
        """Do the first step in a later turn: for work that a client can cause often."""
        chore = Chore(steps)
        self._queue(chore)
        return chore

    def _queue(self, chore: Chore) -> None:
        if self._has_ended:
            chore.stop()
            return
        self._chores.append(chore)
        self._wake.set()

    def _step(self, chore: Chore) -> None:
        """Do one step of a chore, and queue it again if there is more to do."""
        try:
            next(chore.steps)
        except StopIteration:
            chore.stop()
        except Exception as error:
            self._defects.note("chore", "NSQ: chore", error)
            chore.stop()
        else:
            self._queue(chore)

    async def run(self) -> None:
        """Do all chores, forever. A cancellation stops them, and so releases all who wait."""
        try:
            while True:
                while self._chores:
                    chore = self._chores.popleft()
                    if not chore.is_done:
                        self._step(chore)
                        await trio.lowlevel.checkpoint()
                self._wake = trio.Event()
                await self._wake.wait()
        finally:
            self._has_ended = True
            for chore in self._chores:
                chore.stop()
            self._chores.clear()


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Run all steps and return the result; other tasks run between the steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await trio.lowlevel.checkpoint()


async def wait_for_round(round_: Round | None) -> str | None:
    """Wait until a round has ended; return why it failed, None if it did not."""
    if round_ is None:
        return None
    if not round_.is_done:
        ended = trio.Event()
        round_.when_done(ended.set)
        await ended.wait()
    return round_.error
