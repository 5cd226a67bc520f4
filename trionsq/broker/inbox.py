"""Memory channels as the broker uses them: bounded, tried without waiting, emptied in one go.

A trio memory channel raises when it is empty, and empty is the usual case at the end of each turn.
So both classes know whether theirs holds something, and ask it only then.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

__all__ = ["Inbox", "WakeUp"]

T = TypeVar("T")


class Inbox(Generic[T]):
    """Items for one task, from any number of other tasks.

    Attributes:
        count: items that the task has not got yet: in the channel, or handed to the waiting task.
    """

    __slots__ = ("_receive", "_send", "count")

    def __init__(self, max_items: int) -> None:
        self._send, self._receive = trio.open_memory_channel[T](max_items)
        self.count = 0

    def offer(self, item: T) -> bool:
        """Send an item; False if the channel is full."""
        try:
            self._send.send_nowait(item)
        except trio.WouldBlock:
            return False
        self.count += 1
        return True

    def pop_item(self) -> T | None:
        """Return the next item in the channel, None if there is none."""
        if not self.count:
            return None
        try:
            item = self._receive.receive_nowait()
        except trio.WouldBlock:
            return None  # trio handed the only item to the task, which has not run yet
        self.count -= 1
        return item

    async def receive(self) -> T:
        """Wait for an item. A cancellation loses none."""
        item = await self._receive.receive()
        self.count -= 1
        return item


class WakeUp:
    """A bare wake-up for the task of a topic or channel; at most one is pending.

    The queue is the truth: whoever adds messages to it wakes the task, and the task looks at all
    of the queue. So a wake-up carries nothing, and a second one would add nothing.

    Attributes:
        is_pending: whether the task was woken and has not looked at its queue since.
    """

    __slots__ = ("_receive", "_send", "is_pending")

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[None](1)
        self.is_pending = False

    def wake(self) -> None:
        """Make the task look at its queue."""
        if not self.is_pending:
            self.is_pending = True
            self._send.send_nowait(None)

    def clear(self) -> None:
        """Drop a pending wake-up: the task, which calls this, looks at its queue now."""
        if self.is_pending:
            self._receive.receive_nowait()
            self.is_pending = False

    async def wait(self) -> None:
        """Wait for a wake-up. A cancellation leaves a pending one pending."""
        await self._receive.receive()
        self.is_pending = False
