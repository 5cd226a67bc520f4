"""Channels that a policy applies to: bounds, expiry, retry schedules, shared limits.

`govern_channel` gives one its `ChannelGovernor`, or takes it away again. What is dropped, and why,
is decided in `ChannelGovernor.give_up`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.bounded import BoundedStore, DeliveryGovernor, end_bounds
from trionsq.core.bounds import EXPIRED, Bounds
from trionsq.core.channel import PUT_BUSY, ChannelState
from trionsq.core.in_flight import Keeper
from trionsq.core.policies import (
    DEAD_LETTER,
    DROP_OLDEST,
    REFUSE,
    AppliedSettings,
)

__all__ = [
    "MAX_DROP",
    "POP_MESSAGES",
    "ChannelGovernor",
    "govern_channel",
    "refuses",
    "renew_bounds",
]

# Messages dropped in one call beside those that came: about a millisecond.
MAX_DROP: Final = 2_000
# Messages that are popped at once to be dropped.
POP_MESSAGES: Final = 500
# A delay of the schedule is shorter or longer by up to so much, so that what failed together does
# not come again together.
_JITTER: Final = 0.1
_MS_NS: Final = 1_000_000


class ChannelGovernor:
    """A policy at work on a channel.

    Attributes:
        channel: the channel.
        settings: what the policy sets of it.
        bounded: its queue.
    """

    __slots__ = ("_is_over", "_now_ns", "_now_s", "bounded", "channel", "settings")

    def __init__(
        self, channel: ChannelState, settings: AppliedSettings, now_ns: Callable[[], int]
    ) -> None:
        """``now_ns`` is the wall clock."""
        self.channel = channel
        self.settings = settings
        # Whether messages are over a bound, and are being read to be dropped.
        self._is_over = False
        # The times of the scan.
        self._now_s = 0.0
        self._now_ns = 0
        self.bounded: BoundedStore
        self.renew_bounds(now_ns)
        has_schedule = bool(settings.retry_delays_ns)
        way = self._return_timed_out if has_schedule else channel.store.restore
        channel.in_flight.return_timed_out = way

    def renew_bounds(self, now_ns: Callable[[], int]) -> None:
        """See that the `Keeper` is another one, or that it has become final."""
        store = self.channel.store
        self.bounded = BoundedStore(store, self._new_bounds(now_ns))
        store.governor = DeliveryGovernor(store, self.bounded)

    def give_up(self, segment: Segment, reason: str) -> None:
        """Drop messages that were popped: the one place that decides what becomes of them."""
        keeper = self._keeper()
        if reason != EXPIRED or keeper is None or not keeper.keep_expired(segment):
            self.channel.store.drop(reason, segment.count)
        self.channel.made_room()

    def _keeper(self) -> Keeper | None:
        return self.channel.in_flight.keeper if self.settings.when_expired == DEAD_LETTER else None

    def _new_bounds(self, now_ns: Callable[[], int]) -> Bounds:
        in_flight, keeper = self.channel.in_flight, self._keeper()
        has_room = None if keeper is None else keeper.has_room
        bounds = Bounds(self.settings, now_ns, self.give_up, lambda: in_flight.count, has_room)
        if in_flight.keeper is not None and in_flight.keeper.is_final:
            bounds.ttl_ns = 0
        return bounds

    # Bounds

    def put(self, segment: Segment, now_s: float, now_ns: int) -> int:
        """As `ChannelState.put`, within the bounds."""
        bounds = self.bounded.bounds
        if bounds.drops_newest:
            return self._put_fitting(segment, now_s, now_ns)
        count = segment.last - segment.first
        cost = self.channel.put(segment, now_s, now_ns, False)
        if bounds.drops_oldest and (bounds.max_messages or self.bounded.nbytes > bounds.max_bytes):
            self.trim(now_s, count)
        return cost

    def _put_fitting(self, segment: Segment, now_s: float, now_ns: int) -> int:
        channel = self.channel
        fit, why = self.bounded.fitting(segment, channel.deferred_count)
        if fit >= segment.count:
            return channel.put(segment, now_s, now_ns, False)
        middle = segment.first + fit
        rest = Segment(segment.batch, middle, segment.last, segment.attempts)
        if fit:
            first = Segment(segment.batch, segment.first, middle, segment.attempts)
            channel.put(first, now_s, now_ns, False)
        self._leave(rest, why)
        return PUT_BUSY

    def _leave(self, segment: Segment, reason: str) -> None:
        channel = self.channel
        if segment.batch.sequences is not None and segment.batch.defer_ms:
            # A log holds it anyway, and it takes no memory.
            channel.message_count += channel.deferred.add_segment(
                segment, segment.batch.timestamp_ns + segment.batch.defer_ms * _MS_NS
            )
            return
        channel.message_count += segment.count
        if segment.batch.sequences is None:
            self.give_up(segment, reason)
        else:
            self.bounded.leave(segment)
            channel.store.dropped[reason] += segment.count

    def full_reason(self, count: int, nbytes: int) -> str:
        """Return the bound that so much more would exceed, if then publishes are refused."""
        if self.settings.when_full != REFUSE:
            return ""
        return self.bounded.full_for(count, nbytes, self.channel.deferred_count)

    def trim(self, now_s: float, came: int = 0) -> bool:
        """Drop the oldest messages that are over the bounds; return whether there are more.

        No more than ``came`` and some are dropped in one call.
        """
        if self.settings.when_full != DROP_OLDEST:
            return False
        left = came + MAX_DROP
        self._is_over = False
        while left > 0:
            over, reason = self.bounded.excess(self.channel.deferred_count)
            if not over:
                return False
            segment = self._pop_oldest(min(over, left, POP_MESSAGES), now_s)
            if segment is None:
                self._is_over = True
                return False
            left -= segment.count
            self.give_up(segment, reason)
        return True

    def dispatched(self, now_s: float) -> None:
        """Go on dropping when what has to be read for that is there."""
        if self._is_over:
            self.trim(now_s)

    def _pop_oldest(self, max_count: int, now_s: float) -> Segment | None:
        """Pop the messages that came first; what is not due yet goes to the deferred ones."""
        channel = self.channel
        for _ in range(POP_MESSAGES):
            segment = self.bounded.pop_oldest(max_count)
            if segment is None or not segment.batch.defer_ms:
                return segment
            channel.deferred.add_stored(segment, channel.due_on_clock_ns)
            channel.scan_at(now_s)
        return None

    def drop_old(self, now_s: float, wall_ns: int) -> bool:
        """Drop what waits and has become too old; return whether there may be more."""
        store, bounds = self.channel.store, self.bounded.bounds
        before_ns, reason = bounds.oldest_allowed(wall_ns)
        if not reason:
            return False
        has_room = bounds.has_room if reason == EXPIRED else None
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
            kept = bounds.drop_older(segment, before_ns, reason)
            if kept is not None:
                store.memory.put_back(kept)
                self.channel.wake_if_waiting()
                return False
        return left <= 0

    # Retry schedules

    def retry_delay_ms(self, attempts: int) -> int:
        """Return how long a message waits that comes back after so many attempts."""
        delays_ns = self.settings.retry_delays_ns
        if not delays_ns:
            return 0
        delay_ns = delays_ns[min(max(attempts, 1), len(delays_ns)) - 1]
        jitter = 1 + _JITTER * (2 * self.channel.random.random() - 1)
        return int(delay_ns * jitter) // _MS_NS

    def begin_scan(self, now_s: float, now_ns: int) -> None:
        """Note the time, for messages that time out."""
        self._now_s, self._now_ns = now_s, now_ns

    def _return_timed_out(self, segment: Segment) -> None:
        delay_ms = self.retry_delay_ms(segment.attempts)
        if delay_ms:
            self.channel.defer(segment, self._now_s, self._now_ns, delay_ms)
        else:
            self.channel.store.restore(segment)

    # Shared limits

    def pass_on(self, now_s: float) -> None:
        """Deliver what a client gave back, that has no credit, to one that waits for it."""
        channel = self.channel
        if self.settings.max_in_flight and channel.waiting and not channel.deliver_later():
            channel.dispatch(now_s)


def govern_channel(
    channel: ChannelState, settings: AppliedSettings | None, now_ns: Callable[[], int]
) -> None:
    """Apply settings to a channel from now on; None: it is as without a policy."""
    channel.settings = settings
    if settings is not None:
        channel.governor = ChannelGovernor(channel, settings, now_ns)
    elif channel.governor is not None:
        channel.governor = channel.store.governor = None
        end_bounds(channel.store)
        channel.in_flight.return_timed_out = channel.store.restore


def refuses(channel: ChannelState) -> bool:
    """Return whether a channel that is full has publishes refused."""
    settings = channel.settings
    return channel.governor is not None and settings is not None and settings.when_full == REFUSE


def renew_bounds(channel: ChannelState, now_ns: Callable[[], int]) -> None:
    """Have a channel see that its `Keeper` is another one, or that it has become final."""
    if channel.governor is not None:
        channel.governor.renew_bounds(now_ns)
