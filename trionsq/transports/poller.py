"""Waiting for input: what a connection does until more comes, and one epoll for all sockets.

A connection has a function, `PolledConnection.advance`, that reads and handles what has come, as
far as that needs no wait. When its socket has input, the poller's task calls it. So a small command
costs no switch of tasks and no registration with trio's event loop. What has to wait goes back to
the task of the connection, as do errors and the end: that task owns the connection.

The epoll is edge-triggered: it tells of a socket once, when input comes. So a connection waits only
after its socket was empty. Two things show that, a read that finds nothing and a read that does not
fill its buffer; the second saves a system call. It proves nothing in these cases:

- The end of the stream, an error and urgent data may stand behind a short read. The epoll tells of
  them, and then only a read that finds nothing counts.
- A unix socket ends a read at passed descriptors, and does not tell. It waits by itself.
- A layer (TLS, compression) holds input that no socket tells of. So do streams in memory. Both wait
  by themselves.

To wait by itself means that the task of the connection waits in `Transport.wait_readable`. This is
the way of all connections on systems without epoll, or while the poller does not run.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import perf_counter
from typing import Final

import trio
from outcome import Error, Outcome, Value

from trionsq.transports.polled import HANDLED, Input, PolledConnection, Step, next_turn
from trionsq.transports.trio_sockets import SocketTransport
from trionsq.transports.turn import Turn

__all__ = ["Poller"]

# Sockets that one look at the epoll tells of.
_MAX_READY: Final = 1024
# After so long other tasks get their turn; the other sockets of the look come next. But if some
# connections wait by themselves, the other sockets are left to their tasks, which costs more:
# else one that waits by itself would get as much as a hundred others.
_MAX_TURN_S: Final = 0.005
# After so long what was answered is written, so that the first ones need not wait for the last.
_MAX_UNWRITTEN_S: Final = 0.0005
# After so long with input other tasks get their turn.
_MAX_RUN_S: Final = 0.001
# To wake up takes as long as a client needs to get its answer and send the next command. So after
# some short sleeps the task looks on for a moment, until that was once in vain.
_SLEEPS_PER_SPIN: Final = 16
_SHORT_SLEEP_S: Final = 100e-6
_SPIN_S: Final = 50e-6
# A connection that waits by itself reads once more without waiting, each so many reads: a system
# call that fails costs less than to wait, if input comes fast.
_READS_PER_TRIAL: Final = 16
_EVENTS: Final = (
    select.EPOLLIN | select.EPOLLPRI | select.EPOLLRDHUP | select.EPOLLET
    if hasattr(select, "epoll") else 0
)  # fmt: skip


async def _go_on() -> bool:
    return True


async def wait_readable(abort: Callable[[object], trio.lowlevel.Abort]) -> Awaitable[bool]:
    """Wait until the poller hands over a step. The debug pages show this name."""
    step: Awaitable[bool] = await trio.lowlevel.wait_task_rescheduled(abort)
    return step


class _Watch:
    """Waits for the input of one connection by its transport.

    Attributes:
        is_over: it can't wait any more, because the poller has ended.
        turn: of the poller.
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


class _LoneWatch(_Watch):
    """Waits by its transport, in trio's event loop, and is counted."""

    __slots__ = ("_poller",)

    def __init__(self, connection: PolledConnection, poller: Poller) -> None:
        super().__init__(connection, poller.turn)
        self._poller = poller
        poller.lone_count += 1

    def close(self) -> None:
        self._poller.lone_count -= 1


class _SocketWatch(_Watch):
    """Waits for the input of one socket by a `Poller`."""

    __slots__ = ("_fd", "_is_advancing", "_must_empty", "_poller", "_task",
                 "_was_cancelled")  # fmt: skip

    def __init__(self, connection: PolledConnection, fd: int, poller: Poller) -> None:
        super().__init__(connection, poller.turn)
        self._poller = poller
        self._fd = fd
        # The connection's task while it waits here.
        self._task: trio.lowlevel.Task | None = None
        self._is_advancing = self._was_cancelled = False
        # Whether something may stand behind a short read.
        self._must_empty = False
        poller.add(fd, self)

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
            self._poller.remove(self._fd)


class _InputWatch:
    """Waits for the input of something that is no connection, by a `Poller`."""

    __slots__ = ("_handle_input", "ended")

    def __init__(self, handle_input: Callable[[], None]) -> None:
        self._handle_input = handle_input
        self.ended = trio.Event()

    def note_ready(self, events: int, is_late: bool) -> None:
        self._handle_input()

    def end(self) -> None:
        self.ended.set()


class Poller:
    """One edge-triggered epoll for many sockets. Without one, each waits by itself.

    It is opened for the first socket that needs it: a broker in memory has none.

    Attributes:
        turn: a look at the input, of one connection or of many.
        expects_until_s: until then (`time.perf_counter`) input is to be expected at any moment.
        lone_count: connections that wait by themselves.
    """

    def __init__(self, turn: Turn | None = None) -> None:
        self.turn = turn or Turn()
        self.expects_until_s = 0.0
        self.lone_count = 0
        self._epoll: select.epoll | None = None
        self._opened: trio.Event | None = None  # while `run` runs
        self._watches: dict[int, _SocketWatch | _InputWatch] = {}

    def __repr__(self) -> str:
        return f"<Poller {len(self)} sockets>"

    def __len__(self) -> int:
        """Number of sockets that its task waits for."""
        return len(self._watches)

    async def serve(self, connection: PolledConnection) -> None:
        """Serve a connection until it ends.

        Raises:
            OSError: it broke.
        """
        watch = self._watch(connection)
        try:
            while await (await watch.wait()):
                while True:
                    if watch.is_over or watch.transport is not connection.transport:
                        watch.close()
                        watch = self._watch(connection)
                    step = watch.advance()
                    if isinstance(step, Input):
                        break
                    if not await step:
                        return
        finally:
            watch.close()

    def _watch(self, connection: PolledConnection) -> _Watch:
        transport = connection.transport
        if self._opened is None or not isinstance(transport, SocketTransport) or transport.is_unix:
            return _LoneWatch(connection, self)
        with suppress(OSError):  # the system takes no more
            return _SocketWatch(connection, transport.fileno(), self)
        return _LoneWatch(connection, self)

    def add(self, fd: int, watch: _SocketWatch | _InputWatch) -> None:
        """Tell ``watch`` of the input of a descriptor, also of what has come already.

        Raises:
            OSError: the system has no descriptor for the epoll, or takes no more sockets.
        """
        assert self._opened is not None
        if self._epoll is None:
            self._epoll = select.epoll()
            self._opened.set()
        self._epoll.register(fd, _EVENTS)
        self._watches[fd] = watch

    async def watch_input(self, fd: int, handle_input: Callable[[], None]) -> None:
        """Call ``handle_input`` in a turn whenever a descriptor has input, until the poller ends.

        Returns at once while `run` does not run. ``handle_input`` handles all input, and must not
        raise.
        """
        if self._opened is None:
            return
        watch = _InputWatch(handle_input)
        try:
            self.add(fd, watch)
        except OSError:  # the system takes no more
            return
        try:
            await watch.ended.wait()
        finally:
            if not watch.ended.is_set():
                self.remove(fd)

    def remove(self, fd: int) -> None:
        """Forget a socket, which is still open."""
        assert self._epoll is not None
        del self._watches[fd]
        self._epoll.unregister(fd)

    async def run(self) -> None:
        """Serve sockets until cancelled. On a system without epoll it has nothing to do.

        When it ends, its connections go on by themselves.
        """
        if not hasattr(select, "epoll"):
            await trio.sleep_forever()
        self._opened = opened = trio.Event()
        try:
            await opened.wait()
            assert self._epoll is not None
            await self._serve(self._epoll)
        finally:
            self._opened = None
            watches, self._watches = self._watches, {}
            for watch in watches.values():
                watch.end()
            if self._epoll is not None:
                trio.lowlevel.notify_closing(self._epoll.fileno())
                self._epoll.close()
                self._epoll = None

    async def _serve(self, epoll: select.epoll) -> None:
        short_sleeps = 0
        left: list[tuple[int, int]] = []
        now_s = yields_s = perf_counter()
        while True:
            if now_s >= yields_s:
                await trio.lowlevel.checkpoint()
                yields_s = perf_counter() + _MAX_RUN_S
            ready = left or epoll.poll(0, _MAX_READY)
            if not ready and now_s < self.expects_until_s and not self.lone_count:
                # To sleep here costs less than in trio's event loop. Others wait no longer for it
                # than behind input.
                ready = epoll.poll(_MAX_RUN_S, _MAX_READY)
            elif not ready and short_sleeps >= _SLEEPS_PER_SPIN:
                ready = self._spin(epoll)
                if not ready:
                    short_sleeps = 0
            now_s = perf_counter()
            if not ready:
                slept_s = now_s
                await trio.lowlevel.wait_readable(epoll.fileno())
                now_s = perf_counter()
                short_sleeps += now_s - slept_s < _SHORT_SLEEP_S
                yields_s = now_s + _MAX_RUN_S
                continue
            with self.turn:
                left = self._handle_input(ready, now_s)
            now_s = perf_counter()

    def _handle_input(self, ready: list[tuple[int, int]], now_s: float) -> list[tuple[int, int]]:
        """Have the connections handle their input; return those that are left for the next turn."""
        is_late = False
        turn_ends_s = now_s + _MAX_TURN_S
        writes_s = now_s + _MAX_UNWRITTEN_S
        for number, (fd, events) in enumerate(ready, 1):
            # One that was left may be closed, and its descriptor another's, which reads in vain.
            if (watch := self._watches.get(fd)) is not None:
                watch.note_ready(events, is_late)
            now_s = perf_counter()
            if now_s > writes_s:
                if now_s > turn_ends_s and not is_late:
                    if not self.lone_count:
                        return ready[number:]
                    is_late = True
                self.turn.write_now()
                now_s = perf_counter()
                writes_s = now_s + _MAX_UNWRITTEN_S
        return []

    def _spin(self, epoll: select.epoll) -> list[tuple[int, int]]:
        """Look for input for a moment."""
        ends_s = perf_counter() + _SPIN_S
        while not (ready := epoll.poll(0, _MAX_READY)) and perf_counter() < ends_s:
            pass
        return ready
