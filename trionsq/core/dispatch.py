"""The half of a channel that hands queued messages to clients: credit, turns, sampling.

Spec: tcp-protocol, sections 10 and 11.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from trionsq.core.batch import Segment, sampled
from trionsq.core.containers import NEVER
from trionsq.core.in_flight import COMPACT_AFTER_S, InFlight
from trionsq.core.queue import BackendError
from trionsq.core.recovered import ChannelStore
from trionsq.core.subscription import Delivery, Subscription

__all__ = [
    "MAX_DELIVERY_MESSAGES",
    "MAX_DISPATCH",
    "REST_S",
    "ChannelDispatch",
    "GovernsChannel",
    "GovernsQueue",
]

# A delivery is at most this much, and 256 KiB (`recovered.MAX_DELIVERY_BYTES`), so that clients
# share fairly and no frame buffer grows large.
MAX_DELIVERY_MESSAGES: Final = 512
# Deliveries made, or deferred messages read from the backend, in one turn: one or two milliseconds.
MAX_DISPATCH: Final = 64
REST_S: Final = 1.0
"""Seconds between two passes over a backend that has nothing but messages that are not due."""

_MS_NS: Final = 1_000_000


def _ignore_time(at_s: float) -> None:
    return None


def _ignore() -> None:
    return None


def _now() -> bool:
    return False


def _no_clock(now_s: float) -> int:
    return 0


class GovernsQueue(Protocol):
    """A policy at work on a topic or channel."""

    def trim(self, now_s: float, came: int = 0) -> bool:
        """Drop the oldest messages that are over the bounds; return whether there are more.

        No more than ``came`` and some are dropped in one call.
        """

    def drop_old(self, now_s: float, wall_ns: int) -> bool:
        """Drop what waits and has become too old; return whether there may be more."""


class GovernsChannel(GovernsQueue, Protocol):
    """A policy at work on a channel; see `trionsq.core.governed.ChannelGovernor`."""

    def renew_bounds(self, now_ns: Callable[[], int]) -> None:
        """See that the `Keeper` is another one, or that it has become final."""

    def full_reason(self, count: int, nbytes: int) -> str:
        """Return the bound that so much more would exceed, if then publishes are refused."""

    def put(self, segment: Segment, now_s: float, now_ns: int) -> int:
        """Take the place of `ChannelState.put`."""

    def retry_delay_ms(self, attempts: int) -> int:
        """Return how long a message waits that comes back after so many attempts."""

    def begin_scan(self, now_s: float, now_ns: int) -> None:
        """`ChannelState.scan` is about to return what timed out."""

    def dispatched(self, now_s: float) -> None:
        """`ChannelDispatch.dispatch` has ended."""

    def pass_on(self, now_s: float) -> None:
        """A client without credit has given something back."""


class ChannelDispatch:
    """Deliveries of one channel.

    A client has credit while it has fewer messages in flight than its RDY. Clients with credit
    wait in a line; each gets one delivery in turn.

    Attributes:
        wake: makes the channel's task call `dispatch` in a turn to come.
        deliver_later: makes `dispatch` be called at the end of the present turn, for all who have
            given credit by then; False if there is no turn.
        wake_at: gets the monotonic time at which `scan` should run, `NEVER` if it need not.
        wake_at_s: the time that `wake_at` got last.
        due_on_clock_ns: converts a stored due time, of the wall clock, to the clock of `deferred`.
        clock_ns: converts monotonic seconds to the clock of `deferred`.
        sheds: whether the backend keeps deferred messages, because memory has too many bytes. They
            are looked for in passes over all that the backend has, `REST_S` apart.
        made_room: is called when messages have left the memory queue.
        store: the queue.
        in_flight: the messages that clients hold.
        deferred: messages that wait for their due time.
        waiting: the line of clients with credit; at most half of them are disconnected.
        paused: whether deliveries are stopped.
        random: makes the choices.
        governor: the policy at work on the channel; None without one.
    """

    def __init__(self, store: ChannelStore, random: Random) -> None:
        self.store = store
        self.wake: Callable[[], None] = _ignore
        self.deliver_later: Callable[[], bool] = _now
        self.wake_at: Callable[[float], None] = _ignore_time
        self.wake_at_s = NEVER
        self.due_on_clock_ns: Callable[[int], int] = int
        self.clock_ns: Callable[[float], int] = _no_clock
        self.sheds = False
        # Messages of the backend that a pass has put back, and when the next pass begins.
        self._shed_count = 0
        self._rests_until_s = 0.0
        self.made_room: Callable[[], None] = _ignore
        self.in_flight = InFlight(store, self.scan_at)
        self.deferred = store.backend.new_deferred(self.scan_at)
        self.waiting: deque[Subscription] = deque()
        self.paused = False
        self._gone_waiting = 0
        self.random = random
        self.governor: GovernsChannel | None = None

    def scan_at(self, at_s: float) -> None:
        """Have `scan` run at that time at the latest."""
        if at_s < self.wake_at_s:
            self.wake_at_s = at_s
            self.wake_at(at_s)

    def set_ready(self, subscription: Subscription, rdy: int, now_s: float) -> None:
        """Set the RDY of a client."""
        subscription.rdy = rdy
        self.offer_credit(subscription, now_s)

    def unblock(self, subscription: Subscription, now_s: float) -> None:
        """Note that the client takes deliveries again, after it refused one."""
        subscription.blocked = False
        self.offer_credit(subscription, now_s)

    def offer_credit(self, subscription: Subscription, now_s: float) -> None:
        """Put a client with credit in the line, and deliver if messages wait."""
        if not subscription.waiting:
            if (
                subscription.rdy <= len(subscription.in_flight)
                or subscription.blocked
                or subscription.gone
            ):
                if self.governor is not None:
                    self.governor.pass_on(now_s)
                return
            subscription.waiting = True
            self.waiting.append(subscription)
        if (self.store.memory.depth or self.store.backend.depth) and not self.deliver_later():
            self.dispatch(now_s)

    def line_up(self, subscription: Subscription) -> None:
        """Put a client with credit in the line; the caller sees to the deliveries."""
        if not (
            subscription.waiting
            or subscription.rdy <= len(subscription.in_flight)
            or subscription.blocked
            or subscription.gone
        ):
            subscription.waiting = True
            self.waiting.append(subscription)

    def leave_line(self, subscription: Subscription) -> None:
        """Note that a client is disconnected. It stays in the line until that is half stale."""
        subscription.gone = True
        subscription.rdy = 0
        if subscription.waiting:
            self._gone_waiting += 1
            if 2 * self._gone_waiting > len(self.waiting):
                # An idle channel whose clients come and go would gather them here.
                self.waiting = deque(one for one in self.waiting if not one.gone)
                self._gone_waiting = 0

    def dispatch(self, now_s: float) -> int:
        """Deliver to the clients in the line, one delivery each in turn.

        After `MAX_DISPATCH` deliveries the channel's task goes on, in its next turn. Returns how
        many clients were looked at.
        """
        store, waiting = self.store, self.waiting
        left = MAX_DISPATCH
        if self.paused or (now_s < self._rests_until_s and self._is_resting(now_s)):
            if self.governor is not None:
                self.governor.dispatched(now_s)
            return 0
        messages_left = False
        while waiting and (store.memory.depth or store.backend.depth):
            if not left:
                self.wake_if_waiting()
                break
            left -= 1
            subscription = waiting.popleft()
            if subscription.epoch != self.in_flight.epoch:
                self.in_flight.drop_emptied(subscription)
            credit = subscription.rdy - len(subscription.in_flight)
            if credit <= 0:
                subscription.waiting = False
                self._gone_waiting -= subscription.gone
                continue
            segment: Segment | None = None
            try:
                segment = store.pop_segment(min(credit, MAX_DELIVERY_MESSAGES))
                if segment is None:
                    waiting.appendleft(subscription)
                    if store.must_read_on:
                        self.wake()
                    break
                if segment.batch.defer_ms:
                    waiting.appendleft(subscription)
                    if self.sheds and self._put_off(segment, now_s):
                        if self._is_resting(now_s):
                            break
                        continue
                    self.deferred.add_stored(segment, self.due_on_clock_ns)
                    # `scan` finds out whether its time has come.
                    self.scan_at(now_s)
                    continue
                rate = subscription.sample_rate
                kept = sampled(segment, rate, self.random) if rate else segment
                is_taken = kept is None or self._deliver(subscription, kept, now_s)
            except Exception:
                if segment is not None:
                    store.memory.put_back(segment)  # a defect loses no message
                waiting.append(subscription)  # behind the others, which may be served
                raise
            if not is_taken:
                # The whole segment: sampling is applied again at the next delivery.
                store.memory.put_back(segment)
                subscription.waiting = False
                continue
            messages_left = True
            self._shed_count = 0
            delivered = kept.last - kept.first if kept is not None else 0
            if kept is not segment:
                store.drop("sampled", segment.count - delivered)
            if not delivered:
                waiting.appendleft(subscription)
            elif credit > delivered:
                waiting.append(subscription)
            else:
                subscription.waiting = False
        if messages_left:
            self.made_room()
        if self.governor is not None:
            self.governor.dispatched(now_s)
        return MAX_DISPATCH - left

    def defer(self, segment: Segment, now_s: float, now_ns: int, delay_ms: int) -> int:
        """As `defer_segment`, and have `scan` run when they are due."""
        count = self.defer_segment(segment, now_ns + delay_ms * 1_000_000)
        self.scan_at(now_s + delay_ms / 1e3)
        return count

    def defer_segment(self, segment: Segment, due_ns: int) -> int:
        """Keep messages until they are due; return how many, as `DeferredMessages.add_segment`."""
        if self.sheds and self._shed(segment, due_ns):
            return segment.count
        return self.deferred.add_segment(segment, due_ns)

    def _shed(self, segment: Segment, due_ns: int) -> bool:
        wall_ns = due_ns - self.due_on_clock_ns(0)
        try:
            self.store.append_to_backend(segment, [wall_ns] * segment.count)
        except BackendError:
            return False  # over the limit rather than lost
        return True

    def _put_off(self, segment: Segment, now_s: float) -> bool:
        """Return a deferred message to the tail of the backend; False if it is due."""
        batch = segment.batch
        due_ns = self.due_on_clock_ns(batch.timestamp_ns + batch.defer_ms * _MS_NS)
        if due_ns <= self.clock_ns(now_s) or not self._shed(segment, due_ns):
            return False
        self._shed_count += 1
        if self._shed_count >= self.store.backend.depth:
            self._shed_count = 0
            self._rests_until_s = now_s + REST_S
            self.scan_at(self._rests_until_s)
        return True

    def _is_resting(self, now_s: float) -> bool:
        return now_s < self._rests_until_s and not self.store.memory.depth

    def _deliver(self, subscription: Subscription, segment: Segment, now_s: float) -> bool:
        """Hand one delivery to a client; False if the client takes no more now."""
        deadline_s = now_s + subscription.msg_timeout_s
        delivery = Delivery(segment, now_s, deadline_s)
        if not subscription.offer(delivery):
            subscription.blocked = True
            return False
        count = expected = segment.last - segment.first
        in_flight = subscription.in_flight
        if count == 1:
            expected += len(in_flight)
            in_flight[delivery.ids[0]] = delivery
        elif in_flight:
            expected += len(in_flight)
            in_flight.update(dict.fromkeys(delivery.ids, delivery))
        else:
            subscription.in_flight = in_flight = dict.fromkeys(delivery.ids, delivery)
        subscription.message_count += count
        self.in_flight.count += count
        if len(in_flight) != expected:
            self.in_flight.drop_replaced(expected - len(in_flight))
        compact_s = now_s + COMPACT_AFTER_S
        if deadline_s < subscription.check_s or compact_s < subscription.check_s:
            self.in_flight.schedule_check(subscription, min(deadline_s, compact_s))
        return True

    def wake_if_waiting(self) -> None:
        """Wake the channel's task if there are messages, and clients with credit."""
        if self.waiting and self.store.depth:
            self.wake()
