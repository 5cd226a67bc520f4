"""nsq_to_nsq with --from: bodies of a log in place of a consumer's batches.

There is no channel to which a message could be returned: what a destination did not confirm is
published again, until it is confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import trio

from trionsq.tools.json_filter import JsonFilter, Rejection

__all__ = ["Answerable", "AnswerableBatch", "LoggedBodies", "passing", "publish_all"]

log = logging.getLogger("trionsq.tools")

_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 15.0


class Answerable(Protocol):
    """A message that is finished, or requeued."""

    def finish(self) -> object: ...
    def requeue(self) -> object: ...


class AnswerableBatch(Protocol):
    """A consumer's batch, or what stands for one."""

    @property
    def bodies(self) -> list[bytes]: ...
    def finish(self) -> object:
        """Finish all."""

    def __getitem__(self, index: int, /) -> Answerable: ...


class LoggedBodies:
    """Bodies that wait for their confirmation.

    Attributes:
        bodies: all.
        refused: those that have to be published again.
        answered: set when each is confirmed or refused.
    """

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies = bodies
        self.refused: list[bytes] = []
        self.answered = trio.Event()
        self._open_count = len(bodies)

    def __repr__(self) -> str:
        return f"<LoggedBodies {self._open_count} of {len(self.bodies)}>"

    def __getitem__(self, index: int) -> _LoggedBody:
        return _LoggedBody(self, index)

    def finish(self) -> None:
        """All are confirmed."""
        self.answer(len(self.bodies))

    def answer(self, count: int = 1) -> None:
        """So many more are confirmed or refused."""
        self._open_count -= count
        if self._open_count <= 0:
            self.answered.set()


class _LoggedBody:
    def __init__(self, bodies: LoggedBodies, index: int) -> None:
        self._bodies = bodies
        self._index = index

    def finish(self) -> None:
        self._bodies.answer()

    def requeue(self) -> None:
        self._bodies.refused.append(self._bodies.bodies[self._index])
        self._bodies.answer()


def passing(bodies: Sequence[bytes], json_filter: JsonFilter) -> list[bytes]:
    """Return what is to be published of bodies; those without a required field are logged."""
    if not json_filter.is_active:
        return list(bodies)
    passed: list[bytes] = []
    for body in bodies:
        filtered = json_filter.filtered_body(body)
        if filtered is Rejection.REQUEUE:
            log.error("missing field to check required value: %r", body[:200])
        elif not isinstance(filtered, Rejection):
            passed.append(filtered)
    return passed


async def publish_all(
    bodies: list[bytes], at_once: int, publish: Callable[[LoggedBodies], Awaitable[None]]
) -> None:
    """Publish bodies, some at once, and those that are refused again, in growing pauses.

    ``publish`` hands some to the destinations, which answer each of them.
    """
    for start in range(0, len(bodies), at_once):
        left, pause_s = bodies[start : start + at_once], _FIRST_PAUSE_S
        while True:
            some = LoggedBodies(left)
            await publish(some)
            await some.answered.wait()
            left = some.refused
            if not left:
                break
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
