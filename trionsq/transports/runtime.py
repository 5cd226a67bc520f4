"""What is needed of the running event loop for each read, message or batch: trio's or asyncio's.

anyio has all this too, at several times the cost: it looks up its backend in each call, and wraps
what the backend has. All that is rare (task groups, cancel scopes, sleeping, locks) is anyio's.

trio is imported only by those who run it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import Protocol

__all__ = ["Event", "Token", "checkpoint", "current_time", "is_trio", "new_event"]


class Event(Protocol):
    """Lets any number of tasks wait until something has happened. Both libraries have it."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self) -> Awaitable[object]: ...


def is_trio() -> bool:
    """Whether the running event loop is trio's; else it is asyncio's."""
    # trio brings it along, and asyncio's guests and hosts are told apart by it.
    sniffio = sys.modules.get("sniffio")
    return sniffio is not None and sniffio.thread_local.name == "trio"


def new_event() -> Event:
    """Return an event of the running event loop."""
    if is_trio():
        import trio

        return trio.Event()
    return asyncio.Event()


def checkpoint() -> Awaitable[None]:
    """Let other tasks run, and raise the cancellation if there is one."""
    if is_trio():
        import trio

        return trio.lowlevel.checkpoint()  # noqa: ASYNC105
    return asyncio.sleep(0)


def current_time() -> float:
    """Return the time of the event loop's clock, in seconds."""
    if is_trio():
        import trio

        return trio.current_time()
    return asyncio.get_running_loop().time()


class Token:
    """A wake-up for one task: however often it is set, the task wakes once."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: Event | None = None

    def set(self) -> None:
        """Wake the task, or let its next `wait` return at once."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def clear(self) -> None:
        """Forget the wake-up."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until the token is set, and clear it. A checkpoint; cancelling loses nothing."""
        if self._is_set:
            await checkpoint()
        while not self._is_set:
            self._event = new_event()
            try:
                await self._event.wait()
            finally:
                self._event = None
        self._is_set = False
