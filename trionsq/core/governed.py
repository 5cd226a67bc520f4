"""Channels that a policy applies to: bounds, expiry, retry schedules, shared limits.

`govern_channel` gives one its class of here, or takes it away again. What is dropped, and why, is
decided in `GovernedChannel.give_up`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.bounded import BoundedChannelStore
from trionsq.core.bounds import EXPIRED, Bounds
from trionsq.core.channel import PUT_BUSY, ChannelState
from trionsq.core.in_flight import Keeper
from trionsq.core.policies import (
    DEAD_LETTER,
    DROP_OLDEST,
    REFUSE,
    AppliedSettings,
)
from trionsq.core.recovered import ChannelStore
from trionsq.core.subscription import Subscription

__all__ = [
    "MAX_DROP",
    "POP_MESSAGES",
    "GovernedChannel",
    "govern_channel",
    "refuses",
    "renew_bounds",
    "set_class",
]

# Messages dropped in one call beside those that came: about a millisecond.
MAX_DROP: Final = 2_000
# Messages that are popped at once to be dropped.
POP_MESSAGES: Final = 500
# A delay of the schedule is shorter or longer by up to so much, so that what failed together does
# not come again together.
_JITTER: Final = 0.1
_MS_NS: Final = 1_000_000


class GovernedChannel(ChannelState):
    """A channel with a policy."""

    settings: AppliedSettings
    store: BoundedChannelStore
    # Whether messages are over a bound, and are being read to be dropped.
    _is_over = False

    def give_up(self, segment: Segment, reason: str) -> None:
        """Drop messages that were popped: the one place that decides what becomes of them."""
        keeper = self._keeper()
        if reason != EXPIRED or keeper is None or not keeper.keep_expired(segment):
            self.store.drop(reason, segment.count)
        self.made_room()

    def _keeper(self) -> Keeper | None:
        return self.in_flight.keeper if self.settings.when_expired == DEAD_LETTER else None

    def new_bounds(self, now_ns: Callable[[], int]) -> Bounds:
        """Return what the queue needs to know of the settings."""
        in_flight, keeper = self.in_flight, self._keeper()
        has_room = None if keeper is None else keeper.has_room
        bounds = Bounds(self.settings, now_ns, self.give_up, lambda: in_flight.count, has_room)
        if in_flight.keeper is not None and in_flight.keeper.is_final:
            bounds.ttl_ns = 0
        return bounds

    # Bounds

    def put(self, segment: Segment, now_s: float, now_ns: int) -> int:
        store = self.store
        bounds = store.bounds
        if bounds.drops_newest:
            return self._put_fitting(segment, now_s, now_ns)
        count = segment.last - segment.first
        cost = ChannelState.put(self, segment, now_s, now_ns)
        if bounds.drops_oldest and (
            bounds.max_messages or store.memory.nbytes + bounds.backend_nbytes > bounds.max_bytes
        ):
            self.trim(now_s, count)
        return cost

    def _put_fitting(self, segment: Segment, now_s: float, now_ns: int) -> int:
        fit, why = self.store.fitting(segment, self.deferred_count)
        if fit >= segment.count:
            return ChannelState.put(self, segment, now_s, now_ns)
        middle = segment.first + fit
        rest = Segment(segment.batch, middle, segment.last, segment.attempts)
        if fit:
            first = Segment(segment.batch, segment.first, middle, segment.attempts)
            ChannelState.put(self, first, now_s, now_ns)
        self._leave(rest, why)
        return PUT_BUSY

    def _leave(self, segment: Segment, reason: str) -> None:
        store = self.store
        if segment.batch.sequences is not None and segment.batch.defer_ms:
            # A log holds it anyway, and it takes no memory.
            self.message_count += self.deferred.add_segment(
                segment, segment.batch.timestamp_ns + segment.batch.defer_ms * _MS_NS
            )
            return
        self.message_count += segment.count
        if segment.batch.sequences is None:
            self.give_up(segment, reason)
        else:
            store.leave(segment)
            store.dropped[reason] += segment.count

    def full_reason(self, count: int, nbytes: int) -> str:
        """Return the bound that so much more would exceed, if then publishes are refused."""
        if self.settings.when_full != REFUSE:
            return ""
        return self.store.full_for(count, nbytes, self.deferred_count)

    def trim(self, now_s: float, came: int = 0) -> bool:
        """Drop the oldest messages that are over the bounds; return whether there are more.

        No more than came and some are dropped in one call.
        """
        store = self.store
        if self.settings.when_full != DROP_OLDEST:
            return False
        left = came + MAX_DROP
        self._note_over(False)
        while left > 0:
            over, reason = store.excess(self.deferred_count)
            if not over:
                return False
            segment = self._pop_oldest(min(over, left, POP_MESSAGES), now_s)
            if segment is None:
                self._note_over(True)
                return False
            left -= segment.count
            self.give_up(segment, reason)
        return True

    def _note_over(self, is_over: bool) -> None:
        self._is_over = is_over
        if type(self) is (GovernedChannel if is_over else _TrimmedChannel):
            set_class(self, _TrimmedChannel if is_over else GovernedChannel)

    def _pop_oldest(self, max_count: int, now_s: float) -> Segment | None:
        """Pop the messages that came first; what is not due yet goes to the deferred ones."""
        for _ in range(POP_MESSAGES):
            segment = self.store.pop_oldest(max_count)
            if segment is None or not segment.batch.defer_ms:
                return segment
            self.deferred.add_stored(segment, self.due_on_clock_ns)
            self.scan_at(now_s)
        return None

    def drop_old(self, now_s: float, wall_ns: int) -> bool:
        """Drop what waits and has become too old; return whether there may be more."""
        store = self.store
        before_ns, reason = store.bounds.oldest_allowed(wall_ns)
        if not reason:
            return False
        has_room = store.bounds.has_room if reason == EXPIRED else None
        left = MAX_DROP
        while left > 0 and store.depth:
            oldest_ns = store.oldest_ns()
            if oldest_ns is not None and oldest_ns > before_ns:
                return False
            if has_room is not None and not has_room():
                return False
            # Without a known age one message is read to find it out.
            segment = self._pop_oldest(POP_MESSAGES if oldest_ns is not None else 1, now_s)
            if segment is None:
                return False
            left -= segment.count
            kept = store.bounds.drop_older(segment, before_ns, reason)
            if kept is not None:
                store.memory.put_back(kept)
                self.wake_if_waiting()
                return False
        return left <= 0

    # Retry schedules

    def requeue(
        self, subscription: Subscription, id_: bytes, delay_ms: int, now_s: float, now_ns: int
    ) -> bool:
        if not delay_ms and self.settings.retry_delays_ns:
            delivery = subscription.in_flight.get(id_)
            if delivery is not None:
                delay_ms = self._retry_delay_ms(delivery.attempts)
        return super().requeue(subscription, id_, delay_ms, now_s, now_ns)

    def _retry_delay_ms(self, attempts: int) -> int:
        delays_ns = self.settings.retry_delays_ns
        delay_ns = delays_ns[min(max(attempts, 1), len(delays_ns)) - 1]
        jitter = 1 + _JITTER * (2 * self._random.random() - 1)
        return int(delay_ns * jitter) // _MS_NS

    def scan(self, now_s: float, now_ns: int) -> int:
        def return_timed_out(segment: Segment) -> None:
            delay_ms = self._retry_delay_ms(segment.attempts)
            if delay_ms:
                self._defer(segment, now_s, now_ns, delay_ms)
            else:
                self.store.restore(segment)

        if not self.settings.retry_delays_ns:
            return super().scan(now_s, now_ns)
        in_flight = self.in_flight
        before, in_flight.return_timed_out = in_flight.return_timed_out, return_timed_out
        try:
            return super().scan(now_s, now_ns)
        finally:
            in_flight.return_timed_out = before


class _TrimmedChannel(GovernedChannel):
    """One that goes on dropping when what it has to read for that is there."""

    def dispatch(self, now_s: float) -> int:
        cost = GovernedChannel.dispatch(self, now_s)
        if self._is_over:
            self.trim(now_s)
        return cost


class _SharedChannel(_TrimmedChannel):
    """One with a limit for all clients together."""

    def offer_credit(self, subscription: Subscription, now_s: float) -> None:
        ChannelState.offer_credit(self, subscription, now_s)
        if self.waiting and not self.deliver_later():
            # What this client gave back may be what another one waits for.
            self.dispatch(now_s)


def set_class(one: object, class_: type) -> None:
    """Make something one of another class, which has the same slots."""
    one.__class__ = class_
    if hasattr(one, "__dict__"):
        # CPython reads attributes slowly from the dict that a change of the class leaves behind:
        # it cost a tenth of an MPUB. A new dict is read as fast as any.
        one.__dict__ = dict(one.__dict__)


def govern_channel(
    channel: ChannelState, settings: AppliedSettings | None, now_ns: Callable[[], int]
) -> None:
    """Apply settings to a channel from now on; None: it is as without a policy."""
    if settings is None:
        if isinstance(channel, GovernedChannel):
            channel.store.end()
            set_class(channel.store, ChannelStore)
            set_class(channel, ChannelState)
            channel.in_flight.return_timed_out = channel.store.restore
        channel.settings = None
        return
    # Each class costs with each delivery, so it is the one that is needed.
    set_class(channel, _SharedChannel if settings.max_in_flight else GovernedChannel)
    set_class(channel.store, BoundedChannelStore)
    assert isinstance(channel, GovernedChannel)
    channel.settings = settings
    channel.in_flight.return_timed_out = channel.store.restore
    channel.store.begin(channel.new_bounds(now_ns))


def refuses(channel: ChannelState) -> bool:
    """Return whether a channel that is full has publishes refused."""
    return isinstance(channel, GovernedChannel) and channel.settings.when_full == REFUSE


def renew_bounds(channel: ChannelState, now_ns: Callable[[], int]) -> None:
    """Have a channel see that its `Keeper` is another one, or that it has become final."""
    if isinstance(channel, GovernedChannel):
        channel.store.begin(channel.new_bounds(now_ns))
