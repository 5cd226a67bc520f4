"""Two small ways to wait for another task, cheaper than an Event for each time."""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

__all__ = ["Reply", "Token"]

T = TypeVar("T")


class Token:
    """Wakes the one task that waits for it. Set many times before that, it wakes once."""

    __slots__ = ("_is_set", "_task")

    def __init__(self) -> None:
        self._is_set = False
        self._task: trio.lowlevel.Task | None = None

    def set(self) -> None:
        """Wake the task, now or when it waits next."""
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None
        else:
            self._is_set = True

    async def wait(self) -> None:
        """Wait until it is set, and take it back. A checkpoint in any case."""
        if self._is_set:
            self._is_set = False
            await trio.lowlevel.checkpoint()
            return
        assert self._task is None, "two tasks wait for one token"
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        # Set again between the wake-up and now: this is the time it wakes for that, too.
        self._is_set = False

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Reply(Generic[T]):
    """What one task will be told by another: a value or an error.

    Attributes:
        is_there: whether it was told.
    """

    __slots__ = ("_error", "_task", "_value", "is_there")

    def __init__(self) -> None:
        self.is_there = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._task: trio.lowlevel.Task | None = None

    def tell(self, value: T) -> None:
        """Give the value; nobody need wait for it (any more)."""
        self._value = value
        self._ready()

    def fail(self, error: Exception) -> None:
        """Give an error to be raised."""
        self._error = error
        self._ready()

    def _ready(self) -> None:
        self.is_there = True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> T:
        """The value, once it is there. For one task; no checkpoint if it is there already.

        Raises:
            Exception: what was given to `fail`.
        """
        if not self.is_there:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
