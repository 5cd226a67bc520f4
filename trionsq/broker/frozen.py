"""The queue of a topic or channel while its messages are copied to a log: it gives none.

What it had stays untouched, so that it can go on as before. Messages that clients hold or give back
meanwhile are in the channel, as always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from trionsq.broker.channel import Channel
from trionsq.core.batch import MessageBatch, Segment
from trionsq.core.channel import ChannelState
from trionsq.core.deferred import Deferred, DeferredMessages
from trionsq.core.queue import Backend, BackendError, Store
from trionsq.core.round import Round
from trionsq.core.subscription import Delivery
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.ranges import MessageRange

__all__ = ["FrozenChannel", "FrozenQueue", "MovedChannel", "with_sequences"]


def with_sequences(batch: MessageBatch, index: int, sequence: int) -> MessageBatch:
    """Return a batch whose message at ``index`` has this place in a log, the others beside it."""
    first = sequence - index
    return MessageBatch(
        batch.bodies,
        batch.ids,
        batch.timestamp_ns,
        batch.defer_ms,
        batch.stamps,
        range(first, first + batch.count),
    )


class FrozenQueue:
    """The `trionsq.core.queue.Backend` of a frozen queue.

    Attributes:
        disk_queue: the backend that it had.
        memory: what was in memory.
        returned: messages that came back, and for which memory has no room.
        has_published, behind: of a topic: publishers wait.
        empties: how often it was emptied.
        is_deleted: whether it was deleted.
    """

    def __init__(self, store: Store, *, is_topic: bool) -> None:
        """Freeze the queue, whose backend must be a `DiskQueue`."""
        assert isinstance(store.backend, DiskQueue)
        self.disk_queue = store.backend
        self.caught_up: Callable[[], None] = self.disk_queue.caught_up
        self.dropped: Counter[str] = store.dropped
        self.has_published = self.behind = is_topic
        self.pending: Round | None = None
        self.returned: list[Segment] = []
        self.empties = 0
        self.is_deleted = False
        self.deferred_count = 0
        self._store = store
        self._limit = store.limit
        self.memory, store.memory = store.memory, type(store.memory)()
        store.backend_in_count += self.memory.depth
        if is_topic:
            store.limit = 0  # so that publishers look at `behind`
        store.change_backend(self)

    def __repr__(self) -> str:
        return f"<FrozenQueue {self.disk_queue}>"

    def thaw(self) -> None:
        """Let the queue go on as before."""
        store = self._store
        store.limit = self._limit
        store.change_backend(self.disk_queue)
        if not self.empties:
            store.backend_in_count -= self.memory.depth
            for segment in store.memory.peek():
                self.memory.append(segment)
            store.memory = self.memory
        for segment in self.returned:
            store.backend_in_count -= segment.count
            store.memory.append(segment)

    def change_backend(self, backend: Backend) -> None:
        """Let the queue go on with a backend that has its messages, but for those in memory."""
        backend.caught_up = self.caught_up
        self._store.change_backend(backend)

    # As a backend

    @property
    def depth(self) -> int:
        returned = sum(segment.count for segment in self.returned)
        if self.empties or self.is_deleted:
            return returned
        return self.memory.depth + self.deferred_count + self.disk_queue.depth + returned

    @property
    def on_disk(self) -> int:
        return 0 if self.empties or self.is_deleted else self.disk_queue.depth

    def new_deferred(self, scan_at: Callable[[float], None]) -> DeferredMessages:
        return Deferred()

    def is_recovering(self) -> bool:
        return False

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        if self.has_published:
            raise BackendError("the topic is being moved to a log")
        self.returned.append(segment)

    def read(self, max_count: int, max_bytes: int) -> Segment | None:
        return None

    def unread(self, segment: Segment) -> bool:
        return False

    def peek(self) -> None:
        return None

    def oldest_ns(self) -> int | None:
        head = next(self.memory.peek(), None)
        return None if head is None or self.empties else head.first_ns

    def check(self) -> str | None:
        return None

    def empty(self) -> int:
        dropped = self.depth
        self.disk_queue.empty()
        self.returned = []
        self.empties += 1
        return dropped

    def delete(self) -> None:
        self.disk_queue.delete()
        self.is_deleted = True

    def close(self) -> None:
        """Do nothing: who ends the move closes the queue."""


class FrozenChannel:
    """A channel whose queue is frozen, with what it has deferred.

    Attributes:
        core: the channel.
        queue: its queue.
        deferred: what was deferred, all of it in memory.
    """

    def __init__(self, core: ChannelState) -> None:
        assert isinstance(core.deferred, Deferred)
        self.core = core
        self.deferred, core.deferred = core.deferred, Deferred()
        core.sheds = False  # this backend knows no due times
        self.queue = FrozenQueue(core.store, is_topic=False)
        self.queue.deferred_count = len(self.deferred)
        core.store.backend_in_count += len(self.deferred)

    def __repr__(self) -> str:
        return f"<FrozenChannel {self.core}>"

    def thaw(self) -> None:
        """Let the channel go on as before."""
        core = self.core
        came_back = core.deferred
        self.queue.thaw()
        if not self.queue.empties:
            core.store.backend_in_count -= len(self.deferred)
            assert isinstance(came_back, Deferred)
            self.deferred.take_over(came_back)
            core.deferred = self.deferred
        core.scan_at(0.0)
        core.wake()

    def held(self) -> list[Delivery | Segment]:
        """Return what clients hold, or gave back, and has no place in a log yet."""
        core = self.core
        found: list[Delivery | Segment] = []
        for subscription in core.in_flight.walk_holders():
            if subscription.epoch == core.in_flight.epoch:
                found += dict.fromkeys(subscription.in_flight.values())
        found += self.came_back()
        found += core.store.memory.peek()
        return [one for one in found if one.batch.sequences is None]

    def came_back(self) -> Iterator[Segment]:
        """Yield what came back and is not in the memory queue."""
        yield from self.queue.returned
        deferred = self.core.deferred
        assert isinstance(deferred, Deferred)
        yield from (segment for _, segment in deferred.part(0, len(deferred)))


class MovedChannel:
    """A channel on its way to a log.

    Attributes:
        frozen: what it had.
        channel: the channel.
        cursor: what it will have.
        open: messages that will be open in the cursor.
        empties: how often it had been emptied when its rows were made.
    """

    def __init__(self, channel: Channel, cursor: Cursor) -> None:
        self.frozen = FrozenChannel(channel.core)
        self.channel = channel
        self.cursor = cursor
        self.open: list[MessageRange] = []
        self.empties = 0

    def __repr__(self) -> str:
        return f"<MovedChannel {self.channel}>"

    @property
    def is_gone(self) -> bool:
        """Whether it was deleted meanwhile."""
        return self.frozen.queue.is_deleted

    @property
    def has_nothing(self) -> bool:
        """Whether what it had was dropped meanwhile."""
        return self.is_gone or self.frozen.queue.empties > 0
