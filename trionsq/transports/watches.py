"""How one connection waits for input, by the poller or by itself; see `poller`."""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio
from outcome import Error, Outcome, Value

from trionsq.transports.polled import HANDLED, Input, PolledConnection, Step, next_turn
from trionsq.transports.turn import Turn

__all__ = ["InputWatch", "LoneWatch", "SocketWatch", "Watch", "Watcher"]

# A connection that waits by itself reads once more without waiting, each so many reads: a system
# call that fails costs less than to wait, if input comes fast.
_READS_PER_TRIAL: Final = 16


class Watcher(Protocol):
    """A `trionsq.transports.poller.Poller`, as its watches use it."""

    turn: Turn
    lone_count: int

    def add(self, fd: int, watch: SocketWatch | InputWatch) -> None: ...
    def remove(self, fd: int) -> None: ...


async def _go_on() -> bool:
    return True


async def wait_readable(abort: Callable[[object], trio.lowlevel.Abort]) -> Awaitable[bool]:
    """Wait until the poller hands over a step. The debug pages show this name."""
    step: Awaitable[bool] = await trio.lowlevel.wait_task_rescheduled(abort)
    return step


class Watch:
    """Waits for the input of one connection by its transport.

    Attributes:
        is_over: it can't wait any more, because the poller has ended.
        turn: of the watcher.
    """

    __slots__ = ("connection", "is_over", "transport", "turn")

    def __init__(self, connection: PolledConnection, turn: Turn) -> None:
        self.connection = connection
        self.transport = connection.transport
        self.turn = turn
        self.is_over = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.transport!r}>"

    async def wait(self) -> Awaitable[bool]:
        """Handle input until something else has to be waited for, and return that.

        Raises:
            OSError: the connection broke.
        """
        reads = 0
        read_again = False
        while True:
            if read_again:
                await trio.lowlevel.checkpoint()
            else:
                await self.transport.wait_readable()
            step = self.advance()
            if not isinstance(step, Input):
                return step
            reads += 1
            read_again = step is HANDLED and (read_again or reads % _READS_PER_TRIAL == 0)

    def advance(self) -> Step:
        """Let the connection handle what has come, in a turn of its own."""
        with self.turn:
            return self.connection.advance()

    def close(self) -> None:
        """Wait no more. To be called before the transport is closed."""


class LoneWatch(Watch):
    """Waits by its transport, in trio's event loop, and is counted."""

    __slots__ = ("_watcher",)

    def __init__(self, connection: PolledConnection, watcher: Watcher) -> None:
        super().__init__(connection, watcher.turn)
        self._watcher = watcher
        watcher.lone_count += 1

    def close(self) -> None:
        self._watcher.lone_count -= 1


class SocketWatch(Watch):
    """Waits for the input of one socket by a `Poller`."""

    __slots__ = ("_fd", "_is_advancing", "_must_empty", "_task", "_was_cancelled",
                 "_watcher")  # fmt: skip

    def __init__(self, connection: PolledConnection, fd: int, watcher: Watcher) -> None:
        super().__init__(connection, watcher.turn)
        self._watcher = watcher
        self._fd = fd
        # The connection's task while it waits here.
        self._task: trio.lowlevel.Task | None = None
        self._is_advancing = self._was_cancelled = False
        # Whether something may stand behind a short read.
        self._must_empty = False
        watcher.add(fd, self)

    async def wait(self) -> Awaitable[bool]:
        if self._must_empty:
            step = self.advance()
            if not isinstance(step, Input):
                return step
            if step is HANDLED:
                return next_turn()
            self._must_empty = False
        # No turn for others in between: more might come, or the poller end.
        self._task = trio.lowlevel.current_task()
        return await wait_readable(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        if self._is_advancing:
            self._was_cancelled = True
            return trio.lowlevel.Abort.FAILED
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def note_ready(self, events: int, is_late: bool) -> None:
        """Handle input if the connection waits for it; else it reads before it waits again.

        If it is late, the connection's task handles it.
        """
        if events & ~select.EPOLLIN:
            self._must_empty = True
        if self._task is None:
            return
        if is_late:
            self._resume(Value(_go_on()))
            return
        result: Outcome[Awaitable[bool]]
        self._is_advancing = True
        try:
            step = self.connection.advance()
        except Exception as error:
            # The connection's task knows what to do.
            result = Error(error)
        else:
            if isinstance(step, Input):
                if not self._must_empty and not self._was_cancelled:
                    return
                step = next_turn()
            result = Value(step)
        finally:
            self._is_advancing = False
        self._resume(result)

    def end(self) -> None:
        """Have the connection wait by itself: the poller has ended."""
        self.is_over = True
        if self._task is not None:
            self._resume(Value(_go_on()))

    def _resume(self, result: Outcome[Awaitable[bool]]) -> None:
        task, self._task = self._task, None
        assert task is not None
        trio.lowlevel.reschedule(task, result)

    def close(self) -> None:
        if not self.is_over:
            self._watcher.remove(self._fd)


class InputWatch:
    """Waits for the input of something that is no connection, by a `Poller`."""

    __slots__ = ("_handle_input", "ended")

    def __init__(self, handle_input: Callable[[], None]) -> None:
        self._handle_input = handle_input
        self.ended = trio.Event()

    def note_ready(self, events: int, is_late: bool) -> None:
        self._handle_input()

    def end(self) -> None:
        self.ended.set()
