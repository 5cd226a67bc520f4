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
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Final

import trio

from trionsq.transports.polled import Input, PolledConnection
from trionsq.transports.trio_sockets import SocketTransport
from trionsq.transports.turn import Turn
from trionsq.transports.watches import InputWatch, LoneWatch, SocketWatch, Watch

__all__ = ["Poller"]

# Sockets that one look at the epoll tells of.
_MAX_READY: Final = 1024
# After so long other tasks get their turn; the other sockets of the look come next. But if some
# connections wait by themselves, the other sockets are left to their tasks, which costs more:
# else one that waits by itself would get as much as a hundred others.
_MAX_TURN_S: Final = 0.005
# After so long what was answered is written, so that the first ones need not wait for the last.
_MAX_UNWRITTEN_S: Final = 0.0005
# After so long with input other tasks get their turn. They do at least as often if the task naps:
# while input comes so often that its sleeps are shorter than this, it sleeps in its own epoll. That
# costs less than in trio's event loop.
_MAX_RUN_S: Final = 0.001
# A nap delays clients in this process, so it waits in vain for what they would send. Each one in
# vain doubles the number of short sleeps in trio's event loop between naps, up to so many; each one
# that brings input halves it.
_MAX_SLEEPS_PER_NAP: Final = 1024
# To wake up takes as long as a client needs to get its answer and send the next command. So after
# some short sleeps the task looks on for a moment, until that was once in vain.
_SLEEPS_PER_SPIN: Final = 16
_SHORT_SLEEP_S: Final = 100e-6
_SPIN_S: Final = 50e-6
_EVENTS: Final = (
    select.EPOLLIN | select.EPOLLPRI | select.EPOLLRDHUP | select.EPOLLET
    if hasattr(select, "epoll") else 0
)  # fmt: skip


class _Others(trio.abc.Instrument):
    """The other tasks.

    Attributes:
        all_wait: whether all do, as far as trio's event loop knows. A task that runs does not.
    """

    def __init__(self, own_task: trio.lowlevel.Task) -> None:
        self.all_wait = False
        self._own_task = own_task

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        if task is not self._own_task:
            self.all_wait = False

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 0:
            self.all_wait = True


class Poller:
    """One edge-triggered epoll for many sockets. Without one, each waits by itself.

    It is opened for the first socket that needs it: a broker in memory has none.

    Attributes:
        turn: a look at the input, of one connection or of many.
        expects_until_s: until then (`time.perf_counter`) input is to be expected at any moment.
        lone_count: connections that wait by themselves.
        threads: that work for the broker now. It is trio's event loop that hears of their ends.
    """

    def __init__(self, turn: Turn | None = None) -> None:
        self.turn = turn or Turn()
        self.expects_until_s = 0.0
        self.lone_count = self.threads = 0
        self._epoll: select.epoll | None = None
        self._opened: trio.Event | None = None  # while `run` runs
        self._watches: dict[int, SocketWatch | InputWatch] = {}

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

    def _watch(self, connection: PolledConnection) -> Watch:
        transport = connection.transport
        if self._opened is None or not isinstance(transport, SocketTransport) or transport.is_unix:
            return LoneWatch(connection, self)
        with suppress(OSError):  # the system takes no more
            return SocketWatch(connection, transport.fileno(), self)
        return LoneWatch(connection, self)

    def add(self, fd: int, watch: SocketWatch | InputWatch) -> None:
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
        watch = InputWatch(handle_input)
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
            others = _Others(trio.lowlevel.current_task())
            trio.lowlevel.add_instrument(others)
            try:
                await self._serve(self._epoll, others)
            finally:
                trio.lowlevel.remove_instrument(others)
        finally:
            self._opened = None
            watches, self._watches = self._watches, {}
            for watch in watches.values():
                watch.end()
            if self._epoll is not None:
                trio.lowlevel.notify_closing(self._epoll.fileno())
                self._epoll.close()
                self._epoll = None

    async def _serve(self, epoll: select.epoll, others: _Others) -> None:
        short_sleeps = 0
        sleeps_until_nap = sleeps_per_nap = 1
        left: list[tuple[int, int]] = []
        now_s = yields_s = perf_counter()
        while True:
            ready = left or epoll.poll(0, _MAX_READY)
            is_expected = now_s < self.expects_until_s
            if not ready and not is_expected and short_sleeps >= _SLEEPS_PER_SPIN:
                ready = self._spin(epoll)
                if not ready:
                    short_sleeps = 0
            now_s = perf_counter()
            if now_s >= yields_s and (ready or is_expected):
                await trio.lowlevel.checkpoint()
                now_s = perf_counter()
                yields_s = now_s + _MAX_RUN_S
            if not ready:
                slept_s = now_s
                if not self.lone_count and (
                    is_expected
                    or (
                        not sleeps_until_nap
                        and now_s < yields_s
                        and others.all_wait
                        and not self.threads
                    )
                ):
                    ready = epoll.poll(_MAX_RUN_S, _MAX_READY)
                    now_s = perf_counter()
                    if is_expected:
                        pass  # what the disk does tells nothing of clients
                    elif ready:
                        sleeps_per_nap = max(1, sleeps_per_nap // 2)
                    else:
                        sleeps_until_nap = sleeps_per_nap
                        sleeps_per_nap = min(2 * sleeps_per_nap, _MAX_SLEEPS_PER_NAP)
                else:
                    await trio.lowlevel.wait_readable(epoll.fileno())
                    now_s = perf_counter()
                    yields_s = now_s + _MAX_RUN_S
                    if now_s - slept_s >= _MAX_RUN_S:
                        sleeps_until_nap = max(1, sleeps_until_nap)
                    elif sleeps_until_nap:
                        sleeps_until_nap -= 1
                short_sleeps += now_s - slept_s < _SHORT_SLEEP_S
                if not ready:
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
