"""The task of a channel: delivers messages to the clients that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Final, Protocol

import trio

from trionsq.broker.chores import Chore, Chores
from trionsq.broker.client import Client
from trionsq.broker.defects import Defects
from trionsq.broker.inbox import WakeUp
from trionsq.broker.runtime import Clock
from trionsq.core.channel import ChannelState
from trionsq.core.containers import Roster
from trionsq.core.given_up import GivenUp
from trionsq.core.topic import TopicState
from trionsq.transports.turn import Turn
from trionsq.wire.errors import ProtocolError
from trionsq.wire.names import is_ephemeral

__all__ = ["Channel", "ChannelOwner"]

# Connections closed in one turn: each has two tasks, which then run once more.
_MAX_CLOSE: Final = 32


class ChannelOwner(Protocol):
    """The topic of a channel, as the channel sees it."""

    name: str
    core: TopicState
    channels: dict[str, Channel]

    @property
    def is_ephemeral(self) -> bool: ...
    def delete_channel(self, name: str) -> Chore: ...


class Channel:
    """A channel: `core` decides, the task calls it in turns.

    Attributes:
        name: of the channel.
        topic: the topic that it belongs to.
        core: the state of the channel.
        clients: the subscribed clients.
        exiting: whether the channel is being deleted; no client may subscribe then.
        wake: makes the task look at the queue.
        given_up: messages on their way to the dead letters; None if there are no dead letters.
        logged_drops: messages that policies have dropped, as far as the log says so.
    """

    def __init__(
        self, topic: ChannelOwner, core: ChannelState, clock: Clock, chores: Chores, turn: Turn
    ) -> None:
        self.name = core.name
        self.topic = topic
        self.core = core
        self.clients: Roster[Client] = Roster()
        self.exiting = False
        self.given_up: GivenUp | None = None
        self.logged_drops = 0
        self.cancel_scope = trio.CancelScope()
        self._clock = clock
        self._chores = chores
        self._turn = turn
        self._is_in_turn = False
        self._wake_up = WakeUp()
        core.deliver_later = self._deliver_later
        self.wake = core.wake = self._wake_up.wake

    def __repr__(self) -> str:
        return f"<Channel {self.topic.name}:{self.name} {self.core!r}>"

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    async def run(self, defects: Defects) -> None:
        """Run until the channel is deleted or the broker ends.

        ``defects`` notes an unexpected exception; the task starts again after a pause.
        """
        what = f"CHANNEL({self.topic.name}:{self.name})"
        with self.cancel_scope:
            pump = partial(self._pump, defects, what)
            await defects.keep_running("channel", what, pump, stops_messages=True)

    async def _pump(self, defects: Defects, what: str) -> None:
        core, wake_up = self.core, self._wake_up
        while True:
            wake_up.clear()
            core.dispatch(self._clock.now_s())
            if defects.stopped:
                defects.runs(what)
            await wake_up.wait()

    def _deliver_later(self) -> bool:
        """Have messages delivered at the end of the turn; False if there is none."""
        if not self._is_in_turn:
            if not self._turn.is_open:
                return False
            self._is_in_turn = True
            self._turn.deliver_later(self._end_turn)
        return True

    def _end_turn(self) -> None:
        self._is_in_turn = False
        try:
            self.core.dispatch(self._clock.now_s())
        except Exception as error:
            self.core.failed(error)

    @property
    def will_make_room(self) -> bool:
        """Whether the task is about to deliver messages."""
        core = self.core
        return (
            self._wake_up.is_pending
            and core.store.memory.depth > 0
            and bool(core.waiting)
            and not core.paused
        )

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
        self.clients.add(client)
        client.consumer.client = f"{client.identity.client_id} {client.peer}"
        self.core.add_subscription(client.consumer)

    def remove_client(self, client: Client, requeue_now: bool) -> None:
        """End a subscription, and delete an ephemeral channel after its last client."""
        self.clients.discard(client)
        self.core.remove_subscription(
            client.consumer, client.pump.pop_unwritten(), requeue_now, self._clock.now_s()
        )
        if self.is_ephemeral and not self.clients and not self.exiting:
            self.topic.delete_channel(self.name)

    def retire_client(self, client: Client) -> None:
        """CLS: deliver nothing more to a client; what is not written yet is for others."""
        core, now_s = self.core, self._clock.now_s()
        core.set_ready(client.consumer, 0, now_s)
        core.in_flight.return_unwritten(client.consumer, client.pump.pop_unwritten())
        core.dispatch(now_s)

    def pause(self) -> None:
        self.core.pause()

    def unpause(self) -> None:
        self.core.unpause(self._clock.now_s())

    def empty(self) -> Chore:
        """Drop all messages: waiting, in flight and deferred.

        When the chore is done, which is mostly at once, no older message can be delivered.
        """
        return self._chores.start(self.core.empty())

    def seek(self, move_backend: Callable[[], int]) -> Chore:
        """Drop all messages as `empty`, and go on with those that the backend then has.

        See `ChannelState.seek`.
        """
        return self._chores.start(self.core.seek(move_backend))

    def mark_exiting(self) -> None:
        """Refuse subscriptions from now on: the task has ended."""
        self.exiting = True

    def check(self) -> str | None:
        """Return what is wrong with the channel's counters, None if nothing is. Cheap."""
        return self.core.check()

    def close(self) -> Chore:
        """End the task, drop all messages and close the connections of all clients.

        Subscriptions and deliveries end at once. The chore closes the clients.
        """
        self.exiting = True
        self.cancel_scope.cancel()
        self.core.close()
        emptying = self.core.empty()
        self.core.store.backend.delete()
        return self._chores.start(chain(self._close_clients(), emptying))

    def _close_clients(self) -> Iterator[None]:
        for number, client in enumerate(self.clients.walk(), 1):
            client.close()
            if number % _MAX_CLOSE == 0:
                yield
