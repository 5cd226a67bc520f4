"""--max-memory: a bound of all waiting messages in memory together.

--mem-queue-size counts the messages of each queue: thousands of topics with large messages have no
bound by it. Over the limit all queues append to disk, and what they have goes there as well, that
of the queue with the oldest message first, until a tenth of the limit is free. Deferred messages
count; over the limit those that come go to the disk queues of their channels with their due times.

Without the option deferred messages alone have a bound, `MAX_DEFERRED_BYTES`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Final

import trio

from trionsq.broker.frozen import FrozenQueue
from trionsq.broker.topic import Topic
from trionsq.core.channel import ChannelState
from trionsq.core.deferred import Deferred
from trionsq.core.queue import BackendError, Store
from trionsq.core.weighed import WeighedQueue
from trionsq.wire.names import is_ephemeral

__all__ = ["MAX_DEFERRED_BYTES", "MemoryGuard"]

log = logging.getLogger("trionsq")

MAX_DEFERRED_BYTES: Final = 1 << 30
"""Memory of all deferred messages together, about, without --max-memory."""
# What one takes beside its body: its entry, its batch, its id.
_DEFERRED_COST: Final = 600
# Time between two sums. What comes meanwhile may be over the limit.
_LOOK_S: Final = 0.1
# The same without --max-memory, where an idle node has nothing to do.
_DEFERRED_LOOK_S: Final = 2.0
# Queues looked at before other tasks get their turn: less than a millisecond.
_MAX_LOOKS: Final = 500
# Moving before other tasks get their turn.
_STEP_S: Final = 0.002
# A tenth of the limit is made free.
_FREE: Final = 10


class MemoryGuard:
    """Watches the memory of waiting messages.

    Attributes:
        nbytes: of their bodies, at the last sum; None without --max-memory. With deferred ones.
        is_over: whether all queues append to disk; without --max-memory, deferred messages do.
        moved_count: messages that went to disk because of it, since the start.
    """

    def __init__(self, topics: Mapping[str, Topic], max_bytes: int) -> None:
        self.nbytes: int | None = None
        self.is_over = False
        self.moved_count = 0
        self._topics = topics
        self._max_bytes = max_bytes
        # The queues that append to disk, with the limits that they had.
        self._closed: dict[Store, int] = {}
        self._shedding: list[ChannelState] = []

    def __repr__(self) -> str:
        return f"<MemoryGuard {self.nbytes} of {self._max_bytes} bytes>"

    async def run(self) -> None:
        """Sum up and move, for ever."""
        while True:
            if self._max_bytes:
                await self.look()
                await trio.sleep(_LOOK_S)
            else:
                await self.look_at_deferred()
                await trio.sleep(_DEFERRED_LOOK_S)

    async def look_at_deferred(self) -> None:
        """Sum up deferred messages alone; if they are too much, those that come go to disk."""
        nbytes = 0
        for number, topic in enumerate(list(self._topics.values()), 1):
            # All channels of an idle node: nothing is called for one without deferred messages.
            for channel in topic.core.channels.values():
                deferred = channel.deferred
                if (
                    type(deferred) is Deferred
                    and deferred.nbytes
                    and not is_ephemeral(topic.name)
                    and not is_ephemeral(channel.name)
                ):
                    nbytes += deferred.nbytes + _DEFERRED_COST * len(deferred)
            if number % _MAX_LOOKS == 0:
                await trio.lowlevel.checkpoint()
        if self.is_over:
            await self._begin_shedding()  # of channels that are new
        if nbytes > MAX_DEFERRED_BYTES and not self.is_over:
            self.is_over = True
            log.warning(
                "NSQ: deferred messages take about %d bytes of memory, above %d; those that come "
                "go to disk", nbytes, MAX_DEFERRED_BYTES,
            )  # fmt: skip
            await self._begin_shedding()
        elif self.is_over and nbytes <= MAX_DEFERRED_BYTES - MAX_DEFERRED_BYTES // _FREE:
            self._end_shedding()
            log.info("NSQ: deferred messages take about %d bytes; memory takes them again", nbytes)

    async def look(self) -> None:
        """Sum up the memory, and move messages to disk if it is too much."""
        stores: list[Store] = []
        nbytes = 0
        for number, store in enumerate(self._stores(), 1):
            memory = store.memory
            if not isinstance(memory, WeighedQueue):
                memory = store.memory = WeighedQueue(memory)
            nbytes += memory.nbytes
            if memory.depth:
                stores.append(store)
            if self.is_over and store not in self._closed:
                self._close(store)
            if number % _MAX_LOOKS == 0:
                await trio.lowlevel.checkpoint()
        for number, channel in enumerate(self._channels(), 1):
            if isinstance(channel.deferred, Deferred):
                nbytes += channel.deferred.nbytes
                if self.is_over and not channel.sheds:
                    self._shed(channel)
            if number % _MAX_LOOKS == 0:
                await trio.lowlevel.checkpoint()
        self.nbytes = nbytes
        if nbytes > self._max_bytes:
            await self._free_memory(stores)
        elif self.is_over and nbytes <= self._most_after:
            for store, limit in self._closed.items():
                store.change_limit(limit)
            self._closed.clear()
            self._end_shedding()
            log.info("NSQ: %d bytes of messages wait in memory; it takes messages again", nbytes)

    @property
    def _most_after(self) -> int:
        return self._max_bytes - self._max_bytes // _FREE

    def _stores(self) -> Iterator[Store]:
        """Yield the queues that have a disk; topics and channels may come and go meanwhile."""
        for topic in list(self._topics.values()):
            if isinstance(topic.core.store.backend, FrozenQueue):
                continue  # it is being moved to a log
            if not is_ephemeral(topic.name):
                yield topic.core.store
        for channel in self._channels():
            yield channel.store

    def _channels(self) -> Iterator[ChannelState]:
        for topic in list(self._topics.values()):
            if isinstance(topic.core.store.backend, FrozenQueue) or is_ephemeral(topic.name):
                continue
            for channel in list(topic.core.channels.values()):
                if not is_ephemeral(channel.name):
                    yield channel

    async def _begin_shedding(self) -> None:
        for number, channel in enumerate(self._channels(), 1):
            if isinstance(channel.deferred, Deferred) and not channel.sheds:
                self._shed(channel)
            if number % _MAX_LOOKS == 0:
                await trio.lowlevel.checkpoint()

    def _shed(self, channel: ChannelState) -> None:
        channel.sheds = True
        self._shedding.append(channel)

    def _end_shedding(self) -> None:
        self.is_over = False
        for channel in self._shedding:
            channel.sheds = False
        self._shedding.clear()

    def _close(self, store: Store) -> None:
        self._closed[store] = store.limit
        store.change_limit(0)

    async def _free_memory(self, stores: list[Store]) -> None:
        if not self.is_over:
            self.is_over = True
            log.warning(
                "NSQ: %d bytes of messages wait in memory, above --max-memory; they go to disk",
                self.nbytes,
            )
            for number, store in enumerate(self._stores(), 1):
                self._close(store)
                if number % _MAX_LOOKS == 0:
                    await trio.lowlevel.checkpoint()
            await self._begin_shedding()
        assert self.nbytes is not None
        until = time.perf_counter() + _STEP_S
        for store in sorted(stores, key=_age):
            while self.nbytes > self._most_after and store.memory.depth:
                if store.backend.behind or isinstance(store.backend, FrozenQueue):
                    break  # the disk does not follow: the next sum tries again
                try:
                    count, nbytes = store.move_to_backend()
                except BackendError:
                    break  # the health of nsqd says why
                self.moved_count += count
                self.nbytes -= nbytes
                if time.perf_counter() > until:
                    await trio.lowlevel.checkpoint()
                    until = time.perf_counter() + _STEP_S


def _age(store: Store) -> int:
    head = next(store.memory.peek(), None)
    return 2**63 if head is None else head.first_ns
