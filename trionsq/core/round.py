"""A round: published messages that a backend makes safe together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

__all__ = ["STORED", "Round", "Soon"]

# Publishers that hear in one turn of the event loop that their messages are safe.
_CALLBACKS_PER_TURN: Final = 256

Soon: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs a function in a later turn of the event loop."""


class Round:
    """Published messages that become safe together, or are refused together.

    Attributes:
        is_done: whether it has ended.
        error: why the messages are not stored, None if they are, or if that is not known yet.
    """

    __slots__ = ("_callbacks", "error", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.error: str | None = None
        self._callbacks: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = (self.error or "safe") if self.is_done else "open"
        return f"<Round {state} callbacks={len(self._callbacks)}>"

    @property
    def is_safe(self) -> bool:
        """Whether it has ended well."""
        return self.is_done and self.error is None

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the round ends; at once if it has ended."""
        if self.is_done:
            callback()
        else:
            self._callbacks.append(callback)

    def finish(self, error: str | None = None, soon: Soon | None = None) -> None:
        """End the round, and call all callbacks in their order, in the event loop's thread.

        With ``soon``, which runs a function in a later turn of the loop, a turn calls some of them.

        A callback that raises holds up none of the others; its exception is raised after them.
        """
        self.is_done = True
        self.error = error
        if self._callbacks:
            self._call_back(soon)

    def end_with(self, other: Round) -> None:
        """End when another round does, and as it does."""
        callbacks, self._callbacks = self._callbacks, []
        other.when_done(lambda: self.finish(other.error))
        for callback in callbacks:
            other.when_done(callback)

    def _call_back(self, soon: Soon | None) -> None:
        count = len(self._callbacks) if soon is None else _CALLBACKS_PER_TURN
        callbacks, self._callbacks = self._callbacks[:count], self._callbacks[count:]
        if self._callbacks and soon is not None:
            soon(lambda: self._call_back(soon))
        defect: Exception | None = None
        for callback in callbacks:
            try:
                callback()
            except Exception as raised:
                defect = raised
        if defect is not None:
            raise defect


STORED: Final = Round()
"""The round of messages that are stored already."""
STORED.finish()
