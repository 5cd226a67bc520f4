"""A channel's decisions: what is queued, deferred, in flight, and which client gets what next.

Synchronous; the caller, `trionsq.broker`, passes the time. One equation holds after every call:

    message_count + replayed_count = finish_count + depth + in flight + deferred + dropped

Messages that the backend held at the start are in no counter and are left out of it.
`ChannelState.check` tests the equation.

No call does more than a bounded amount of work. The rest is done by the channel's task (`wake`),
by the next scan (`wake_at`), or by the caller who runs the steps that a call returns.

Spec: nsqd-internals, section 2; tcp-protocol, sections 10 and 11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import repeat
from random import Random
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.containers import NEVER, Droppable, free
from trionsq.core.dispatch import ChannelDispatch
from trionsq.core.in_flight import MissedIds
from trionsq.core.latency import Latencies
from trionsq.core.policies import AppliedSettings
from trionsq.core.queue import Backend
from trionsq.core.recovered import ChannelStore
from trionsq.core.subscription import Delivery, Subscription

__all__ = [
    "MAX_DIRECT_MESSAGES",
    "MAX_SCAN",
    "PUT_BUSY",
    "PUT_QUEUED",
    "PUT_STORED",
    "ChannelState",
]

# Messages that the topic's task delivers itself; waking the channel's task costs more.
MAX_DIRECT_MESSAGES: Final = 16
# Messages looked at, taken back or queued again in one scan: one or two milliseconds.
MAX_SCAN: Final = 1_000
# A delivery costs a scan as much as so many messages.
_DELIVERY_COST: Final = 16
# A body that is queued again may go to disk: each 4 KiB of it cost as much as one more message.
_COST_BYTES: Final = 4096
# Subscriptions from which one turn of `empty` drops the messages in flight; a subscription with
# many messages counts as many.
_MAX_DROPS: Final = 2_000
# What `put` costs, in units of the cheapest: queued in memory, handed to clients, written to disk.
PUT_QUEUED: Final = 1
PUT_BUSY: Final = 8
PUT_STORED: Final = 32


NoteFinished = Callable[[list[bytes], list[Delivery | None], float], None]


def _raise(error: Exception) -> None:
    raise error


class ChannelState(ChannelDispatch):
    """One channel of a topic.

    Times are monotonic seconds (``now_s``); due times of deferred messages are nanoseconds of a
    clock that does not go back (``now_ns``), in general the wall clock.

    Attributes:
        failed: gets an exception that nobody expected from a delivery in a turn. The messages are
            queued by then, so it is not the concern of the topic, nor of a client.
        message_count, finish_count, requeue_count: since the start.
        replayed_count: messages that the channel is to get once more, or that were published before
            it was made, because somebody asked for them; since the start.
        latencies: of the messages finished of late; None if nobody wants to know them.
        note_finished: gets the ids of FINs, the in-flight entry of each (None: it had none) and the
            time; None if nobody wants to know them.
        settings: what the policies set of it, replaced when they change; None if they set nothing.
    """

    def __init__(self, name: str, mem_queue_size: int, backend: Backend, random: Random) -> None:
        super().__init__(ChannelStore(mem_queue_size, backend, random), random)
        self.name = name
        self.message_count = 0
        self.replayed_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.latencies: Latencies | None = None
        self.note_finished: NoteFinished | None = None
        self.settings: AppliedSettings | None = None
        self.failed: Callable[[Exception], None] = _raise
        self.store.backend_out_count = self.deferred_count

    def __repr__(self) -> str:
        return (
            f"<ChannelState {self.name} depth={self.depth} in_flight={self.in_flight.count} "
            f"deferred={self.deferred_count} clients={len(self.in_flight.subscriptions)}>"
        )

    @property
    def depth(self) -> int:
        """Messages that wait for a client; those in flight and deferred are not counted."""
        return self.store.depth

    @property
    def in_flight_count(self) -> int:
        """Messages that clients hold."""
        return self.in_flight.count

    @property
    def dropped(self) -> Counter[str]:
        """Messages given up on purpose, by reason."""
        return self.store.dropped

    @property
    def timeout_count(self) -> int:
        """Messages that timed out since the start."""
        return self.in_flight.timeout_count

    @property
    def deferred_count(self) -> int:
        """Messages that wait for their due time, but for those that the backend keeps."""
        return len(self.deferred)

    @property
    def held(self) -> int:
        """Messages in memory: those that wait there, are in flight, or deferred."""
        return self.store.memory.depth + self.in_flight.count + self.deferred_count

    def peek(self) -> Iterator[Segment]:
        """The segments in memory, not to be changed; the queue may not change meanwhile either."""
        return self.store.memory.peek()

    # From the topic

    def put(self, segment: Segment, now_s: float, now_ns: int, governed: bool = True) -> int:
        """Take messages from the topic; the segment belongs to the channel from now on.

        ``governed``: whether its policy, if it has one, has a say. Returns what that cost:
        PUT_QUEUED, PUT_BUSY or PUT_STORED.

        Raises:
            BackendError: there is no room for them; nothing changed.
        """
        if self.governor is not None and governed:
            return self.governor.put(segment, now_s, now_ns)
        count = segment.last - segment.first
        defer_ms = segment.batch.defer_ms
        if defer_ms:
            self.message_count += self.defer(segment, now_s, now_ns, defer_ms)
            return PUT_BUSY
        store = self.store
        in_memory = store.append(segment)
        self.message_count += count
        has_waiting = self.waiting and not self.paused
        if has_waiting:
            if (
                store.memory.depth <= MAX_DIRECT_MESSAGES
                if in_memory
                else store.backend.has_published and store.depth <= MAX_DIRECT_MESSAGES
            ):
                try:
                    self.dispatch(now_s)
                except Exception as error:
                    self.failed(error)
            else:
                self.wake()
        if in_memory != count and not store.backend.has_published:
            return PUT_STORED
        return PUT_BUSY if has_waiting else PUT_QUEUED

    # From the clients

    def add_subscription(self, subscription: Subscription) -> None:
        """Begin a subscription. Its RDY is 0."""
        self.in_flight.add_subscription(subscription)

    def remove_subscription(
        self,
        subscription: Subscription,
        unwritten: list[Delivery],
        requeue_now: bool,
        now_s: float,
    ) -> None:
        """End a subscription.

        Its messages in flight stay so until their deadline, or return to the queue at once if
        ``requeue_now`` (--requeue-on-disconnect). The messages of ``unwritten`` deliveries, which
        never reached the socket, return to the head of the queue; their attempts do not count.
        """
        self.leave_line(subscription)
        self.in_flight.disconnect(subscription, unwritten, requeue_now, now_s, MAX_SCAN)
        self.dispatch(now_s)

    def finish(
        self, subscription: Subscription, ids: list[bytes], now_s: float
    ) -> MissedIds | None:
        """FIN. Returns the ids that are not in flight at this client, None if all were."""
        in_flight = subscription.in_flight
        before = len(in_flight)
        if len(ids) == 1:
            deliveries = [in_flight.pop(ids[0], None)]
        else:
            deliveries = list(map(in_flight.pop, ids, repeat(None)))
        count = before - len(in_flight)
        subscription.finish_count += count
        self.finish_count += count
        self.in_flight.count -= count
        if self.note_finished is not None:
            self.note_finished(ids, deliveries, now_s)
        missed: MissedIds | None = None
        if count < len(ids):
            # Before the credit is used: it may bring one of these very messages again.
            pairs = zip(ids, deliveries, strict=True)
            missed = self.missed_ids(subscription, [id_ for id_, hit in pairs if hit is None])
        self.offer_credit(subscription, now_s)
        return missed

    def requeue(
        self, subscription: Subscription, id_: bytes, delay_ms: int, now_s: float, now_ns: int
    ) -> bool:
        """REQ: back to the tail of the queue, or deferred. False if it is not in flight here."""
        if subscription.epoch != self.in_flight.epoch:
            self.in_flight.drop_emptied(subscription)
        delivery = subscription.in_flight.pop(id_, None)
        if delivery is None:
            return False
        if not delivery.written:
            delivery.some_gone = True
        segment = delivery.extract([id_])
        if not delay_ms and self.governor is not None:
            delay_ms = self.governor.retry_delay_ms(segment.attempts)
        subscription.requeue_count += 1
        self.requeue_count += 1
        self.in_flight.count -= 1
        give_up = self.in_flight.give_up
        if give_up is not None and not give_up([segment], subscription, "requeued"):
            pass
        elif delay_ms:
            self.defer(segment, now_s, now_ns, delay_ms)
        else:
            self.store.restore(segment)
        self.offer_credit(subscription, now_s)
        if not self.deliver_later():
            self.dispatch(now_s)
        return True

    def touch(
        self, subscription: Subscription, id_: bytes, now_s: float, max_msg_timeout_s: float
    ) -> bool:
        """TOUCH. False if the message is not in flight at this client."""
        return self.in_flight.touch(subscription, id_, now_s, max_msg_timeout_s)

    def missed_ids(self, subscription: Subscription, ids: list[bytes]) -> MissedIds:
        """Begin to find out whether other clients have ids in flight that this one has not."""
        return self.in_flight.missed_ids(subscription, ids)

    # By time

    def scan(self, now_s: float, now_ns: int) -> int:
        """Return what timed out, queue what is due, and ask for the next scan.

        It does a bounded part of that, and asks to be called again at once if there is more.
        Returns the cost, in messages looked at.
        """
        if self.governor is not None:
            self.governor.begin_scan(now_s, now_ns)
        self.wake_at_s = NEVER
        cost = 0
        while cost < MAX_SCAN:
            subscription = self.in_flight.pop_due_check(now_s)
            if subscription is None:
                break
            try:
                cost += 1 + self.in_flight.check_deadlines(subscription, now_s, MAX_SCAN - cost)
            finally:
                # A time-out gives credit back.
                self.line_up(subscription)
        cost += self._queue_due(now_ns)
        cost += _DELIVERY_COST * self.dispatch(now_s)
        next_s = self.in_flight.next_check_s
        due_ns = self.deferred.next_ns
        if due_ns is not None:
            next_s = min(next_s, now_s + (due_ns - now_ns) / 1e9)
        self.scan_at(next_s)
        return cost

    def _queue_due(self, now_ns: int) -> int:
        """Queue deferred messages whose time has come; returns the cost."""
        cost = 0
        for segment in self.deferred.pop_due(now_ns):
            cost += 1 + segment.batch.bodies.nbytes // _COST_BYTES
            self.store.restore(segment)
            if cost >= MAX_SCAN:
                break
        return cost

    # By the operator

    def pause(self) -> None:
        """Stop deliveries; requeues and time-outs go on."""
        self.paused = True

    def unpause(self, now_s: float) -> None:
        """Let deliveries go on."""
        self.paused = False
        self.dispatch(now_s)

    def empty(self) -> Iterator[None]:
        """Drop all messages: waiting, in flight and deferred.

        Waiting messages are gone at once, and messages in flight do not return to the queue. The
        caller does the rest by exhausting the iterator, which yields where a turn ends.
        """
        return self._forget_all(None)

    def seek(self, move_backend: Callable[[], int]) -> Iterator[None]:
        """Drop all messages as `empty`, and go on with those that the backend then has.

        ``move_backend`` takes the place of `Backend.empty`: it returns how many messages it drops.
        The caller does the rest by exhausting the iterator.
        """
        rest = self._forget_all(move_backend)
        self.replayed_count += self.store.backend.depth
        return rest

    def _forget_all(self, empty_backend: Callable[[], int] | None) -> Iterator[None]:
        self.in_flight.epoch += 1
        memory = self.store.empty(empty_backend)
        deferred, self.deferred = self.deferred, self.store.backend.new_deferred(self.scan_at)
        self.store.drop("emptied", len(deferred))
        self.store.dropped_count += deferred.lost_count
        self.made_room()
        return self._empty_rest(memory, deferred)

    def _empty_rest(self, *holders: Droppable) -> Iterator[None]:
        in_flight = self.in_flight
        left = _MAX_DROPS
        for subscription in in_flight.walk_holders():
            left -= 1
            if subscription.epoch != in_flight.epoch:
                left -= in_flight.drop_emptied(subscription)
                self.line_up(subscription)
            if left <= 0:
                left = _MAX_DROPS
                self.wake_if_waiting()
                yield
        self.wake_if_waiting()
        for holder in holders:
            yield from free(holder)

    # At the end

    def save_published(self, segment: Segment) -> None:
        """Put messages from the topic in the backend, whatever room there is in memory.

        Raises:
            BackendError: nothing changed.
        """
        count = segment.count
        self.store.overflow(segment)
        self.message_count += count

    def save(self, set_back_ns: int = 0) -> None:
        """Move all messages to the backend: waiting, in flight, deferred, in this order.

        ``set_back_ns``: how far the wall clock is behind the clock of deferred messages.

        Spec: nsqd-internals, section 6.

        Raises:
            BackendError: the rest is still in memory.
        """
        self.store.save_memory()
        self.in_flight.save()
        self.store.save_memory()
        self.deferred.save(self.store.append_to_backend, set_back_ns)

    def close(self) -> None:
        """The channel is deleted: it asks for no scan any more."""
        self.paused = True
        self.wake_at_s = -NEVER  # so that `scan_at` finds no time that is earlier
        self.wake_at(NEVER)

    def check(self) -> str | None:
        """Return what is wrong with the channel's account of its messages, None if nothing is.

        The cost is constant.
        """
        store = self.store
        came = self.message_count + store.backend_out_count
        went = self.finish_count + store.dropped_count + store.backend_in_count
        went += self.deferred.lost_count
        if came != went + self.held:
            return f"{came} messages came, {went} went, {self.held} are held"
        return self.in_flight.check() or store.check()
