"""The messages of a channel that clients hold: who holds them, until when, and how they return.

A subscription whose connection has ended keeps its messages in flight until their deadline; it is
then a *disconnected* one.

Spec: tcp-protocol, sections 10 and 11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from trionsq.core.batch import Segment
from trionsq.core.containers import NEVER, Roster, TimerQueue
from trionsq.core.queue import Store
from trionsq.core.subscription import Delivery, Subscription

__all__ = [
    "COMPACT_AFTER_S",
    "MAX_DIRECT_LOOKUPS",
    "MAX_LOOKUPS",
    "InFlight",
    "Keeper",
    "MissedIds",
]

# How long messages may pin the batch they came in before they are copied out of it.
COMPACT_AFTER_S: Final = 2.0
# Look-ups in the command's own turn. A turn may act on 128 commands that each spend them,
# which is less than a millisecond.
MAX_DIRECT_LOOKUPS: Final = 32
# Look-ups in one turn after that: about a millisecond.
MAX_LOOKUPS: Final = 10_000
# A body that is queued again may go to disk: each 4 KiB of it cost as much as one more message.
_COST_BYTES: Final = 4096


class Keeper(Protocol):
    """Keeps messages of a channel that expired; see `trionsq.core.given_up.GivenUp`.

    Attributes:
        is_final: whether what waits in the channel are dead letters, which do not expire.
    """

    @property
    def is_final(self) -> bool: ...

    def has_room(self) -> bool:
        """Return whether it takes some now."""

    def keep_expired(self, segment: Segment) -> bool:
        """Take them; False if dead letters of the channel are not kept."""


class InFlight:
    """The messages in flight of one channel.

    Attributes:
        subscriptions: of the clients that are connected.
        count: messages in flight.
        timeout_count: messages that timed out since the start.
        epoch: how often the channel was emptied.
        compacts: whether deliveries may be compacted: not while somebody looks at them in turns.
        given_up: holds messages that are on their way to the dead letters; None if none can be.
        give_up: takes what has returned from a client, with the reason, and returns what is to be
            queued again.
        keeper: of expired messages; None if there is none.
        return_timed_out: gets the messages that have timed out, which go back to the queue.
    """

    __slots__ = ("_checks", "_disconnected", "_store", "_wake_at", "compacts", "count", "epoch",
                 "give_up", "given_up", "keeper", "return_timed_out", "subscriptions",
                 "timeout_count")  # fmt: skip

    def __init__(self, store: Store, wake_at: Callable[[float], None]) -> None:
        """Messages return to ``store``; ``wake_at`` gets the time of each check that is set."""
        self.subscriptions: Roster[Subscription] = Roster()
        self.count = 0
        self.timeout_count = 0
        self.epoch = 0
        self.compacts = True
        self.given_up: Subscription | None = None
        self.give_up: Callable[[list[Segment], Subscription, str], list[Segment]] | None = None
        self.keeper: Keeper | None = None
        self._store = store
        self._wake_at = wake_at
        self.return_timed_out: Callable[[Segment], None] = store.restore
        self._disconnected: Roster[Subscription] = Roster()
        # When to check whose deadlines: each subscription that has messages in flight.
        self._checks: TimerQueue[Subscription] = TimerQueue()

    def __repr__(self) -> str:
        return f"<InFlight {self.count} messages, {len(self.subscriptions)} clients>"

    @property
    def next_check_s(self) -> float:
        """Monotonic time of the next check of deadlines, `NEVER` if nothing is in flight."""
        return self._checks.next_s

    def walk_holders(self) -> Iterator[Subscription]:
        """Yield all subscriptions that may have messages in flight, disconnected ones included.

        Subscriptions may be added and removed between two steps.
        """
        yield from self.subscriptions.walk()
        yield from self._disconnected.walk()
        if self.given_up is not None and self.given_up.in_flight:
            yield self.given_up

    def add_subscription(self, subscription: Subscription) -> None:
        """Add a subscription, which has nothing in flight yet."""
        self.subscriptions.add(subscription)
        subscription.epoch = self.epoch

    def disconnect(
        self,
        subscription: Subscription,
        unwritten: list[Delivery],
        requeue_now: bool,
        now_s: float,
        max_messages: int,
    ) -> None:
        """Remove a subscription whose connection has ended.

        Its messages in flight stay so until their deadline, or return at once if ``requeue_now``:
        ``max_messages`` of them here, the others by checks. What ``unwritten`` deliveries have
        returns to the queue first: see `return_unwritten`.
        """
        self.subscriptions.discard(subscription)
        self.return_unwritten(subscription, unwritten)
        if subscription.in_flight:
            self._disconnected.add(subscription)
            if requeue_now:
                subscription.gives_back = True
                self.check_deadlines(subscription, now_s, max_messages)
        else:
            self._checks.discard(subscription)

    def return_unwritten(self, subscription: Subscription, unwritten: list[Delivery]) -> None:
        """Put messages that were not written back to the head of the queue; no attempt counts."""
        if subscription.epoch != self.epoch:
            self.drop_emptied(subscription)
        for delivery in reversed(unwritten):
            for segment in subscription.remove_unwritten(delivery):
                self.count -= segment.count
                self._store.memory.put_back(segment)

    def schedule_check(self, subscription: Subscription, at_s: float) -> None:
        """Check the deadlines of a subscription at that time, which is before the one set now."""
        subscription.check_s = at_s
        self._checks.set(subscription, at_s)
        self._wake_at(at_s)

    def pop_due_check(self, now_s: float) -> Subscription | None:
        """Remove and return a subscription whose check is due, None if there is none."""
        return self._checks.pop_due(now_s)

    def check_deadlines(self, subscription: Subscription, now_s: float, max_messages: int) -> int:
        """Return what timed out to the queue, and schedule the next check.

        At most about ``max_messages`` are moved; if there are more, the next check is due at once.
        Returns the cost in messages.
        """
        subscription.check_s = NEVER
        # If a defect comes between, the next check is due as after any other.
        next_check_s = now_s + COMPACT_AFTER_S
        try:
            if subscription.epoch != self.epoch:
                self.drop_emptied(subscription)
            cost = self._return_messages(subscription, now_s, max_messages)
            if subscription.gives_back or subscription.next_deadline_s() <= now_s:
                next_check_s = now_s
            else:
                if self.compacts:
                    cost += subscription.compact(now_s - COMPACT_AFTER_S)
                next_check_s = min(subscription.next_deadline_s(), next_check_s)
        finally:
            if subscription.in_flight:
                self.schedule_check(subscription, next_check_s)
            else:
                self._disconnected.discard(subscription)
                self._checks.discard(subscription)
        return cost

    def _return_messages(self, subscription: Subscription, now_s: float, max_messages: int) -> int:
        """Queue again what timed out, or what a disconnected client gives back; the cost."""
        if subscription.gives_back:
            segments = subscription.remove_first(max_messages)
        else:
            segments = subscription.remove_expired(now_s, max_messages)
        count = sum(segment.count for segment in segments)
        cost = count + sum(segment.batch.bodies.nbytes // _COST_BYTES for segment in segments)
        self.count -= count
        if self.give_up is not None:
            reason = "disconnected" if subscription.gives_back else "timed_out"
            segments = self.give_up(segments, subscription, reason)
        if subscription.gives_back:
            self._return_all(segments, self._store.restore)
        else:
            self.timeout_count += count
            self._return_all(segments, self.return_timed_out)
        return cost

    def _return_all(self, segments: list[Segment], way: Callable[[Segment], None]) -> None:
        """Queue all of them again, also if a defect comes between; then it is raised."""
        defect: Exception | None = None
        for segment in segments:
            try:
                way(segment)
            except Exception as error:
                defect = error
        if defect is not None:
            raise defect

    def touch(
        self, subscription: Subscription, id_: bytes, now_s: float, max_msg_timeout_s: float
    ) -> bool:
        """TOUCH: set a later deadline. False if the message is not in flight at this client."""
        if not subscription.touch(id_, now_s, max_msg_timeout_s):
            return False
        deadline_s = subscription.next_deadline_s()
        if deadline_s < subscription.check_s:
            self.schedule_check(subscription, deadline_s)
        return True

    def withhold(self, subscription: Subscription, id_: bytes) -> bool:
        """Do not write a message that somebody else finishes. False if it is not in flight here."""
        if subscription.epoch != self.epoch:
            self.drop_emptied(subscription)
        delivery = subscription.in_flight.get(id_)
        if delivery is not None and not delivery.written:
            delivery.some_gone = True
        return delivery is not None

    def drop_emptied(self, subscription: Subscription) -> int:
        """Do a subscription's part in the last `empty`; returns the messages dropped."""
        subscription.epoch = self.epoch
        count = subscription.drop_all()
        self.count -= count
        self._store.drop("emptied", count)
        self._disconnected.discard(subscription)
        return count

    def drop_replaced(self, count: int) -> None:
        """Count messages replaced by a copy in flight at the same client: one FIN ends both."""
        self.count -= count
        self._store.drop("double", count)

    def save(self) -> None:
        """Move all messages in flight to the memory queue, at the end of the broker's life."""
        for subscription in self.walk_holders():
            if subscription.epoch != self.epoch:
                self.drop_emptied(subscription)
            for segment in subscription.remove_entries(list(subscription.in_flight.items())):
                self.count -= segment.count
                self._store.memory.append(segment)

    def missed_ids(self, subscription: Subscription, ids: list[bytes]) -> MissedIds:
        """Begin to search for ids that are not in flight at a client."""
        is_only_holder = self.count == len(subscription.in_flight)
        missed = MissedIds(subscription, ids, iter(()) if is_only_holder else self.walk_holders())
        missed.search(MAX_DIRECT_LOOKUPS)
        return missed

    def check(self) -> str | None:
        """Return what is wrong with the count, None if nothing is. The cost is constant."""
        if self.count < 0:
            return f"{self.count} messages are in flight"
        held = self.given_up is not None and self.given_up.in_flight
        if self.count and not self.subscriptions and not self._disconnected and not held:
            return f"{self.count} messages are in flight at no client"
        return None


class MissedIds:
    """Ids that a client named in FIN, REQ or TOUCH and that were not in flight there.

    The answer depends on whether another client has them in flight. To know that means to look at
    every other subscription of the channel, so the search is done in turns.

    Attributes:
        is_known: whether the search has ended.
    """

    __slots__ = ("_client", "_holders", "_ids", "_owned", "_sought", "is_known")

    def __init__(
        self, client: Subscription, ids: list[bytes], holders: Iterator[Subscription]
    ) -> None:
        """``holders`` yields whoever may have messages in flight, as `InFlight.walk_holders`."""
        self._client = client
        self._ids = ids
        self._holders = holders
        self._sought = set(ids)
        self._owned: set[bytes] = set()
        self.is_known = False

    def search(self, max_lookups: int) -> bool:
        """Look at some more subscriptions; returns `is_known`.

        A subscription costs one look-up, and one for each of the ids or of its messages in flight,
        whichever is less; the last one may exceed the limit by that.
        """
        sought, client = self._sought, self._client
        for subscription in self._holders:
            max_lookups -= 1
            # The client itself had none of them. What was delivered to it since does not count.
            if subscription.in_flight and subscription is not client:
                max_lookups -= min(len(sought), len(subscription.in_flight))
                owned = subscription.in_flight.keys() & sought
                if owned:
                    self._owned |= owned
                    sought -= owned
                    if not sought:
                        break
            if max_lookups <= 0:
                return False
        self.is_known = True
        return True

    def reasons(self) -> list[tuple[bytes, str]]:
        """Return each id, in the client's order, with the reason that its error frame gives."""
        owned = self._owned
        return [
            (id_, "client does not own message" if id_ in owned else "ID not in flight")
            for id_ in self._ids
        ]
