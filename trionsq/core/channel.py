"""A channel's decisions: what is queued, deferred, in flight, and which client gets what next.

Synchronous, and told the time; `trionsq.broker` drives it. One invariant holds after every call:

    message_count = finish_count + depth + in flight + deferred + dropped

less what the backend held at the start, which no counter counts.

Spec: nsqd-internals, section 2; tcp-protocol, sections 10 and 11.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from random import Random
from typing import Final

from trionsq.core.backend import Backend
from trionsq.core.batch import Segment
from trionsq.core.consumer import Consumer
from trionsq.core.deferred import Deferred
from trionsq.core.delivery import Delivery
from trionsq.core.latency import Latencies
from trionsq.core.recovered import Recovered
from trionsq.core.store import Store

__all__ = ["AT_ONCE_MESSAGES_MAX", "DELIVERY_MESSAGES_MAX", "DELIVERY_NBYTES_MAX", "Channel"]

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
_NEVER: Final = float("inf")


def _not_carried(segment: Segment) -> bool:
    return False


def _raise(error: Exception) -> None:
    raise error


def _no_alarm(at_s: float) -> None:
    return None


class Channel:
    """One channel of a topic.

    Times are monotonic seconds (``now_s``); due times of deferred messages are wall clock
    nanoseconds (``now_ns``).

    Attributes:
        carry: takes a segment to the channel's task when a client is waiting for messages, False
            if it can't; the task calls `arrived` with it. It may be empty: a mere wake-up.
        wake: makes the channel's task call `dispatch` in a turn to come.
        alarm: is told the monotonic time at which `scan` should run.
        alarm_s: the earliest such time that still stands.
        made_room: is called when messages have left the memory queue.
        is_recovering: tells whether the backend reads what an unclean end left; None if there was
            none.
        recovered: what the topic may have given once more; None if there is no need to know.
        failed: is told of an exception that nobody expected, while messages that were just put in
            the queue were handed to a client; it is not the topic's concern.
        consumers: the clients subscribed now.
        waiting: those with credit, the next to be served in front.
        deferred: messages that wait for their due time.
        dropped: messages given up on purpose, by reason.
        latencies: of the messages finished of late; None if nobody wants to know them.
    """

    def __init__(self, name: str, mem_queue_size: int, backend: Backend, random: Random) -> None:
        self.name = name
        self.store = Store(mem_queue_size, backend)
        self.paused = False
        self.consumers: dict[Consumer, None] = {}
        self.waiting: deque[Consumer] = deque()
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.dropped: Counter[str] = Counter()
        self.latencies: Latencies | None = None
        self.carry: Callable[[Segment], bool] = _not_carried
        self.wake: Callable[[], None] = lambda: None
        self.alarm: Callable[[float], None] = _no_alarm
        self.alarm_s = _NEVER
        self.made_room: Callable[[], None] = lambda: None
        self.is_recovering: Callable[[], bool] | None = None
        self.recovered: Recovered | None = None
        self.failed: Callable[[Exception], None] = _raise
        self._orphans: dict[Consumer, None] = {}
        self.deferred = Deferred()
        self._random = random

    def __repr__(self) -> str:
        return (
            f"<Channel {self.name} depth={self.depth} in_flight={self.in_flight_count} "
            f"deferred={self.deferred_count} clients={len(self.consumers)}>"
        )

    @property
    def depth(self) -> int:
        """Messages that wait for a client; those in flight and deferred are not counted."""
        return self.store.depth

    @property
    def in_flight_count(self) -> int:
        return sum(len(consumer.in_flight) for consumer in (*self.consumers, *self._orphans))

    @property
    def held(self) -> int:
        """Messages in memory: those that wait there, are in flight, or deferred."""
        return self.store.in_memory + self.in_flight_count + self.deferred_count

    @property
    def deferred_count(self) -> int:
        return len(self.deferred)

    @property
    def holders(self) -> Iterator[Consumer]:
        """Whoever may have messages in flight: also consumers whose connection has ended."""
        yield from self.consumers
        yield from self._orphans

    def peek(self) -> Iterator[Segment]:
        """What waits in memory, to be looked at only. Nothing may change meanwhile."""
        return self.store.memory.peek()

    # From the topic

    def put(self, segment: Segment, now_s: float, now_ns: int) -> None:
        """Take messages from the topic; the segment belongs to the channel from now on.

        Raises:
            BackendError: there is no room for them; nothing changed.
        """
        taken = segment.last - segment.first
        defer_ms = segment.batch.defer_ms
        if defer_ms:
            self._defer(segment, now_s, now_ns, defer_ms)
            self.message_count += taken
            return
        kept = self.store.admit(segment)
        self.message_count += taken
        wanted = self.waiting and not self.paused
        if kept is None:
            if wanted:
                # The backend has all of it. An empty segment makes the task look there.
                self.carry(Segment(segment.batch, segment.last, segment.last))
        elif wanted and kept.last - kept.first <= AT_ONCE_MESSAGES_MAX and not self.store.carried:
            self.store.memory.append(kept)
            try:
                self.dispatch(now_s)
            except Exception as error:
                # The messages are in the queue, so to the topic this is no failure.
                self.failed(error)
        elif wanted and self.carry(kept):
            self.store.carried += kept.last - kept.first
        else:
            self.store.memory.append(kept)

    def arrived(self, segment: Segment) -> None:
        """Queue what was carried; `dispatch` is the caller's next step."""
        if segment.last > segment.first:
            self.store.carried -= segment.last - segment.first
            self.store.memory.append(segment)

    # To the clients

    def add_consumer(self, consumer: Consumer) -> None:
        """Begin a subscription. Its RDY is 0."""
        self.consumers[consumer] = None

    def remove_consumer(
        self, consumer: Consumer, unwritten: list[Delivery], requeue_now: bool, now_s: float
    ) -> None:
        """End a subscription.

        What is in flight stays so until its deadline, or goes back at once if ``requeue_now``
        (--requeue-on-disconnect). ``unwritten`` deliveries never reached the socket: they go back
        to the head of the queue, their attempts unchanged.
        """
        del self.consumers[consumer]
        consumer.gone = True
        consumer.rdy = 0
        if consumer.waiting:
            # An idle channel whose clients come and go would gather them here.
            self.waiting.remove(consumer)
            consumer.waiting = False
        for delivery in reversed(unwritten):
            for segment in consumer.take([(id_, delivery) for id_ in consumer.present(delivery)]):
                segment.attempts -= 1
                self.store.memory.put_back(segment)
        if requeue_now:
            for segment in consumer.take(list(consumer.in_flight.items())):
                self.store.restore(segment)
        if consumer.in_flight:
            self._orphans[consumer] = None
        self.dispatch(now_s)

    def set_ready(self, consumer: Consumer, rdy: int, now_s: float) -> None:
        """Set the RDY of a client."""
        consumer.rdy = rdy
        self.offer_credit(consumer, now_s)

    def unblock(self, consumer: Consumer, now_s: float) -> None:
        """The client's hand-over queue has room again."""
        consumer.blocked = False
        self.offer_credit(consumer, now_s)

    def offer_credit(self, consumer: Consumer, now_s: float) -> None:
        """Put a client with credit in the line; serve at once if there are messages."""
        if not consumer.waiting:
            if consumer.rdy <= len(consumer.in_flight) or consumer.blocked or consumer.gone:
                return
            consumer.waiting = True
            self.waiting.append(consumer)
        if self.store.memory.depth or self.store.backend.depth:
            self.dispatch(now_s)

    def dispatch(self, now_s: float) -> None:
        """Hand messages to waiting clients, one delivery each in turn."""
        store, waiting = self.store, self.waiting
        if self.paused:
            return
        left_queue = False
        while waiting and (store.memory.depth or store.backend.depth):
            consumer = waiting.popleft()
            credit = consumer.rdy - len(consumer.in_flight)
            if credit <= 0:
                consumer.waiting = False
                continue
            taken: Segment | None = None
            try:
                taken = self._take(min(credit, DELIVERY_MESSAGES_MAX))
                if taken is None:
                    waiting.appendleft(consumer)
                    break
                kept = self._sample(taken, consumer.sample_rate) if consumer.sample_rate else taken
                is_taken = kept is None or self._deliver(consumer, kept, now_s)
            except Exception:
                if taken is not None:
                    store.memory.put_back(taken)  # a defect loses no message
                consumer.waiting = False
                raise
            if not is_taken:
                # With what sampling would have dropped: the dice are cast again.
                store.memory.put_back(taken)
                consumer.waiting = False
                continue
            left_queue = True
            delivered = kept.last - kept.first if kept is not None else 0
            if kept is not taken:
                self.dropped["sampled"] += taken.count - delivered
            if not delivered:
                waiting.appendleft(consumer)
            elif credit > delivered:
                waiting.append(consumer)
            else:
                consumer.waiting = False
        if left_queue:
            self.made_room()

    def _take(self, count_max: int) -> Segment | None:
        """The next messages; None if the backend says it has some and gives none."""
        store = self.store
        if store.backend.depth and (not store.memory.depth or self._random.random() < 0.5):
            segment = self._read(count_max)
            while segment is not None and segment.batch.defer_ms:
                self._keep_deferred(segment)
                segment = self._read(count_max)
            if segment is not None:
                return segment
            if not store.memory.depth:
                return None
        return store.memory.take(count_max, DELIVERY_NBYTES_MAX)

    def _read(self, count_max: int) -> Segment | None:
        """The next messages of the backend, without copies of what the topic gave once more."""
        read = self.store.backend.read
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
            self.dropped["double"] += segment.count - count
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

    def _deliver(self, consumer: Consumer, segment: Segment, now_s: float) -> bool:
        deadline_s = now_s + consumer.msg_timeout_s
        delivery = Delivery(segment, now_s, deadline_s)
        if not consumer.offer(delivery):
            consumer.blocked = True
            return False
        entries = dict.fromkeys(delivery.ids, delivery)
        if consumer.in_flight:
            consumer.in_flight.update(entries)
        else:
            consumer.in_flight = entries
        consumer.message_count += segment.last - segment.first
        if deadline_s < self.alarm_s or now_s + COMPACT_AFTER_S < self.alarm_s:
            self._set_alarm(min(deadline_s, now_s + COMPACT_AFTER_S))
        return True

    # From the clients

    def finish(self, consumer: Consumer, ids: list[bytes], now_s: float) -> list[tuple[bytes, str]]:
        """FIN. Returns the ids that are not in flight at this client, each with the reason."""
        in_flight = consumer.in_flight
        before = len(in_flight)
        found = list(map(in_flight.pop, ids, repeat(None)))
        done = before - len(in_flight)
        consumer.finish_count += done
        self.finish_count += done
        if self.latencies is not None:
            self.latencies.finished(ids, found, now_s)
        refused: list[tuple[bytes, str]] = []
        if done < len(ids):
            # Before the credit is used: it may bring one of these very messages again.
            missed = [id_ for id_, delivery in zip(ids, found, strict=True) if delivery is None]
            refused = [(id_, self.why_not_in_flight(id_)) for id_ in missed]
        self.offer_credit(consumer, now_s)
        return refused

    def requeue(
        self, consumer: Consumer, id_: bytes, delay_ms: int, now_s: float, now_ns: int
    ) -> bool:
        """REQ: back to the tail of the queue, or deferred. False if it is not in flight here."""
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

    def why_not_in_flight(self, id_: bytes) -> str:
        """The reason that FIN, REQ and TOUCH give for an id that is not in flight at a client."""
        owned = any(id_ in consumer.in_flight for consumer in (*self.consumers, *self._orphans))
        return "client does not own message" if owned else "ID not in flight"

    # By time and by the operator

    def scan(self, now_s: float, now_ns: int) -> None:
        """Take back what timed out, queue what is due, and ask for the next scan."""
        self.alarm_s = _NEVER
        for consumer in (*self.consumers, *self._orphans):
            if not consumer.in_flight:
                continue
            expired = consumer.expired(now_s)
            self.timeout_count += sum(segment.count for segment in expired)
            self._restore(expired)
            consumer.compact(now_s - COMPACT_AFTER_S)
            # A time-out gives credit back.
            self.offer_credit(consumer, now_s)
        for consumer in [orphan for orphan in self._orphans if not orphan.in_flight]:
            del self._orphans[consumer]
        self._restore(self.deferred.due(now_ns))
        self.dispatch(now_s)
        self._set_alarm(self._next_scan_s(now_s, now_ns))

    def _restore(self, segments: Iterable[Segment]) -> None:
        """Queue all of them again, also if a defect comes between; then it is raised."""
        defect: Exception | None = None
        for segment in segments:
            try:
                self.store.restore(segment)
            except Exception as error:
                defect = error
        if defect is not None:
            raise defect

    def _next_scan_s(self, now_s: float, now_ns: int) -> float:
        next_s = _NEVER
        for consumer in (*self.consumers, *self._orphans):
            if consumer.in_flight:
                next_s = min(next_s, consumer.next_deadline_s(), now_s + COMPACT_AFTER_S)
        due_ns = self.deferred.next_ns
        if due_ns is not None:
            next_s = min(next_s, now_s + (due_ns - now_ns) / 1e9)
        return next_s

    def _set_alarm(self, at_s: float) -> None:
        if at_s < self.alarm_s:
            self.alarm_s = at_s
            self.alarm(at_s)

    def _keep_deferred(self, segment: Segment) -> None:
        """Wait for the due time of a message that the backend kept. `scan` knows if it is past."""
        self.deferred.add_stored(segment)
        self._set_alarm(0.0)

    def _defer(self, segment: Segment, now_s: float, now_ns: int, delay_ms: int) -> None:
        self.deferred.add(segment, now_ns + delay_ms * 1_000_000)
        self._set_alarm(now_s + delay_ms / 1e3)

    # At the end

    def save_published(self, segment: Segment) -> None:
        """Put messages from the topic in the backend, whatever room there is in memory.

        Raises:
            BackendError: nothing changed.
        """
        self.store.overflow(segment)
        self.message_count += segment.count

    def save(self) -> None:
        """Move everything to the backend: what waits, is in flight, is deferred, in this order.

        Spec: nsqd-internals, section 6.

        Raises:
            BackendError: the rest is still in memory.
        """
        self.store.save_memory()
        for consumer in (*self.consumers, *self._orphans):
            for segment in consumer.take(list(consumer.in_flight.items())):
                self.store.memory.append(segment)
        self.store.save_memory()
        self.deferred.save(self.store.backend.append)

    def touch(self, consumer: Consumer, id_: bytes, now_s: float, max_msg_timeout_s: float) -> bool:
        """TOUCH. False if the message is not in flight at this client."""
        if not consumer.touch(id_, now_s, max_msg_timeout_s):
            return False
        self._set_alarm(consumer.next_deadline_s())
        return True

    def pause(self) -> None:
        """Stop deliveries; requeues and time-outs go on."""
        self.paused = True

    def unpause(self, now_s: float) -> None:
        self.paused = False
        self.dispatch(now_s)

    def empty(self, now_s: float) -> None:
        """Drop what waits, is in flight or deferred. What is being carried is the caller's part."""
        dropped = self.store.empty() + self.deferred.clear()
        for consumer in (*self.consumers, *self._orphans):
            dropped += consumer.forget()
        self._orphans.clear()
        self.dropped["emptied"] += dropped
        for consumer in self.consumers:
            self.offer_credit(consumer, now_s)
        self.made_room()
