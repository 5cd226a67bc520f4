"""A thread with an event loop, for callers in other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import contextlib
import encodings.idna
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from time import perf_counter
from typing import Any, Final

import anyio
import anyio._backends._asyncio

from trionsq.transports import asyncio_sockets

__all__ = ["Background", "wait_for"]

# What the thread would import later. A fork amid an import leaves the module locked in the child.
_IMPORTED: Final = (
    anyio._backends._asyncio,
    asyncio_sockets,
    concurrent.futures.thread,
    encodings.idna,
)
# What other threads want done is done for so long in one turn of the event loop.
_MAX_TURN_S: Final = 0.005


class Background:
    """Runs an async function in an event loop of asyncio, in a thread of its own.

    The thread is a daemon, so that it does not keep the program alive: who needs its work done
    waits for `ended`.

    Attributes:
        ended: the result of the function, or its error.
    """

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self.ended = Future[None]()
        self._main = main
        self._calls: deque[Callable[[], object]] = deque()
        # Whether `_make_calls` is due. A second one would do no harm.
        self._is_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __repr__(self) -> str:
        return f"<Background {self._thread.name} {'ended' if self.ended.done() else 'runs'}>"

    def start(self) -> None:
        """Start the thread, and wait until its event loop runs."""
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        try:
            anyio.run(self._run_main)
        except BaseException as error:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)
        finally:
            self._started.set()

    async def _run_main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._started.set()
        if not self._is_cancelled:
            await self._main()

    @property
    def is_running(self) -> bool:
        """Whether it was started."""
        return self._loop is not None

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the event loop call a function, after all that were given to it before.

        From any thread, also from a signal handler. When the thread has ended, nothing is called.
        """
        if self.ended.done():
            return
        self._calls.append(partial(function, *arguments) if arguments else function)
        if not self._is_due:
            try:
                self._is_due = True
                self._wake()
            except BaseException:  # a signal handler's: the next call is to wake the event loop
                self._is_due = False
                raise

    def _wake(self) -> None:
        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._make_calls)
        except RuntimeError:  # the loop is closed
            self._calls.clear()

    def _make_calls(self) -> None:
        self._is_due = False
        turn_ends_s = perf_counter() + _MAX_TURN_S
        while self._calls:
            self._calls.popleft()()
            if perf_counter() > turn_ends_s:
                self._is_due = True
                self._wake()
                return

    def cancel(self) -> None:
        """Cancel the function. If it has not begun, it will not."""
        self._is_cancelled = True
        if self._task is not None:
            self.call(self._task.cancel)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended; False if it has not within the time."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()


def wait_for(ended: Future[None]) -> None:
    """Wait until it is done, and raise its error. In the main thread signal handlers run meanwhile.

    Python calls them in the main thread alone, but the kernel gives a signal to any thread, often
    to another one when the process was paused. That does not end the main thread's wait for a lock,
    but its wait for the wakeup descriptor.
    """
    if threading.current_thread() is threading.main_thread():
        bell = socket.socketpair()
        bell[1].setblocking(False)
        reader, writer = bell[0].dup(), bell[1].dup()
        # The other thread has descriptors of its own: it may ring when this one waits no more.
        ended.add_done_callback(partial(_ring, *bell))
        with reader, writer:
            before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
            try:
                while not ended.done():
                    reader.recv(4096)
            finally:
                signal.set_wakeup_fd(before)
    ended.result()


def _ring(reader: socket.socket, writer: socket.socket, _: Future[None]) -> None:
    # When it is full, there is enough to read.
    with reader, writer, contextlib.suppress(BlockingIOError):
        writer.send(b"\0")
