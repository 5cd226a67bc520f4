"""Topics that a policy applies to: bounds and expiry of what waits at the topic itself.

`govern_topic` gives one its class of here, or takes it away again. What is dropped, and why, is
decided in `GovernedTopic.give_up`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from trionsq.core.batch import Segment
from trionsq.core.bounded import BoundedStore, QueueFull
from trionsq.core.bounds import Bounds, weight
from trionsq.core.channel import ChannelState
from trionsq.core.governed import (
    MAX_DROP,
    POP_MESSAGES,
    GovernedChannel,
    refuses,
    set_class,
)
from trionsq.core.keys import PublishKey
from trionsq.core.policies import DEAD_LETTER, DROP_OLDEST, REFUSE, AppliedSettings
from trionsq.core.queue import Store
from trionsq.core.round import Round
from trionsq.core.topic import TopicState
from trionsq.wire.bodies import Bodies

__all__ = ["GovernedTopic", "govern_topic", "is_governed"]


class GovernedTopic(TopicState):
    """A topic with a policy, or with a channel whose policy refuses publishes.

    Attributes:
        refusing: the channels that do, by name.
    """

    store: BoundedStore
    refusing: dict[str, GovernedChannel]
    may_refuse = True

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
        bounds.backend_nbytes = max(0, bounds.backend_nbytes - nbytes)

    def trim(self, now_s: float, came: int = 0) -> bool:
        """As `GovernedChannel.trim`."""
        settings, store = self.settings, self.store
        if settings is None or settings.when_full != DROP_OLDEST or self.can_pump:
            return False
        left = came + MAX_DROP
        while left > 0:
            over, reason = store.excess()
            segment = store.pop_oldest(min(over, left, POP_MESSAGES)) if over else None
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
        before_ns, reason = store.bounds.oldest_allowed(wall_ns)
        if not reason:
            return False
        left = MAX_DROP
        while left > 0 and store.depth:
            oldest_ns = store.oldest_ns()
            if oldest_ns is not None and oldest_ns > before_ns:
                return False
            segment = store.pop_oldest(POP_MESSAGES if oldest_ns is not None else 1)
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
            store.bounds.backend_nbytes += weight(segment)
        else:
            store.memory.put_back(segment)


def is_governed(one: TopicState | ChannelState) -> TypeGuard[GovernedTopic | GovernedChannel]:
    """Return whether a policy applies to a topic or channel."""
    return isinstance(one, GovernedTopic | GovernedChannel)


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
            set_class(topic.store, Store)
            set_class(topic, TopicState)
        return
    set_class(topic, GovernedTopic)
    set_class(topic.store, BoundedStore)
    assert isinstance(topic, GovernedTopic)
    topic.refusing = {one.name: one for one in refusing if isinstance(one, GovernedChannel)}
    bounds = Bounds(settings or AppliedSettings(), now_ns, topic.give_up, lambda: 0)
    if bounds.settings.when_expired == DEAD_LETTER:
        # A letter goes back to the channel that it is from: it becomes one there.
        bounds.ttl_ns = 0
    topic.store.begin(bounds)
