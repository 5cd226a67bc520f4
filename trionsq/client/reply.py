"""The answer to a command, for the task that sent it."""

from __future__ import annotations

from typing import Generic, TypeVar

from trionsq.transports.runtime import Event, new_event

__all__ = ["Reply"]

T = TypeVar("T")


class Reply(Generic[T]):
    """A value that one task will receive from another, or an error.

    Attributes:
        is_done: whether the value or the error has been set.
    """

    __slots__ = ("_done", "_error", "_value", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._value: T | None = None
        self._error: Exception | None = None
        # Made only when a task has to wait: most replies to pipelined commands come before that.
        self._done: Event | None = None

    def set_value(self, value: T) -> None:
        """Set the value. Nobody needs to wait for it."""
        self._value = value
        self._finish()

    def set_error(self, error: Exception) -> None:
        """Set the error that `wait` will raise."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self.is_done = True
        if self._done is not None:
            self._done.set()

    async def wait(self) -> T:
        """Wait for the value and return it. Not a checkpoint if it is already set.

        Cancelling the wait loses nothing.

        Raises:
            Exception: the error that was set.
        """
        if not self.is_done:
            if self._done is None:
                self._done = new_event()
            await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]
