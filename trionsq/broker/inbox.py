"""Memory channels as the broker uses them: bounded, tried without waiting, emptied in one go.

A trio memory channel raises when there is nothing to take, and nothing to take is the usual case
at the end of each turn. So both inboxes count what is in theirs and ask only if there is something.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

import trio

from trionsq.core.batch import Segment
from trionsq.core.store import Store

__all__ = ["Inbox", "SegmentInbox"]

T = TypeVar("T")

# A second one would not wake the task any more than the first.
_SEGMENTS_MAX: Final = 1


class Inbox(Generic[T]):
    """What a task is handed, by any number of others."""

    __slots__ = ("_count", "_receive", "_send")

    def __init__(self, items_max: int) -> None:
        self._send, self._receive = trio.open_memory_channel[T](items_max)
        self._count = 0

    def __len__(self) -> int:
        """Items on their way: in the channel, or given to the task but not seen by it yet."""
        return self._count

    def offer(self, item: T) -> bool:
        """Hand over an item; False if the channel is full."""
        try:
            self._send.send_nowait(item)
        except trio.WouldBlock:
            return False
        self._count += 1
        return True

    def take(self) -> T | None:
        """The next item in the channel, None if there is none."""
        if not self._count:
            return None
        try:
            item = self._receive.receive_nowait()
        except trio.WouldBlock:
            return None  # the one item was given to the task, which has not run yet
        self._count -= 1
        return item

    async def receive(self) -> T:
        """Wait for an item. A cancellation loses none."""
        item = await self._receive.receive()
        self._count -= 1
        return item


class _Core(Protocol):
    """A topic or a channel of `trionsq.core`."""

    store: Store

    def arrived(self, segment: Segment) -> None: ...


class SegmentInbox:
    """Segments on their way to the task of a topic or channel; `core` counts them as carried."""

    __slots__ = ("_core", "_generation", "_inbox")

    def __init__(self, core: _Core) -> None:
        self._core = core
        # Counts the times it was emptied: what was handed over before is void.
        self._generation = 0
        # A None instead of a segment is a mere wake-up.
        self._inbox = Inbox[tuple[int, Segment | None]](_SEGMENTS_MAX)

    def carry(self, segment: Segment) -> bool:
        """Hand a segment to the task if it sleeps; False if it is awake: it looks at the queue."""
        if not self._inbox:
            return self._inbox.offer((self._generation, segment))
        # Keeps the order: what is on its way goes to the queue before this segment.
        self.absorb()
        return False

    def wake(self) -> None:
        """Make the task look at its queue."""
        if not self._inbox:
            self._inbox.offer((self._generation, None))

    def absorb(self) -> None:
        """Move what is in the channel to the queue."""
        while (item := self._inbox.take()) is not None:
            generation, segment = item
            if segment is not None and generation == self._generation:
                self._core.arrived(segment)

    async def wait(self) -> None:
        """Wait until there is something; afterwards it is in the queue."""
        generation, segment = await self._inbox.receive()
        if segment is not None and generation == self._generation:
            # The task waited, so the queue was empty when it was handed this: it comes before all
            # that has been absorbed meanwhile.
            self._core.store.carried -= segment.count
            self._core.store.memory.put_back(segment)

    def check(self) -> str | None:
        """What is wrong with what is carried, None if nothing is. Cheap."""
        if self._core.store.carried and not self._inbox:
            return f"{self._core.store.carried} messages are carried by nobody"
        return None

    def void(self) -> int:
        """Drop what is on its way and not in the queue after `absorb`; the number of messages."""
        self._generation += 1
        dropped = self._core.store.carried
        self._core.store.carried = 0
        return dropped
