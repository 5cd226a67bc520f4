"""Tasks that belong to an object used by ``async with``, and outlive a cancellation of its body.

When the body is cancelled, its connections must still work for a moment, so that messages can be
given back. So the tasks run in a shielded nursery, and end when the owner says so.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import trio

__all__ = ["Household"]


class Household:
    """A nursery for an object's tasks. If one of them crashes, so does the body."""

    def __init__(self) -> None:
        self._manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._scope = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self._opened = trio.Event()
        self._ended = trio.Event()

    async def open(self) -> trio.Nursery:
        """Begin; the nursery for the tasks. To be called from ``__aenter__``, once.

        Is not cancelled: `close` must follow.
        """
        self._manager = trio.open_nursery()
        outer = await self._manager.__aenter__()
        # Not `outer.start`: cancelled at that moment, it would wait for the shielded task.
        outer.start_soon(self._run)
        with trio.CancelScope(shield=True):
            await self._opened.wait()
        assert self._nursery is not None
        return self._nursery

    async def _run(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as self._nursery:
                    self._opened.set()
                    await trio.sleep_forever()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Cancel the tasks and wait for their end. To be called from ``__aexit__``, at last.

        Raises:
            ExceptionGroup: a task crashed.
        """
        assert self._manager is not None
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()
        await self._manager.__aexit__(None, None, None)
