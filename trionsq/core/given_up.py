"""Messages that a channel has given up, on their way to the dead letters.

Until these have them they count as in flight, at nobody: a snapshot of the channel has them, a stop
puts them back to the queue, and `empty` drops them. So a crash finds them in one place at least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from trionsq.core.batch import Segment
from trionsq.core.bounds import EXPIRED
from trionsq.core.channel import ChannelState
from trionsq.core.containers import NEVER
from trionsq.core.subscription import Delivery, Subscription

__all__ = ["DEAD_LETTERED", "GivenUp", "GivenUpMessage"]

DEAD_LETTERED: Final = "dead_lettered"
"""The reason for which the channel counts them as dropped, in the end."""

# What may be under way; what is over returns to the queue, as without dead letters.
_MAX_MESSAGES: Final = 10_000
_MAX_BYTES: Final = 16 * 1024 * 1024


class GivenUpMessage(NamedTuple):
    """A message that was given up.

    Attributes:
        id: of the message.
        delivery: its entry among those in flight, of which it is the only message.
        reason: ``requeued``, ``timed_out``, ``disconnected``, ``expired``, or what a client said.
        client: who had it last; empty for expired ones.
    """

    id: bytes
    delivery: Delivery
    reason: str
    client: str

    @property
    def body(self) -> bytes:
        return self.delivery.batch.bodies.body_at(self.delivery.first)

    @property
    def published_ns(self) -> int:
        """When it was published, in nanoseconds since the epoch."""
        return int.from_bytes(self.delivery.batch.stamp(self.delivery.first), signed=True)


class GivenUp:
    """The given-up messages of one channel.

    Attributes:
        wake: is called when there are some.
        accepts: tells whether there is a place for dead letters of the channel.
        is_final: whether the channel is of a dead-letter topic.
    """

    def __init__(
        self,
        core: ChannelState,
        wake: Callable[[], None],
        accepts: Callable[[], bool],
    ) -> None:
        self.wake = wake
        self.accepts = accepts
        self.is_final = False
        self._core = core
        self._in_flight = in_flight = core.in_flight
        self._store = core.store
        self._messages: deque[GivenUpMessage] = deque()
        self._nbytes = 0
        # Nobody's: it has no credit, and no deadlines.
        self._holder = in_flight.given_up = Subscription(lambda delivery: False)
        self._holder.epoch = in_flight.epoch
        in_flight.give_up = self._keep_exhausted
        in_flight.keeper = self

    def __repr__(self) -> str:
        return f"<GivenUp {len(self._messages)}>"

    def __len__(self) -> int:
        """Messages that nobody has taken yet."""
        return len(self._messages)

    def _keep_exhausted(
        self, segments: list[Segment], subscription: Subscription, reason: str
    ) -> list[Segment]:
        """Take what was delivered as often as a policy allows, and return the others."""
        settings = self._core.settings
        if settings is None or not settings.max_attempts:
            return segments
        most, client = settings.max_attempts, subscription.client
        return [
            one for one in segments if one.attempts < most or not self._add(one, reason, client)
        ]

    def ask(self, subscription: Subscription, id_: bytes, reason: str, now_s: float) -> bool:
        """Take a message in flight, for somebody asks for that; False if that cannot be."""
        if subscription.epoch != self._in_flight.epoch:
            self._in_flight.drop_emptied(subscription)
        delivery = subscription.in_flight.get(id_)
        if delivery is None or not self._add(delivery.extract([id_]), reason, subscription.client):
            return False
        del subscription.in_flight[id_]
        if not delivery.written:
            delivery.some_gone = True
        self._in_flight.count -= 1
        self._core.offer_credit(subscription, now_s)
        return True

    def _add(self, segment: Segment, reason: str, client: str) -> bool:
        """Take messages that no client has any more; False if there is no room for them."""
        holder, in_flight = self._holder, self._in_flight
        if holder.epoch != in_flight.epoch:
            self._forget_emptied()
        nbytes = segment.batch.bodies.nbytes
        count = len(holder.in_flight) + segment.count
        if count > _MAX_MESSAGES or self._nbytes + nbytes > _MAX_BYTES or not self.accepts():
            return False
        self._take_in(segment, reason, client)
        return True

    def has_room(self) -> bool:
        """Return whether `keep_expired` may be called: what it gets is taken whole."""
        if self._holder.epoch != self._in_flight.epoch:
            self._forget_emptied()
        return len(self._holder.in_flight) < _MAX_MESSAGES and self._nbytes < _MAX_BYTES

    def keep_expired(self, segment: Segment) -> bool:
        """Take messages that expired in the queue; False if no dead letters are kept."""
        if not self.accepts():
            return False
        self._take_in(segment, EXPIRED, "")
        return True

    def _take_in(self, segment: Segment, reason: str, client: str) -> None:
        holder, in_flight = self._holder, self._in_flight
        for place, id_ in enumerate(segment.ids(), segment.first):
            one = Segment(segment.batch.extract([place], [id_]), 0, 1, segment.attempts - 1)
            delivery = Delivery(one, 0.0, NEVER)
            delivery.written = True
            in_flight.count += 1
            if id_ in holder.in_flight:
                in_flight.drop_replaced(1)
            holder.in_flight[id_] = delivery
            self._nbytes += delivery.batch.bodies.nbytes
            self._messages.append(GivenUpMessage(id_, delivery, reason, client))
        self.wake()

    def take(self, max_count: int, max_bytes: int) -> list[GivenUpMessage]:
        """Return the next ones, to be passed to `gone` or `give_back`."""
        found: list[GivenUpMessage] = []
        if self._holder.epoch != self._in_flight.epoch:
            self._forget_emptied()
        while self._messages and len(found) < max_count and max_bytes > 0:
            one = self._messages.popleft()
            if self._has(one):
                found.append(one)
                max_bytes -= one.delivery.nbytes
        return found

    def _has(self, one: GivenUpMessage) -> bool:
        return self._holder.in_flight.get(one.id) is one.delivery

    def _forget_emptied(self) -> None:
        """The channel was emptied."""
        self._in_flight.drop_emptied(self._holder)
        self._messages.clear()
        self._nbytes = 0

    def gone(self, messages: Sequence[GivenUpMessage]) -> None:
        """The dead letters have them: the channel has them no more."""
        self._store.drop(DEAD_LETTERED, len(self._remove(messages)))
        self._core.wake_if_waiting()

    def give_back(self, messages: Sequence[GivenUpMessage]) -> None:
        """There is no place for them: they return to the queue."""
        for one in self._remove(messages):
            delivery = one.delivery
            segment = Segment(delivery.batch, delivery.first, delivery.last, delivery.attempts)
            self._store.restore(segment)
        self._core.wake_if_waiting()

    def put_off(self, messages: Sequence[GivenUpMessage]) -> None:
        """They are to be taken again."""
        self._messages.extendleft(reversed(messages))

    def _remove(self, messages: Sequence[GivenUpMessage]) -> list[GivenUpMessage]:
        if self._holder.epoch != self._in_flight.epoch:
            self._forget_emptied()
        present = [one for one in messages if self._has(one)]
        for one in present:
            del self._holder.in_flight[one.id]
            self._nbytes -= one.delivery.batch.bodies.nbytes
        self._in_flight.count -= len(present)
        return present
