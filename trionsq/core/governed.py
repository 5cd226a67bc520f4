"""Topics and channels that a policy applies to: bounds, expiry, retry schedules, shared limits.

`govern_topic` and `govern_channel` give one its class of here, or take it away again. What is
dropped, and why, is decided in `GovernedChannel.give_up` and `GovernedTopic.give_up`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeGuard

from trionsq.core.batch import Segment
from trionsq.core.bounded import BoundedChannelStore, BoundedStore, QueueFull, WeighedQueue
from trionsq.core.bounds import Bounds, weight
from trionsq.core.channel import PUT_BUSY, ChannelState
from trionsq.core.keys import PublishKey
from trionsq.core.policies import DROP_NEWEST, DROP_OLDEST, REFUSE, AppliedSettings
from trionsq.core.queue import Store
from trionsq.core.recovered import ChannelStore
from trionsq.core.round import Round
from trionsq.core.subscription import Subscription
from trionsq.core.topic import TopicState
from trionsq.wire.bodies import Bodies

__all__ = [
    "GovernedChannel",
    "GovernedTopic",
    "govern_channel",
    "govern_topic",
    "is_governed",
    "refuses",
]

# Messages dropped in one call beside those that came: about a millisecond.
_MAX_DROP: Final = 2_000
# Messages that are popped at once to be dropped.
_POP_MESSAGES: Final = 500
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
        self.store.drop(reason, segment.count)
        self.made_room()

    # Bounds

    def put(self, segment: Segment, now_s: float, now_ns: int) -> int:
        when_full, store = self.settings.when_full, self.store
        if when_full == DROP_NEWEST:
            fit, why = store.fitting(segment, self.deferred_count)
            if fit < segment.count:
                middle = segment.first + fit
                rest = Segment(segment.batch, middle, segment.last, segment.attempts)
                if fit:
                    first = Segment(segment.batch, segment.first, middle, segment.attempts)
                    super().put(first, now_s, now_ns)
                self._leave(rest, why)
                return PUT_BUSY
        count = segment.last - segment.first
        cost = ChannelState.put(self, segment, now_s, now_ns)
        if when_full == DROP_OLDEST:
            bounds, memory = store.bounds, store.memory
            assert bounds is not None
            assert isinstance(memory, WeighedQueue)
            if bounds.max_messages or memory.nbytes + bounds.backend_nbytes > bounds.max_bytes:
                self.trim(now_s, count)
        return cost

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
        left = came + _MAX_DROP
        self._is_over = False
        while left > 0:
            over, reason = store.excess(self.deferred_count)
            if not over:
                return False
            segment = self._pop_oldest(min(over, left, _POP_MESSAGES), now_s)
            if segment is None:
                self._is_over = True
                return False
            left -= segment.count
            self.give_up(segment, reason)
        return True

    def _pop_oldest(self, max_count: int, now_s: float) -> Segment | None:
        """Pop the messages that came first; what is not due yet goes to the deferred ones."""
        for _ in range(_POP_MESSAGES):
            segment = self.store.pop_oldest(max_count)
            if segment is None or not segment.batch.defer_ms:
                return segment
            self.deferred.add_stored(segment, self.due_on_clock_ns)
            self.scan_at(now_s)
        return None

    def drop_old(self, now_s: float, wall_ns: int) -> bool:
        """Drop what waits and has become too old; return whether there may be more."""
        store = self.store
        before_ns, reason = _oldest_allowed(self.settings, wall_ns)
        if not reason:
            return False
        assert store.bounds is not None
        left = _MAX_DROP
        while left > 0 and store.depth:
            oldest_ns = store.oldest_ns()
            if oldest_ns is not None and oldest_ns > before_ns:
                return False
            # Without a known age one message is read to find it out.
            segment = self._pop_oldest(_POP_MESSAGES if oldest_ns is not None else 1, now_s)
            if segment is None:
                return False
            left -= segment.count
            kept = store.bounds.drop_older(segment, before_ns, reason)
            if kept is not None:
                store.memory.put_back(kept)
                self.wake_if_waiting()
                return False
        return left <= 0

    # Deliveries

    def offer_credit(self, subscription: Subscription, now_s: float) -> None:
        ChannelState.offer_credit(self, subscription, now_s)
        if self.settings.max_in_flight and self.waiting:
            # What this client gave back may be what another one waits for.
            self.dispatch(now_s)

    def dispatch(self, now_s: float) -> int:
        cost = ChannelState.dispatch(self, now_s)
        if self._is_over:
            self.trim(now_s)
        return cost

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


class GovernedTopic(TopicState):
    """A topic with a policy, or with a channel whose policy refuses publishes.

    Attributes:
        refusing: the channels that do, by name.
    """

    store: BoundedStore
    refusing: dict[str, GovernedChannel]

    def add_channel(self, channel: ChannelState) -> None:
        super().add_channel(channel)
        if isinstance(channel, GovernedChannel) and refuses(channel):
            self.refusing[channel.name] = channel

    def remove_channel(self, name: str) -> None:
        self.refusing.pop(name, None)
        super().remove_channel(name)

    def give_up(self, segment: Segment, reason: str) -> None:
        """Drop messages that were popped: the one place that decides what becomes of them."""
        self.store.drop(reason, segment.count)

    def publish(
        self, bodies: Bodies, now_ns: int, defer_ms: int = 0, key: PublishKey | None = None
    ) -> Round | None:
        settings = self.settings
        if not self.refusing and (settings is None or self.can_pump):
            # What passes through is no backlog.
            return TopicState.publish(self, bodies, now_ns, defer_ms, key)
        for channel in self.refusing.values():
            # What the topic has, the channel is to get as well.
            waiting = self.depth
            why = channel.full_reason(bodies.count + waiting, bodies.nbytes + self.store.nbytes)
            if why:
                raise QueueFull(f"channel {self.name}:{channel.name} is full: {why}")
        if settings is None or self.can_pump:
            return super().publish(bodies, now_ns, defer_ms, key)
        if settings.when_full != DROP_OLDEST:
            why = self.store.full_for(bodies.count, bodies.nbytes)
            if why and settings.when_full == REFUSE:
                raise QueueFull(f"topic {self.name} is full: {why}")
            if why:
                self.message_count += bodies.count
                self.message_bytes += bodies.nbytes
                self.store.drop(why, bodies.count)
                return None
        pending = super().publish(bodies, now_ns, defer_ms, key)
        self.trim(0.0, bodies.count)
        return pending

    def forget_published(self, count: int, nbytes: int) -> None:
        super().forget_published(count, nbytes)
        bounds = self.store.bounds
        assert bounds is not None
        bounds.backend_nbytes = max(0, bounds.backend_nbytes - nbytes)

    def trim(self, now_s: float, came: int = 0) -> bool:
        """As `GovernedChannel.trim`."""
        settings, store = self.settings, self.store
        if settings is None or settings.when_full != DROP_OLDEST or self.can_pump:
            return False
        left = came + _MAX_DROP
        while left > 0:
            over, reason = store.excess()
            segment = store.pop_oldest(min(over, left, _POP_MESSAGES)) if over else None
            if segment is None:
                return False
            left -= segment.count
            self.give_up(segment, reason)
        return True

    def drop_old(self, now_s: float, wall_ns: int) -> bool:
        """As `GovernedChannel.drop_old`."""
        settings, store = self.settings, self.store
        if settings is None or self.can_pump:
            return False
        before_ns, reason = _oldest_allowed(settings, wall_ns)
        if not reason:
            return False
        assert store.bounds is not None
        left = _MAX_DROP
        while left > 0 and store.depth:
            oldest_ns = store.oldest_ns()
            if oldest_ns is not None and oldest_ns > before_ns:
                return False
            segment = store.pop_oldest(_POP_MESSAGES if oldest_ns is not None else 1)
            if segment is None:
                return False
            left -= segment.count
            middle = segment.first + store.bounds.count_old(segment, before_ns)
            if middle > segment.first:
                old = Segment(segment.batch, segment.first, middle, segment.attempts)
                self.give_up(old, reason)
            if middle < segment.last:
                self._unread(Segment(segment.batch, middle, segment.last, segment.attempts))
                return False
        return left <= 0

    def _unread(self, segment: Segment) -> None:
        store = self.store
        if segment.batch.sequences is not None and store.backend.unread(segment):
            store.backend_out_count -= segment.count
            assert store.bounds is not None
            store.bounds.backend_nbytes += weight(segment)
        else:
            store.memory.put_back(segment)


def _oldest_allowed(settings: AppliedSettings, wall_ns: int) -> tuple[int, str]:
    """Return the time up to which what was published is too old, and why; no reason: none is."""
    limits = []
    if settings.message_ttl_ns:
        limits.append((wall_ns - settings.message_ttl_ns, "expired"))
    if settings.max_age_ns and settings.when_full == DROP_OLDEST:
        limits.append((wall_ns - settings.max_age_ns, "max_age"))
    return max(limits, default=(0, ""))


def is_governed(one: TopicState | ChannelState) -> TypeGuard[GovernedTopic | GovernedChannel]:
    """Return whether a policy applies to a topic or channel."""
    return isinstance(one, GovernedTopic | GovernedChannel)


def _set_class(one: object, class_: type) -> None:
    one.__class__ = class_


def govern_channel(
    channel: ChannelState, settings: AppliedSettings | None, now_ns: Callable[[], int]
) -> None:
    """Apply settings to a channel from now on; None: it is as without a policy."""
    if settings is None:
        if isinstance(channel, GovernedChannel):
            channel.store.end()
            _set_class(channel.store, ChannelStore)
            _set_class(channel, ChannelState)
        channel.settings = None
        return
    _set_class(channel, GovernedChannel)
    _set_class(channel.store, BoundedChannelStore)
    assert isinstance(channel, GovernedChannel)
    channel.settings = settings
    in_flight = channel.in_flight
    channel.store.begin(Bounds(settings, now_ns, channel.give_up, lambda: in_flight.count))


def refuses(channel: ChannelState) -> bool:
    """Return whether a channel that is full has publishes refused."""
    return isinstance(channel, GovernedChannel) and channel.settings.when_full == REFUSE


def govern_topic(
    topic: TopicState,
    settings: AppliedSettings | None,
    now_ns: Callable[[], int],
    new: ChannelState | None = None,
) -> None:
    """Apply settings to a topic from now on, and those of its channels that refuse publishes.

    ``new``: a channel that is about to be added.
    """
    refusing = list(filter(refuses, topic.channels.values()))
    topic.settings = settings
    if settings is None and not refusing and (new is None or not refuses(new)):
        if isinstance(topic, GovernedTopic):
            topic.store.end()
            _set_class(topic.store, Store)
            _set_class(topic, TopicState)
        return
    _set_class(topic, GovernedTopic)
    _set_class(topic.store, BoundedStore)
    assert isinstance(topic, GovernedTopic)
    topic.refusing = {one.name: one for one in refusing if isinstance(one, GovernedChannel)}
    bounds = Bounds(settings or AppliedSettings(), now_ns, topic.give_up, lambda: 0)
    topic.store.begin(bounds)
