"""A nursery for the tasks of an object that is used by ``async with``.

When the body is cancelled, the object's connections have to work a little longer, so that messages
can be returned to nsqd. The nursery is therefore shielded, and ends when its owner closes it.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import trio

__all__ = ["ShieldedNursery"]


class ShieldedNursery:
    """A nursery that outlives a cancellation of the body. If one of its tasks crashes, so does the
    body.
    """

    def __init__(self) -> None:
        self._manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._scope = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self._opened = trio.Event()
        self._closed = trio.Event()

    async def open(self) -> trio.Nursery:
        """Open the nursery and return it. Call this from ``__aenter__``, once.

        Opening cannot be cancelled: `close` must follow.
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
            self._closed.set()

    async def close(self) -> None:
        """Cancel the tasks and wait until they have ended. Call this last in ``__aexit__``.

        Raises:
            ExceptionGroup: a task crashed.
        """
        assert self._manager is not None
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._closed.wait()
        await self._manager.__aexit__(None, None, None)
