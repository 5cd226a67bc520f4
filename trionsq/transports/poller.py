"""Waiting for input: what a connection does until more comes, and one epoll for all sockets.

A connection hands in a function that reads and handles what has come, as far as that needs no wait.
The poller calls it in its own task when the socket has input, so a small command costs no switch of
tasks and no registration. What has to wait goes back to the task of the connection.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable
from contextlib import suppress
from enum import Enum, auto
from typing import Final, Protocol, TypeAlias

import outcome
import trio

from trionsq.transports.transport import READS_PER_TRIAL, SocketTransport, Transport

__all__ = ["Input", "PolledConnection", "Poller", "Step", "last_turn", "next_turn"]

# Sockets that one look at the epoll tells of.
_MAX_READY: Final = 256
# After so long other tasks get their turn: a client's share of a turn takes up to a millisecond.
_MAX_TURN_S: Final = 0.002
# Connections that wait by themselves: to few of them the epoll costs more than it saves.
_MAX_ALONE: Final = 2
# Missing on systems without epoll.
_EVENTS: Final = (
    select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET if hasattr(select, "epoll") else 0
)


class Input(Enum):
    """How a look at the input ended, if nobody has to wait."""

    NOTHING = auto()
    """None had come."""
    HANDLED = auto()
    """All that had come is handled."""


Step: TypeAlias = "Awaitable[bool] | Input"
"""What a connection has to wait for, which returns whether it goes on; or that it needs input."""


class PolledConnection(Protocol):
    """What is served by a `Poller`.

    Attributes:
        transport: what it reads from. Only what is awaited may replace it.
    """

    transport: Transport

    def advance(self) -> Step:
        """Read and handle what has come, without waiting.

        `Input` says that the transport was read until it had no more.

        Raises:
            OSError: the connection broke.
        """


async def next_turn() -> bool:
    """Give other tasks their turn: a `Step` of a connection that is not done."""
    await trio.lowlevel.checkpoint()
    return True


async def last_turn() -> bool:
    """End the connection: a `Step`."""
    return False


class _Watch:
    """Waits for the input of one connection by its transport."""

    __slots__ = ("_again", "_reads", "connection", "transport")

    def __init__(self, connection: PolledConnection) -> None:
        self.connection = connection
        self.transport = connection.transport
        self._reads = 0
        self._again = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.transport!r}>"

    async def wait(self) -> Awaitable[bool]:
        """Handle input until something else has to be waited for, and return that.

        Raises:
            OSError: the connection broke.
        """
        while True:
            if self._again or self._reads % READS_PER_TRIAL == READS_PER_TRIAL - 1:
                await trio.lowlevel.checkpoint()
            else:
                await self.transport.wait_readable()
            self._reads += 1
            step = self.connection.advance()
            if not isinstance(step, Input):
                return step
            self._again = step is Input.HANDLED and (
                self._again or self._reads % READS_PER_TRIAL == 0
            )

    def close(self) -> None:
        """Wait no more. To be called before the transport is closed."""


class _SocketWatch(_Watch):
    """Waits for the input of one socket by a `Poller`."""

    __slots__ = ("_fd", "_has_ended", "_is_advancing", "_poller", "_task",
                 "_was_cancelled")  # fmt: skip

    def __init__(self, connection: PolledConnection, fd: int, poller: Poller) -> None:
        super().__init__(connection)
        self._poller = poller
        self._fd = fd
        # The connection's task while it waits here.
        self._task: trio.lowlevel.Task | None = None
        self._is_advancing = self._was_cancelled = False
        # Whether the socket has told of the end of its input, which may stand behind a short read.
        self._has_ended = False
        poller.add(self._fd, self)

    async def wait(self) -> Awaitable[bool]:
        while self._has_ended:
            step = self.connection.advance()
            if not isinstance(step, Input):
                return step
            if step is Input.NOTHING:
                self._has_ended = False
                break  # without a turn for others, in which more may come
            await trio.lowlevel.checkpoint()

        def abort(_: object) -> trio.lowlevel.Abort:
            if self._is_advancing:
                self._was_cancelled = True
                return trio.lowlevel.Abort.FAILED
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._task = trio.lowlevel.current_task()
        step = await trio.lowlevel.wait_task_rescheduled(abort)
        return _cancelled() if isinstance(step, Input) else step

    def note_ready(self, *, has_ended: bool) -> None:
        """Handle input if the connection waits for it; else it reads before it waits again."""
        self._has_ended |= has_ended
        if self._task is None:
            return
        self._is_advancing = True
        result: outcome.Outcome[Step]
        try:
            step = self.connection.advance()
            while has_ended and step is Input.HANDLED:
                step = self.connection.advance()
            result = outcome.Value(step)
            must_wake = self._was_cancelled or not isinstance(step, Input)
        except Exception as error:
            # The connection's task knows what to do.
            result, must_wake = outcome.Error(error), True
        finally:
            self._is_advancing = False
        if must_wake:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task, result)

    def close(self) -> None:
        self._poller.remove(self._fd)


async def _cancelled() -> bool:
    await trio.lowlevel.checkpoint_if_cancelled()
    return True


class Poller:
    """One edge-triggered epoll for many sockets. Without one, each waits by itself."""

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._watches: dict[int, _SocketWatch] = {}
        self._alone: set[_Watch] = set()

    def __repr__(self) -> str:
        return f"<Poller {len(self._watches)} sockets>"

    async def serve(self, connection: PolledConnection) -> None:
        """Serve a connection until it ends.

        Raises:
            OSError: it broke.
        """
        watch = self._watch(connection)
        try:
            while await (await watch.wait()):
                while True:
                    if watch.transport is not connection.transport:
                        self._close(watch)
                        watch = self._watch(connection)
                    step = connection.advance()
                    if isinstance(step, Input):
                        break
                    if not await step:
                        return
        finally:
            self._close(watch)

    def _watch(self, connection: PolledConnection) -> _Watch:
        transport = connection.transport
        if self._epoll is None or not isinstance(transport, SocketTransport):
            return _Watch(connection)
        if len(self._alone) >= _MAX_ALONE:
            with suppress(OSError):  # the system may have a limit
                return _SocketWatch(connection, transport.fileno(), self)
        watch = _Watch(connection)
        self._alone.add(watch)
        return watch

    def _close(self, watch: _Watch) -> None:
        self._alone.discard(watch)
        watch.close()

    def add(self, fd: int, watch: _SocketWatch) -> None:
        """Tell ``watch`` of the input of a socket, also of what has come already."""
        assert self._epoll is not None
        self._epoll.register(fd, _EVENTS)
        self._watches[fd] = watch

    def remove(self, fd: int) -> None:
        """Forget a socket, which is still open."""
        del self._watches[fd]
        if self._epoll is not None:
            self._epoll.unregister(fd)

    async def run(self) -> None:
        """Serve sockets until cancelled. On a system without epoll it has nothing to do.

        Raises:
            OSError: there is no file descriptor for it.
        """
        if not hasattr(select, "epoll"):
            await trio.sleep_forever()
        with select.epoll() as epoll:
            self._epoll = epoll
            for fd in self._watches:
                epoll.register(fd, _EVENTS)
            try:
                await self._serve(epoll)
            finally:
                self._epoll = None
                trio.lowlevel.notify_closing(epoll.fileno())

    async def _serve(self, epoll: select.epoll) -> None:
        looks = 0
        again = False
        while True:
            ready = epoll.poll(0, _MAX_READY)
            if not ready:
                again = False
                await trio.lowlevel.wait_readable(epoll.fileno())
                continue
            turn_ends_s = trio.current_time() + _MAX_TURN_S
            for fd, events in ready:
                watch = self._watches.get(fd)
                if watch is None:
                    continue  # closed in this turn
                watch.note_ready(has_ended=bool(events & ~select.EPOLLIN))
                if trio.current_time() > turn_ends_s:
                    await trio.lowlevel.checkpoint()
                    turn_ends_s = trio.current_time() + _MAX_TURN_S
            looks += 1
            if again or looks % READS_PER_TRIAL == 0:
                again = True
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(epoll.fileno())
