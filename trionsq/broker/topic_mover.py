"""Moves what is published to the channels: at the end of the turn, or by the topic's task."""

from __future__ import annotations

from typing import Final

import trio

from trionsq.broker.defects import Defects
from trionsq.broker.inbox import WakeUp
from trionsq.broker.runtime import Clock
from trionsq.core.topic import TopicState
from trionsq.transports.turn import Turn

__all__ = ["TopicMover"]

# Segments, and cost in units of `ChannelState.put`, before other tasks get their turn: about a
# millisecond.
_MAX_SEGMENTS: Final = 16
_MAX_COST: Final = 1024


class TopicMover:
    """Moves the messages of one topic.

    The task does all that takes long, and all that is published outside of a turn. It has to wait
    for messages, with nothing left to do, before a turn may move some: so no order changes.
    """

    def __init__(self, core: TopicState, clock: Clock, turn: Turn) -> None:
        self._core = core
        self._clock = clock
        self._turn = turn
        self._wake_up = WakeUp()
        # Where the task waits, and notes defects; None while it does not wait.
        self._idle: tuple[Defects, str] | None = None
        self._is_in_turn = False

    def __repr__(self) -> str:
        return f"<TopicMover {self._core.name} idle={self._idle is not None}>"

    async def run(self, defects: Defects, what: str) -> None:
        """Move messages until cancelled; the task."""
        wake_up = self._wake_up
        while True:
            wake_up.clear()
            while self._move_some():
                await trio.lowlevel.checkpoint()
                wake_up.clear()
            if defects.stopped:
                defects.runs(what)
            self._idle = defects, what
            try:
                await wake_up.wait()
            finally:
                self._idle = None

    def _move_some(self) -> bool:
        """Move messages to the channels; return whether there may be more."""
        core = self._core
        now_s = self._clock.now_s()
        now_ns = self._clock.deferral_ns(now_s)
        segments = cost = 0
        while done := core.pump(now_s, now_ns):
            if core.is_drained:
                break
            segments += 1
            cost += done
            if segments == _MAX_SEGMENTS or cost >= _MAX_COST:
                return True
        return False

    def wake_task(self) -> None:
        """Have the task look at the queue."""
        self._wake_up.wake()

    def wake(self) -> None:
        """Have messages moved: at the end of the turn if there is one, else by the task."""
        if self._idle is None or not self._turn.is_open:
            self._wake_up.wake()
        elif not self._is_in_turn:
            self._is_in_turn = True
            self._turn.move_later(self.end_turn)

    def end_turn(self, is_late: bool) -> None:
        """Move what the turn has brought, or have the task do it if it is late."""
        self._is_in_turn = False
        more = True
        if self._idle is not None and not is_late:
            defects, what = self._idle
            try:
                more = self._move_some()
            except Exception as error:
                defects.note("topic", what, error)
        if more:
            self._wake_up.wake()
