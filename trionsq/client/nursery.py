"""The tasks of an object that is used by ``async with``.

When the body is cancelled, the object's connections have to work a little longer, so that messages
can be returned to nsqd. Its tasks are therefore shielded, and end when their owner closes them.

Under asyncio they belong to a task of their own, not to the one that opens them: the object may be
opened in one task and closed in another, as the cells of a notebook and some test tools do. And
asyncio's `Task.cancel`, which no shield stops, reaches only the task that it is called for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
from anyio.abc import TaskGroup

from trionsq.transports.runtime import Event, is_trio, new_event

__all__ = ["ShieldedNursery"]


class ShieldedNursery:
    """A task group that outlives a cancellation of the body.

    If one of its tasks crashes, the others are cancelled. Under trio the body is cancelled too.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        """``on_end`` is called when the tasks have ended, also when one has crashed."""
        self._on_end = on_end
        self._parent: AbstractAsyncContextManager[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._scope: anyio.CancelScope | None = None
        self._tasks: TaskGroup | None = None
        self._opened: Event | None = None
        self._closed: Event | None = None

    async def open(self) -> TaskGroup:
        """Open the task group and return it. Call this from ``__aenter__``, once.

        `close` must follow, unless this raises: a trio program cannot cancel it.
        """
        self._scope = anyio.CancelScope(shield=True)
        self._opened, self._closed = new_event(), new_event()
        if is_trio():
            self._parent = anyio.create_task_group()
            outer = await self._parent.__aenter__()
            # Not `outer.start`: cancelled at that moment, it would wait for the shielded task.
            outer.start_soon(self._run)
        else:
            self._task = asyncio.create_task(self._run(), name=f"{self._on_end.__qualname__}")
        try:
            with anyio.CancelScope(shield=True):
                await self._opened.wait()
        except asyncio.CancelledError:
            await self.close()
            raise
        assert self._tasks is not None
        return self._tasks

    async def _run(self) -> None:
        assert self._scope is not None
        assert self._opened is not None
        assert self._closed is not None
        try:
            with self._scope:
                async with anyio.create_task_group() as self._tasks:
                    self._opened.set()
                    await anyio.sleep_forever()
        finally:
            self._closed.set()
            self._on_end()

    async def close(self) -> None:
        """Cancel the tasks and wait until they have ended. Call this last in ``__aexit__``.

        Cancelling does not shorten it; asyncio's CancelledError is raised when the tasks have
        ended.

        Raises:
            ExceptionGroup: a task crashed.
        """
        assert self._scope is not None
        assert self._closed is not None
        self._scope.cancel()
        if self._parent is not None:
            with anyio.CancelScope(shield=True):
                await self._closed.wait()
            await self._parent.__aexit__(None, None, None)
        elif self._task is not None:
            await _wait_through(self._task)


async def _wait_through(task: asyncio.Task[None]) -> None:
    """Wait until the task has ended, whatever happens to this one, and raise its error."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    if not task.cancelled():
        task.result()
