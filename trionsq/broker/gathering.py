"""Single messages that one turn brings to a topic: they are published as one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trionsq.broker.runtime import Clock
from trionsq.core.queue import BackendError
from trionsq.core.round import STORED, Round
from trionsq.core.topic import TopicState
from trionsq.transports.turn import Turn
from trionsq.wire.bodies import Bodies, join_bodies

__all__ = ["Gathering"]

_MAX_MESSAGES: Final = 64
# Larger ones are not copied. And who holds one message of a batch keeps the memory of all.
_MAX_BODY_BYTES: Final = 2048


class Gathering:
    """The messages of one topic. To be published before anything else happens to its queue.

    They are sure to find room in memory, or go to a log, whose round says what became of them. A
    topic of which most turns bring one message gathers none.
    """

    __slots__ = ("_bodies", "_clock", "_core", "_failed", "_last_turn", "_pays", "_room", "_round",
                 "_turn")  # fmt: skip

    def __init__(
        self, core: TopicState, clock: Clock, turn: Turn, failed: Callable[[Exception], None]
    ) -> None:
        """``failed`` gets an exception that nobody expected."""
        self._core = core
        self._clock = clock
        self._turn = turn
        self._failed = failed
        self._bodies: list[Bodies] = []
        # Whether several messages came in a turn of late, and the number of the last turn.
        self._pays = False
        self._last_turn = 0
        # Messages for which there is room, and the round of all of them.
        self._room = 0
        self._round = STORED

    def __repr__(self) -> str:
        return f"<Gathering {len(self._bodies)} for {self._core.name}>"

    def add_message(self, bodies: Bodies) -> Round | None:
        """Take one message, and return its round; None if it has to be published alone."""
        turn = self._turn
        if not turn.is_open or bodies.nbytes > _MAX_BODY_BYTES:
            return None
        if not self._bodies:
            if not self._pays:
                last_turn, self._last_turn = self._last_turn, turn.number
                if last_turn != turn.number:
                    return None
                self._pays = True
            if not self._begin():
                return None
        elif len(self._bodies) >= self._room:
            return None
        self._bodies.append(bodies)
        return self._round

    def _begin(self) -> bool:
        """Find out whether there is room."""
        core = self._core
        store = core.store
        if core.governor is not None:
            return False  # it may refuse
        if not store.backend.has_published:
            self._room = min(_MAX_MESSAGES, store.room)
            self._round = STORED
        elif store.backend.behind:
            return False
        else:
            self._room = _MAX_MESSAGES
            self._round = Round()
        if self._room <= 0:
            return False
        self._turn.store_later(self.publish)
        return True

    def publish(self) -> None:
        """Publish what has gathered."""
        parts = self._bodies
        if not parts:
            return
        self._bodies = []
        self._pays = len(parts) > 1
        gathered = self._round
        try:
            bodies = parts[0] if len(parts) == 1 else join_bodies(parts)
            pending = self._core.publish(bodies, self._clock.now_ns()) or STORED
            if gathered is not STORED:
                gathered.end_with(pending)
        except Exception as error:
            if gathered is STORED or not isinstance(error, BackendError):
                self._failed(error)
            if gathered is not STORED:
                gathered.finish(str(error))
