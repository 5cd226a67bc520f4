"""A channel's decisions: what is queued, deferred, in flight, and which client gets what next.

Synchronous, and told the time; `trionsq.broker` drives it. One invariant holds after every call:

    message_count = finish_count + depth + in flight + deferred + dropped

less what the backend held at the start, which no counter counts. `ChannelState.check` looks at it.

No call does more than a bounded amount of work. What is left over is done by the channel's task
(`wake`), by the next scan (`alarm`), or by whoever runs the steps that a call returns.

Spec: nsqd-internals, section 2; tcp-protocol, sections 10 and 11.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import repeat
from random import Random
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.containers import NEVER, Roster, TimerQueue
from trionsq.core.deferred import Deferred
from trionsq.core.latency import Latencies
from trionsq.core.missed import AT_ONCE_LOOKUPS_MAX, Missed
from trionsq.core.queue import Backend, Droppable, Store, free
from trionsq.core.recovered import Recovered
from trionsq.core.subscription import Delivery, Subscription

__all__ = [
    "AT_ONCE_MESSAGES_MAX",
    "DELIVERY_MESSAGES_MAX",
    "DELIVERY_NBYTES_MAX",
    "DISPATCH_MAX",
    "PUT_BUSY",
    "PUT_QUEUED",
    "PUT_STORED",
    "SCAN_MAX",
    "ChannelState",
]

# A delivery is at most this much, so that clients share fairly and no frame buffer grows large.
DELIVERY_MESSAGES_MAX: Final = 512
DELIVERY_NBYTES_MAX: Final = 256 * 1024
# So few messages are served in the topic's turn: a turn of the channel's own task costs more, and
# comes later.
AT_ONCE_MESSAGES_MAX: Final = 16
# Reads of nothing but copies before other tasks get their turn.
_COPIES_READS_MAX: Final = 16
# How long messages may pin the batch they came in before they are copied out of it.
COMPACT_AFTER_S: Final = 2.0
# Deliveries made, or deferred messages read from the backend, in one turn: one or two milliseconds.
DISPATCH_MAX: Final = 64
# Messages looked at, taken back or queued again in one scan: one or two milliseconds.
SCAN_MAX: Final = 1_000
# A delivery costs as much as so many looks.
_DELIVERY_LOOKS: Final = 16
# So many bytes of bodies that are queued again count as one more: they may go to disk.
_LOOK_NBYTES: Final = 4096
# Consumers from which a turn of `empty` takes what they have in flight; those with much count more.
_FORGET_MAX: Final = 2_000
# What `put` costs, in units of the cheapest: queued in memory, handed to clients, written to disk.
PUT_QUEUED: Final = 1
PUT_BUSY: Final = 8
PUT_STORED: Final = 32


def _raise(error: Exception) -> None:
    raise error


def _no_alarm(at_s: float) -> None:
    return None


def _no_task() -> None:
    return None


class ChannelState:
    """One channel of a topic.

    Times are monotonic seconds (``now_s``); due times of deferred messages are wall clock
    nanoseconds (``now_ns``).

    Attributes:
        wake: makes the channel's task call `dispatch` in a turn to come.
        alarm: is told the monotonic time at which `scan` should run, `NEVER` if it need not.
        alarm_s: the time that it was told last.
        made_room: is called when messages have left the memory queue.
        is_recovering: tells whether the backend reads what an unclean end left; None if there was
            none.
        recovered: what the topic may have given once more; None if there is no need to know.
        failed: is told of an exception that nobody expected, while messages that were just put in
            the queue were handed to a client; it is not the topic's concern.
        consumers: the clients subscribed now.
        waiting: those with credit, the next to be served in front; at most half are gone.
        deferred: messages that wait for their due time.
        dropped: messages given up on purpose, by reason.
        latencies: of the messages finished of late; None if nobody wants to know them.
    """

    def __init__(self, name: str, mem_queue_size: int, backend: Backend, random: Random) -> None:
        self.name = name
        self.store = Store(mem_queue_size, backend)
        self.paused = False
        self.consumers: Roster[Subscription] = Roster()
        self.waiting: deque[Subscription] = deque()
        self._gone_waiting = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.dropped: Counter[str] = Counter()
        self.latencies: Latencies | None = None
        self.wake: Callable[[], None] = _no_task
        self.alarm: Callable[[float], None] = _no_alarm
        self.alarm_s = NEVER
        self.made_room: Callable[[], None] = _no_task
        self.is_recovering: Callable[[], bool] | None = None
        self.recovered: Recovered | None = None
        self.failed: Callable[[Exception], None] = _raise
        self.deferred = Deferred()
        self._random = random
        # Consumers whose connection has ended, as long as they have messages in flight.
        self._orphans: Roster[Subscription] = Roster()
        # When to look at which consumer for time-outs: all that have something in flight.
        self._looks: TimerQueue[Subscription] = TimerQueue()
        # How often it was emptied.
        self._epoch = 0
        # In flight is what was handed out and has not come back. These count what came back, but
        # for FIN, REQ and time-outs, and what was dropped, but for what the backend dropped.
        self._handed_out = 0
        self._taken_back = 0
        self._dropped_here = 0

    def __repr__(self) -> str:
        return (
            f"<ChannelState {self.name} depth={self.depth} in_flight={self.in_flight_count} "
            f"deferred={self.deferred_count} clients={len(self.consumers)}>"
        )

    @property
    def depth(self) -> int:
        """Messages that wait for a client; those in flight and deferred are not counted."""
        return self.store.depth

    @property
    def in_flight_count(self) -> int:
        ended = self.finish_count + self.requeue_count + self.timeout_count + self._taken_back
        return self._handed_out - ended

    @property
    def held(self) -> int:
        """Messages in memory: those that wait there, are in flight, or deferred."""
        return self.store.memory.depth + self.in_flight_count + self.deferred_count

    @property
    def deferred_count(self) -> int:
        return len(self.deferred)

    @property
    def holders(self) -> Iterator[Subscription]:
        """Whoever may have messages in flight: also consumers whose connection has ended.

        They may come and go while this is iterated over.
        """
        yield from self.consumers.walk()
        yield from self._orphans.walk()

    def peek(self) -> Iterator[Segment]:
        """What waits in memory, to be looked at only. Nothing may change meanwhile."""
        return self.store.memory.peek()

    # From the topic

    def put(self, segment: Segment, now_s: float, now_ns: int) -> int:
        """Take messages from the topic; the segment belongs to the channel from now on.

        Returns what that cost: PUT_QUEUED, PUT_BUSY or PUT_STORED.

        Raises:
            BackendError: there is no room for them; nothing changed.
        """
        taken = segment.last - segment.first
        defer_ms = segment.batch.defer_ms
        if defer_ms:
            self._defer(segment, now_s, now_ns, defer_ms)
            self.message_count += taken
            return PUT_BUSY
        kept = self.store.admit(segment)
        self.message_count += taken
        memory = self.store.memory
        if kept is not None:
            memory.append(kept)
        wanted = self.waiting and not self.paused
        if wanted:
            if kept is not None and memory.depth <= AT_ONCE_MESSAGES_MAX:
                try:
                    self.dispatch(now_s)
                except Exception as error:
                    # The messages are in the queue, so to the topic this is no failure.
                    self.failed(error)
            else:
                self.wake()
        if kept is not segment:
            return PUT_STORED
        return PUT_BUSY if wanted else PUT_QUEUED

    # To the clients

    def add_consumer(self, consumer: Subscription) -> None:
        """Begin a subscription. Its RDY is 0."""
        self.consumers.add(consumer)
        consumer.epoch = self._epoch

    def remove_consumer(
        self, consumer: Subscription, unwritten: list[Delivery], requeue_now: bool, now_s: float
    ) -> None:
        """End a subscription.

        What is in flight stays so until its deadline, or goes back at once if ``requeue_now``
        (--requeue-on-disconnect). ``unwritten`` deliveries never reached the socket: they go back
        to the head of the queue, their attempts unchanged.
        """
        self.consumers.discard(consumer)
        consumer.gone = True
        consumer.rdy = 0
        if consumer.waiting:
            self._gone_waiting += 1
            if 2 * self._gone_waiting > len(self.waiting):
                # An idle channel whose clients come and go would gather them here.
                self.waiting = deque(one for one in self.waiting if not one.gone)
                self._gone_waiting = 0
        if consumer.epoch != self._epoch:
            self._forget(consumer)
        for delivery in reversed(unwritten):
            for segment in consumer.take_unwritten(delivery):
                self._taken_back += segment.count
                self.store.memory.put_back(segment)
        if consumer.in_flight:
            self._orphans.add(consumer)
            if requeue_now:
                consumer.gives_back = True
                self._look(consumer, now_s, SCAN_MAX)
        else:
            self._looks.discard(consumer)
        self.dispatch(now_s)

    def set_ready(self, consumer: Subscription, rdy: int, now_s: float) -> None:
        """Set the RDY of a client."""
        consumer.rdy = rdy
        self.offer_credit(consumer, now_s)

    def unblock(self, consumer: Subscription, now_s: float) -> None:
        """The client's hand-over queue has room again."""
        consumer.blocked = False
        self.offer_credit(consumer, now_s)

    def offer_credit(self, consumer: Subscription, now_s: float) -> None:
        """Put a client with credit in the line; serve at once if there are messages."""
        if not consumer.waiting:
            if consumer.rdy <= len(consumer.in_flight) or consumer.blocked or consumer.gone:
                return
            consumer.waiting = True
            self.waiting.append(consumer)
        if self.store.memory.depth or self.store.backend.depth:
            self.dispatch(now_s)

    def _line_up(self, consumer: Subscription) -> None:
        """As `offer_credit`; somebody else serves."""
        if not (
            consumer.waiting
            or consumer.rdy <= len(consumer.in_flight)
            or consumer.blocked
            or consumer.gone
        ):
            consumer.waiting = True
            self.waiting.append(consumer)

    def dispatch(self, now_s: float) -> int:
        """Hand messages to waiting clients, one delivery each in turn.

        After `DISPATCH_MAX` deliveries the channel's task goes on, in its next turn. Returns how
        many clients it looked at.
        """
        store, waiting = self.store, self.waiting
        left = DISPATCH_MAX
        if self.paused:
            return 0
        left_queue = False
        while waiting and (store.memory.depth or store.backend.depth):
            if not left:
                self._serve_later()
                break
            left -= 1
            consumer = waiting.popleft()
            if consumer.epoch != self._epoch:
                self._forget(consumer)
            credit = consumer.rdy - len(consumer.in_flight)
            if credit <= 0:
                consumer.waiting = False
                self._gone_waiting -= consumer.gone
                continue
            taken: Segment | None = None
            try:
                taken = self._take(min(credit, DELIVERY_MESSAGES_MAX))
                if taken is None:
                    waiting.appendleft(consumer)
                    break
                if taken.batch.defer_ms:
                    self.deferred.add_stored(taken)
                    # `scan` knows whether its time is past.
                    self._set_alarm(now_s)
                    waiting.appendleft(consumer)
                    continue
                kept = self._sample(taken, consumer.sample_rate) if consumer.sample_rate else taken
                is_taken = kept is None or self._deliver(consumer, kept, now_s)
            except Exception:
                if taken is not None:
                    store.memory.put_back(taken)  # a defect loses no message
                waiting.append(consumer)  # behind the others, which may be served
                raise
            if not is_taken:
                # With what sampling would have dropped: the dice are cast again.
                store.memory.put_back(taken)
                consumer.waiting = False
                continue
            left_queue = True
            delivered = kept.last - kept.first if kept is not None else 0
            if kept is not taken:
                self._drop("sampled", taken.count - delivered)
            if not delivered:
                waiting.appendleft(consumer)
            elif credit > delivered:
                waiting.append(consumer)
            else:
                consumer.waiting = False
        if left_queue:
            self.made_room()
        return DISPATCH_MAX - left

    def _take(self, count_max: int) -> Segment | None:
        """The next messages; None if the backend says it has some and gives none.

        A deferred message that the backend kept comes alone.
        """
        store = self.store
        if store.backend.depth and (not store.memory.depth or self._random.random() < 0.5):
            segment = self._read(count_max)
            if segment is not None:
                return segment
            if not store.memory.depth:
                return None
        return store.memory.take(count_max, DELIVERY_NBYTES_MAX)

    def _read(self, count_max: int) -> Segment | None:
        """The next messages of the backend, without copies of what the topic gave once more."""
        read = self.store.read_backend
        for _ in range(_COPIES_READS_MAX):
            if self.recovered is None:
                break
            if self.is_recovering is None or not self.is_recovering():
                self.recovered = None
                break
            # Copies are read as many at a time as may be, whatever the client has credit for.
            segment = read(DELIVERY_MESSAGES_MAX, DELIVERY_NBYTES_MAX)
            if segment is None:
                return None
            kept = self.recovered.without_copies(segment)
            count = 0 if kept is None else kept.count
            self._drop("double", segment.count - count)
            if kept is not None:
                return self._first_of(kept, count_max)
        else:
            # Nothing but copies: the channel's task goes on.
            self.wake()
            return None
        return read(count_max, DELIVERY_NBYTES_MAX)

    def _first_of(self, segment: Segment, count_max: int) -> Segment:
        """The first messages; the others wait in memory, at its head."""
        if segment.count <= count_max or segment.batch.defer_ms:
            return segment
        middle = segment.first + count_max
        rest = Segment(segment.batch, middle, segment.last, segment.attempts)
        self.store.memory.put_back(rest)
        return Segment(segment.batch, segment.first, middle, segment.attempts)

    def _sample(self, segment: Segment, rate: int) -> Segment | None:
        # The original keeps a message if a number of 0..99 is not above the rate.
        keep = [
            index
            for index in range(segment.first, segment.last)
            if self._random.randrange(100) <= rate
        ]
        if not keep:
            return None
        if len(keep) == segment.count:
            return segment
        ids = segment.ids()
        kept_ids = [ids[index - segment.first] for index in keep]
        return Segment(segment.batch.extract(keep, kept_ids), 0, len(keep), segment.attempts)

    def _deliver(self, consumer: Subscription, segment: Segment, now_s: float) -> bool:
        deadline_s = now_s + consumer.msg_timeout_s
        delivery = Delivery(segment, now_s, deadline_s)
        if not consumer.offer(delivery):
            consumer.blocked = True
            return False
        count = wanted = segment.last - segment.first
        entries = dict.fromkeys(delivery.ids, delivery)
        in_flight = consumer.in_flight
        if in_flight:
            wanted += len(in_flight)
            in_flight.update(entries)
        else:
            consumer.in_flight = in_flight = entries
        consumer.message_count += count
        self._handed_out += count
        if len(in_flight) != wanted:
            self._count_doubles(wanted - len(in_flight))
        if deadline_s < consumer.look_s or now_s + COMPACT_AFTER_S < consumer.look_s:
            self._look_at(consumer, min(deadline_s, now_s + COMPACT_AFTER_S))
        return True

    def _count_doubles(self, count: int) -> None:
        """Messages took the place of a copy in flight at the same client: one FIN ends both."""
        self._taken_back += count
        self._drop("double", count)

    # From the clients

    def finish(self, consumer: Subscription, ids: list[bytes], now_s: float) -> Missed | None:
        """FIN. Returns the ids that are not in flight at this client, None if all were."""
        in_flight = consumer.in_flight
        before = len(in_flight)
        found = list(map(in_flight.pop, ids, repeat(None)))
        done = before - len(in_flight)
        consumer.finish_count += done
        self.finish_count += done
        if self.latencies is not None:
            self.latencies.finished(ids, found, now_s)
        missed: Missed | None = None
        if done < len(ids):
            # Before the credit is used: it may bring one of these very messages again.
            missed = self.missed(
                consumer,
                [id_ for id_, delivery in zip(ids, found, strict=True) if delivery is None],
            )
        self.offer_credit(consumer, now_s)
        return missed

    def requeue(
        self, consumer: Subscription, id_: bytes, delay_ms: int, now_s: float, now_ns: int
    ) -> bool:
        """REQ: back to the tail of the queue, or deferred. False if it is not in flight here."""
        if consumer.epoch != self._epoch:
            self._forget(consumer)
        delivery = consumer.in_flight.pop(id_, None)
        if delivery is None:
            return False
        if not delivery.written:
            delivery.some_gone = True
        segment = delivery.extract([id_])
        consumer.requeue_count += 1
        self.requeue_count += 1
        if delay_ms:
            self._defer(segment, now_s, now_ns, delay_ms)
        else:
            self.store.restore(segment)
        self.offer_credit(consumer, now_s)
        self.dispatch(now_s)
        return True

    def missed(self, consumer: Subscription, ids: list[bytes]) -> Missed:
        """Begin to find out whose messages those are that are not in flight at a client."""
        nobody_else = self.in_flight_count == len(consumer.in_flight)
        missed = Missed(consumer, ids, iter(()) if nobody_else else self.holders)
        missed.look(AT_ONCE_LOOKUPS_MAX)
        return missed

    # By time and by the operator

    def scan(self, now_s: float, now_ns: int) -> int:
        """Take back what timed out, queue what is due, and ask for the next scan.

        It does a bounded part of that, and asks to be called again at once if there is more.
        Returns what it did: messages and consumers looked at.
        """
        self.alarm_s = NEVER
        looks = 0
        while looks < SCAN_MAX and (consumer := self._looks.pop_due(now_s)) is not None:
            looks += 1 + self._look(consumer, now_s, SCAN_MAX - looks)
        looks += self._queue_due(now_ns)
        looks += _DELIVERY_LOOKS * self.dispatch(now_s)
        next_s = self._looks.next_s
        due_ns = self.deferred.next_ns
        if due_ns is not None:
            next_s = min(next_s, now_s + (due_ns - now_ns) / 1e9)
        self._set_alarm(next_s)
        return looks

    def _look(self, consumer: Subscription, now_s: float, messages_max: int) -> int:
        """Take back what timed out at a consumer, and see when to look again; messages seen."""
        consumer.look_s = NEVER
        # If a defect comes between, the next look is due as after any other.
        next_look_s = now_s + COMPACT_AFTER_S
        try:
            if consumer.epoch != self._epoch:
                self._forget(consumer)
            looks = self._take_back(consumer, now_s, messages_max)
            if consumer.gives_back or consumer.next_deadline_s() <= now_s:
                next_look_s = now_s
            else:
                looks += consumer.compact(now_s - COMPACT_AFTER_S)
                next_look_s = min(consumer.next_deadline_s(), next_look_s)
        finally:
            if consumer.in_flight:
                self._look_at(consumer, next_look_s)
            else:
                self._orphans.discard(consumer)
                self._looks.discard(consumer)
            # A time-out gives credit back.
            self._line_up(consumer)
        return looks

    def _take_back(self, consumer: Subscription, now_s: float, messages_max: int) -> int:
        """Queue again what timed out at a consumer, or what it gives back; what that cost."""
        if consumer.gives_back:
            segments = consumer.take_first(messages_max)
        else:
            segments = consumer.expired(now_s, messages_max)
        count = sum(segment.count for segment in segments)
        if consumer.gives_back:
            self._taken_back += count
        else:
            self.timeout_count += count
        self._restore(segments)
        return count + sum(segment.batch.bodies.nbytes // _LOOK_NBYTES for segment in segments)

    def _restore(self, segments: list[Segment]) -> None:
        """Queue all of them again, also if a defect comes between; then it is raised."""
        defect: Exception | None = None
        for segment in segments:
            try:
                self.store.restore(segment)
            except Exception as error:
                defect = error
        if defect is not None:
            raise defect

    def _queue_due(self, now_ns: int) -> int:
        """Queue deferred messages whose time has come; what that cost."""
        looks = 0
        for segment in self.deferred.due(now_ns):
            looks += 1 + segment.batch.bodies.nbytes // _LOOK_NBYTES
            self.store.restore(segment)
            if looks >= SCAN_MAX:
                break
        return looks

    def _look_at(self, consumer: Subscription, at_s: float) -> None:
        """Look for time-outs of a consumer at that time, which is before the one set already."""
        consumer.look_s = at_s
        self._looks.set(consumer, at_s)
        self._set_alarm(at_s)

    def _set_alarm(self, at_s: float) -> None:
        if at_s < self.alarm_s:
            self.alarm_s = at_s
            self.alarm(at_s)

    def _defer(self, segment: Segment, now_s: float, now_ns: int, delay_ms: int) -> None:
        self.deferred.add(segment, now_ns + delay_ms * 1_000_000)
        self._set_alarm(now_s + delay_ms / 1e3)

    # At the end

    def save_published(self, segment: Segment) -> None:
        """Put messages from the topic in the backend, whatever room there is in memory.

        Raises:
            BackendError: nothing changed.
        """
        count = segment.count
        self.store.overflow(segment)
        self.message_count += count

    def save(self) -> None:
        """Move everything to the backend: what waits, is in flight, is deferred, in this order.

        Spec: nsqd-internals, section 6.

        Raises:
            BackendError: the rest is still in memory.
        """
        self.store.save_memory()
        for consumer in self.holders:
            if consumer.epoch != self._epoch:
                self._forget(consumer)
            for segment in consumer.take(list(consumer.in_flight.items())):
                self._taken_back += segment.count
                self.store.memory.append(segment)
        self.store.save_memory()
        self.deferred.save(self.store.append_to_backend)

    def touch(
        self, consumer: Subscription, id_: bytes, now_s: float, max_msg_timeout_s: float
    ) -> bool:
        """TOUCH. False if the message is not in flight at this client."""
        if not consumer.touch(id_, now_s, max_msg_timeout_s):
            return False
        deadline_s = consumer.next_deadline_s()
        if deadline_s < consumer.look_s:
            self._look_at(consumer, deadline_s)
        return True

    def pause(self) -> None:
        """Stop deliveries; requeues and time-outs go on."""
        self.paused = True

    def unpause(self, now_s: float) -> None:
        self.paused = False
        self.dispatch(now_s)

    def empty(self) -> Iterator[None]:
        """Drop what waits, is in flight or deferred.

        What waits is gone at once, and what is in flight does not come back to the queue. The rest
        is done by whoever exhausts the iterator, which yields where a turn ends.
        """
        self._epoch += 1
        memory, backend_dropped = self.store.empty()
        deferred, self.deferred = self.deferred, Deferred()
        self._drop("emptied", memory.depth + len(deferred))
        self.dropped["emptied"] += backend_dropped
        self.made_room()
        return self._empty_rest(memory, deferred)

    def _empty_rest(self, *holders: Droppable) -> Iterator[None]:
        left = _FORGET_MAX
        for consumer in self.holders:
            left -= 1
            if consumer.epoch != self._epoch:
                left -= self._forget(consumer)
                self._line_up(consumer)
            if left <= 0:
                left = _FORGET_MAX
                self._serve_later()
                yield
        self._serve_later()
        for holder in holders:
            yield from free(holder)

    def _serve_later(self) -> None:
        if self.waiting and self.depth:
            self.wake()

    def _forget(self, consumer: Subscription) -> int:
        """Do a consumer's part in an `empty`; the messages that were in flight there."""
        consumer.epoch = self._epoch
        count = consumer.forget()
        self._taken_back += count
        self._drop("emptied", count)
        self._orphans.discard(consumer)
        return count

    def _drop(self, reason: str, count: int) -> None:
        self.dropped[reason] += count
        self._dropped_here += count

    def close(self) -> None:
        """The channel is deleted: it asks for no scan any more."""
        self.paused = True
        self.alarm_s = -NEVER  # no alarm comes before that
        self.alarm(NEVER)

    def check(self) -> str | None:
        """What is wrong with the channel's account of its messages, None if nothing is.

        It costs the same whatever the channel holds.
        """
        store = self.store
        in_flight = self.in_flight_count
        came = self.message_count + store.backend_out_count
        went = self.finish_count + self._dropped_here + store.backend_in_count
        held = store.memory.depth + in_flight + self.deferred_count
        if came != went + held:
            return f"{came} messages came, {went} went, {held} are held"
        if in_flight < 0:
            return f"{in_flight} messages are in flight"
        if in_flight and not self.consumers and not self._orphans:
            return f"{in_flight} messages are in flight at no client"
        return store.check()
