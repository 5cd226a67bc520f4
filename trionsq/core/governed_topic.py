"""Topics that a policy applies to: bounds and expiry of what waits at the topic itself.

`govern_topic` gives one its `TopicGovernor`, or takes it away again. What is dropped, and why, is
decided in `TopicGovernor.give_up`.
"""

from __future__ import annotations

from collections.abc import Callable

from trionsq.core.batch import Segment
from trionsq.core.bounded import BoundedStore, QueueFull, end_bounds
from trionsq.core.bounds import Bounds, weight
from trionsq.core.channel import ChannelState
from trionsq.core.governed import MAX_DROP, POP_MESSAGES, refuses
from trionsq.core.policies import DEAD_LETTER, DROP_OLDEST, REFUSE, AppliedSettings
from trionsq.core.topic import TopicState
from trionsq.wire.bodies import Bodies

__all__ = ["TopicGovernor", "govern_topic"]


class TopicGovernor:
    """A policy at work on a topic, or that of a channel of it which refuses publishes.

    Attributes:
        topic: the topic.
        settings: what the policies set of it; None if they set nothing.
        refusing: the channels that refuse publishes when they are full, by name.
        bounded: the topic's queue.
    """

    __slots__ = ("bounded", "refusing", "settings", "topic")

    def __init__(
        self,
        topic: TopicState,
        settings: AppliedSettings | None,
        refusing: list[ChannelState],
        now_ns: Callable[[], int],
    ) -> None:
        """``now_ns`` is the wall clock."""
        self.topic = topic
        self.settings = settings
        self.refusing = {channel.name: channel for channel in refusing}
        bounds = Bounds(settings or AppliedSettings(), now_ns, self.give_up, lambda: 0)
        if bounds.settings.when_expired == DEAD_LETTER:
            # A letter goes back to the channel that it is from: it becomes one there.
            bounds.ttl_ns = 0
        self.bounded = BoundedStore(topic.store, bounds)

    def add_channel(self, channel: ChannelState) -> None:
        """The topic has one more channel."""
        if refuses(channel):
            self.refusing[channel.name] = channel

    def remove_channel(self, name: str) -> None:
        """The topic has lost a channel."""
        self.refusing.pop(name, None)

    def give_up(self, segment: Segment, reason: str) -> None:
        """Drop messages that were popped: the one place that decides what becomes of them."""
        self.topic.store.drop(reason, segment.count)

    def admits(self, bodies: Bodies) -> bool:
        """Return whether messages are to be queued. If not, they are counted as dropped already.

        Raises:
            QueueFull: they are refused.
        """
        topic, settings = self.topic, self.settings
        for channel in self.refusing.values():
            if channel.governor is None:
                continue
            # What the topic has, the channel is to get as well.
            why = channel.governor.full_reason(
                bodies.count + topic.depth, bodies.nbytes + self.bounded.nbytes
            )
            if why:
                raise QueueFull(f"channel {topic.name}:{channel.name} is full: {why}")
        # What passes through is no backlog.
        if settings is None or settings.when_full == DROP_OLDEST or topic.can_pump:
            return True
        why = self.bounded.full_for(bodies.count, bodies.nbytes)
        if why and settings.when_full == REFUSE:
            raise QueueFull(f"topic {topic.name} is full: {why}")
        if why:
            topic.message_count += bodies.count
            topic.message_bytes += bodies.nbytes
            topic.store.drop(why, bodies.count)
        return not why

    def forget_published(self, nbytes: int) -> None:
        """Take bodies that the backend failed to store off its size."""
        bounds = self.bounded.bounds
        bounds.backend_nbytes = max(0, bounds.backend_nbytes - nbytes)

    def trim(self, now_s: float, came: int = 0) -> bool:
        """As `ChannelGovernor.trim`."""
        settings, bounded = self.settings, self.bounded
        if settings is None or settings.when_full != DROP_OLDEST or self.topic.can_pump:
            return False
        left = came + MAX_DROP
        while left > 0:
            over, reason = bounded.excess()
            segment = bounded.pop_oldest(min(over, left, POP_MESSAGES)) if over else None
            if segment is None:
                return False
            left -= segment.count
            self.give_up(segment, reason)
        return True

    def drop_old(self, now_s: float, wall_ns: int) -> bool:
        """As `ChannelGovernor.drop_old`."""
        store, bounds = self.topic.store, self.bounded.bounds
        if self.settings is None or self.topic.can_pump:
            return False
        before_ns, reason = bounds.oldest_allowed(wall_ns)
        if not reason:
            return False
        left = MAX_DROP
        while left > 0 and store.depth:
            oldest_ns = store.oldest_ns()
            if oldest_ns is not None and oldest_ns > before_ns:
                return False
            segment = self.bounded.pop_oldest(POP_MESSAGES if oldest_ns is not None else 1)
            if segment is None:
                return False
            left -= segment.count
            middle = segment.first + bounds.count_old(segment, before_ns)
            if middle > segment.first:
                old = Segment(segment.batch, segment.first, middle, segment.attempts)
                self.give_up(old, reason)
            if middle < segment.last:
                self._unread(Segment(segment.batch, middle, segment.last, segment.attempts))
                return False
        return left <= 0

    def _unread(self, segment: Segment) -> None:
        store = self.topic.store
        if segment.batch.sequences is not None and store.backend.unread(segment):
            store.backend_out_count -= segment.count
            self.bounded.bounds.backend_nbytes += weight(segment)
        else:
            store.memory.put_back(segment)


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
    if settings is not None or refusing or (new is not None and refuses(new)):
        topic.governor = TopicGovernor(topic, settings, refusing, now_ns)
    elif topic.governor is not None:
        topic.governor = None
        end_bounds(topic.store)
