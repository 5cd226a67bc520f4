"""The task of a channel: takes what its topic hands over and serves the clients that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trionsq.core.batch import Segment
from trionsq.core.channel import Channel as ChannelCore
from trionsq.wire.errors import ProtocolError
from trionsq.wire.names import is_ephemeral

if TYPE_CHECKING:
    from trionsq.broker.client import Client
    from trionsq.broker.clock import Clock
    from trionsq.broker.topic import Topic

__all__ = ["Channel"]

# Segments on their way to the task; the queue itself is bounded in messages.
_INBOX_SEGMENTS_MAX: Final = 64


class Channel:
    """A channel: the decisions are `core`'s, the task gives them their turn.

    Attributes:
        name: of the channel.
        topic: it belongs to.
        core: its state.
        clients: the subscribed clients.
        exiting: it is being deleted; no client may subscribe any more.
    """

    def __init__(self, topic: Topic, core: ChannelCore, clock: Clock) -> None:
        self.name = core.name
        self.topic = topic
        self.core = core
        self.clients: dict[Client, None] = {}
        self.exiting = False
        self.cancel_scope = trio.CancelScope()
        self._clock = clock
        # Counts the times it was emptied: what was handed over before is void.
        self._generation = 0
        self._send, self._receive = trio.open_memory_channel[tuple[int, Segment]](
            _INBOX_SEGMENTS_MAX
        )
        core.carry = self._carry

    def __repr__(self) -> str:
        return f"<Channel {self.topic.name}:{self.name} {self.core!r}>"

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    async def run(self) -> None:
        """The channel's life: until it is deleted or the broker ends."""
        core = self.core
        with self.cancel_scope:
            while True:
                # Before it waits: `_carry` may have absorbed all that would wake a new task.
                self._absorb()
                core.dispatch(self._clock.now_s())
                self._handed_over(await self._receive.receive())

    def _carry(self, segment: Segment) -> bool:
        try:
            self._send.send_nowait((self._generation, segment))
        except trio.WouldBlock:
            # Keeps the order: what is on its way goes to the queue before this segment.
            self._absorb()
            return False
        return True

    def _absorb(self) -> None:
        while True:
            try:
                item = self._receive.receive_nowait()
            except trio.WouldBlock:
                return
            self._arrived(item)

    def _arrived(self, item: tuple[int, Segment]) -> None:
        generation, segment = item
        if generation == self._generation:
            self.core.arrived(segment)

    def _handed_over(self, item: tuple[int, Segment]) -> None:
        # The task waited, so the queue was empty when it was handed this: it comes before all
        # that has been absorbed meanwhile.
        generation, segment = item
        if generation == self._generation and segment.count:
            self.core.store.carried -= segment.count
            self.core.store.memory.put_back(segment)

    @property
    def will_make_room(self) -> bool:
        """Whether the task is about to hand messages to clients."""
        core = self.core
        return core.store.carried > 0 and bool(core.waiting) and not core.paused

    def add_client(self, client: Client, max_consumers: int) -> None:
        """Begin a subscription.

        Raises:
            ProtocolError: E_SUB_FAILED if the channel is full or being deleted.
        """
        if self.exiting:
            raise ProtocolError("E_SUB_FAILED", "SUB failed exiting")
        if max_consumers and len(self.clients) >= max_consumers:
            raise ProtocolError(
                "E_SUB_FAILED",
                f"SUB failed consumers for {self.topic.name}:{self.name} "
                f"exceeds limit of {max_consumers}",
            )
        self.clients[client] = None
        self.core.add_consumer(client.consumer)

    def remove_client(self, client: Client, requeue_now: bool) -> None:
        """End a subscription; an ephemeral channel goes with its last client."""
        del self.clients[client]
        self.core.remove_consumer(
            client.consumer, client.unwritten(), requeue_now, self._clock.now_s()
        )
        if self.is_ephemeral and not self.clients and not self.exiting:
            self.topic.delete_channel(self.name)

    def pause(self) -> None:
        self._absorb()  # what comes from now on queues behind it
        self.core.pause()

    def unpause(self) -> None:
        self.core.unpause(self._clock.now_s())

    def empty(self) -> None:
        """Drop all messages: waiting, in flight, deferred, and those handed over just now."""
        self._absorb()
        self._generation += 1
        core = self.core
        core.dropped["emptied"] += core.store.carried
        core.store.carried = 0
        core.empty(self._clock.now_s())

    def close(self) -> None:
        """End the task and the connections of all clients; what waits is dropped."""
        self.exiting = True
        self.empty()
        self.core.store.backend.delete()
        for client in self.clients:
            client.close()
        self.cancel_scope.cancel()
