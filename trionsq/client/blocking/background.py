"""A thread with an event loop, for callers in other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import encodings.idna
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

__all__ = ["Background"]

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
            self._is_due = True
            self._wake()

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
        """Cancel the function."""
        if self._task is not None:
            self.call(self._task.cancel)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended; False if it has not within the time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
