"""A topic's decisions: what is admitted, and how batches fan out to the channels.

Synchronous; the caller, `trionsq.broker`, passes the time. Spec: nsqd-internals, section 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from trionsq.core.batch import MessageBatch, Segment
from trionsq.core.channel import ChannelState
from trionsq.core.containers import Roster, free
from trionsq.core.dispatch import GovernsQueue
from trionsq.core.ids import IdSource
from trionsq.core.keys import PublishKey
from trionsq.core.policies import AppliedSettings
from trionsq.core.queue import Backend, BackendError, Store
from trionsq.core.recovered import Recovered
from trionsq.core.round import Round
from trionsq.wire.bodies import Bodies

__all__ = ["GovernsTopic", "TopicState"]

# No limit: a segment goes to the channels whole.
_NO_LIMIT: Final = 2**63
# What one `pump` may cost, in the units of `ChannelState.put`: half a millisecond.
_MAX_PUMP: Final = 512
# Each 16 KiB of bodies cost one unit more for each channel: they may go to disk.
_PUMP_COST_BYTES: Final = 16 * 1024


class _FanOut:
    """A segment, and the channels that have not got it yet.

    Attributes:
        segment: the messages.
        next: the channel that gets them next.
        behind: the channels after that one, without those that are created or deleted meanwhile.
        some_got_it: whether a channel has got the messages.
    """

    __slots__ = ("behind", "next", "segment", "some_got_it")

    def __init__(self, segment: Segment, channels: Iterator[ChannelState]) -> None:
        self.segment = segment
        self.next = next(channels, None)
        self.behind = channels
        self.some_got_it = False


class GovernsTopic(GovernsQueue, Protocol):
    """A policy at work on a topic; see `trionsq.core.governed_topic.TopicGovernor`."""

    def add_channel(self, channel: ChannelState) -> None:
        """The topic has one more channel."""

    def remove_channel(self, name: str) -> None:
        """The topic has lost a channel."""

    def admits(self, bodies: Bodies) -> bool:
        """Return whether messages are to be queued. If not, they are counted as dropped already.

        Raises:
            QueueFull: they are refused.
        """

    def forget_published(self, nbytes: int) -> None:
        """Take bodies that the backend failed to store off its size."""


class TopicState:
    """One topic.

    Attributes:
        wake: makes the topic's task call `pump` in a later turn.
        channels: by name.
        message_count, message_bytes: published since the start.
        fanned_out_count: messages that every channel has got, since the start.
        ids: makes the ids of its messages.
        error: why a channel refused the last segment, None if the fan-out is not stuck.
        settings: what the policies set of it, replaced when they change; None if they set nothing.
        governor: the policy at work on it; None without one. With one `publish` may refuse messages
            for which memory has room.
    """

    def __init__(self, name: str, mem_queue_size: int, backend: Backend, ids: IdSource) -> None:
        self.name = name
        self.store = Store(0 if backend.has_published else mem_queue_size, backend)
        self.channels: dict[str, ChannelState] = {}
        self.paused = False
        self.message_count = 0
        self.message_bytes = 0
        self.error: BackendError | None = None
        self.wake: Callable[[], None] = lambda: None
        self.ids = ids
        self.fanned_out_count = 0
        self.settings: AppliedSettings | None = None
        self.governor: GovernsTopic | None = None
        # The channels in order of their creation.
        self._roster: Roster[ChannelState] = Roster()
        self._fan_out: _FanOut | None = None
        self._backend_next = False
        # Shared with the channels that still need it.
        self._recovered: Recovered | None = None

    def __repr__(self) -> str:
        return f"<TopicState {self.name} depth={self.depth} channels={len(self.channels)}>"

    @property
    def depth(self) -> int:
        """Messages that not all channels have got."""
        return self.store.depth + (self._fan_out.segment.count if self._fan_out else 0)

    @property
    def dropped(self) -> Counter[str]:
        """Messages given up on purpose, by reason."""
        return self.store.dropped

    @property
    def held(self) -> int:
        """Messages in memory that not all channels have got."""
        return self.store.memory.depth + (self._fan_out.segment.count if self._fan_out else 0)

    def oldest_ns(self) -> int | None:
        """As `Store.oldest_ns`, including the segment that is being fanned out."""
        queued_ns = self.store.oldest_ns()
        if self._fan_out is None:
            return queued_ns
        fan_out_ns = self._fan_out.segment.first_ns
        return fan_out_ns if queued_ns is None else min(fan_out_ns, queued_ns)

    @property
    def can_pump(self) -> bool:
        """Whether messages can go to the channels now."""
        return bool(self.channels) and not self.paused and self.error is None

    @property
    def stuck_at(self) -> ChannelState | None:
        """The channel that had no room for the last segment."""
        return self._fan_out.next if self._fan_out and self.error is not None else None

    @property
    def is_drained(self) -> bool:
        """Whether all channels have got all messages."""
        store = self.store
        return not (store.memory.depth or self._fan_out or store.backend.depth)

    def publish(
        self, bodies: Bodies, now_ns: int, defer_ms: int = 0, key: PublishKey | None = None
    ) -> Round | None:
        """Queue messages: all of them, or none. A log keeps the ``key`` with them.

        Returns the round that decides whether they are stored; None if they are, or if a policy
        drops them.

        Raises:
            BackendError: there is no room for them.
        """
        governor = self.governor
        if governor is not None and not governor.admits(bodies):
            return None
        ids = self.ids.next_ids(bodies.count, now_ns)
        batch = MessageBatch(bodies, ids, now_ns, defer_ms, key=key)
        self.store.append(Segment(batch, 0, batch.count))
        self.message_count += batch.count
        self.message_bytes += bodies.nbytes
        pending = self.store.backend.pending
        if pending is None and self.channels and not self.paused and self.error is None:
            self.wake()
        if governor is not None:
            governor.trim(0.0, batch.count)
        return pending

    def publish_batch(self, batch: MessageBatch) -> Round | None:
        """As `publish`, with ids and times that the messages have already."""
        self.store.append(Segment(batch, 0, batch.count))
        self.message_count += batch.count
        self.message_bytes += batch.bodies.nbytes
        if self.can_pump:
            self.wake()
        return self.store.backend.pending

    def forget_published(self, count: int, nbytes: int) -> None:
        """Take messages out of the counters: the round that they were in failed."""
        self.message_count -= count
        self.message_bytes -= nbytes
        self.store.backend_in_count -= count
        if self.governor is not None:
            self.governor.forget_published(nbytes)

    def pump(self, now_s: float, now_ns: int) -> int:
        """Put a segment on the channels; after as many as fit in one turn, the next call goes on.

        If a channel has no room, the fan-out is stuck there: `error` says why, and the topic does
        not pump until `retry`.

        Returns the cost, in units of `ChannelState.put`; 0 if nothing could be done.
        """
        if not self.channels or self.paused or self.error is not None:
            return 0
        fan_out = self._fan_out
        if fan_out is None:
            head = self._pop_segment()
            if head is None:
                return 0
            fan_out = self._fan_out = _FanOut(head, self._roster.walk())
        segment = fan_out.segment
        batch, first, last, attempts = segment.batch, segment.first, segment.last, segment.attempts
        bytes_cost = batch.bodies.nbytes // _PUMP_COST_BYTES
        cost = 0
        channel = fan_out.next
        while channel is not None:
            if cost >= _MAX_PUMP:
                return cost
            try:
                cost += channel.put(Segment(batch, first, last, attempts), now_s, now_ns)
            except BackendError as error:
                self.error = error
                return 0
            cost += bytes_cost
            fan_out.some_got_it = True
            channel = fan_out.next = next(fan_out.behind, None)
        self._end_fan_out(fan_out)
        return cost

    def peek(self) -> Iterator[Segment]:
        """Yield the segments in memory. Neither they nor the queue may change meanwhile."""
        if self._fan_out is not None:
            yield self._fan_out.segment
        yield from self.store.memory.peek()

    def _pop_segment(self) -> Segment | None:
        store = self.store
        # Memory and backend take turns, so that a steady stream through memory does not hold up the
        # backlog.
        if store.backend.depth and (self._backend_next or not store.memory.depth):
            self._backend_next = False
            segment = store.read_backend(_NO_LIMIT, _NO_LIMIT)
            if segment is not None:
                if self._recovered is not None:
                    self._note_recovered(self._recovered, segment)
                return segment
        if not store.memory.depth:
            return None
        self._backend_next = True
        return store.memory.pop_segment(_NO_LIMIT, _NO_LIMIT)

    def _note_recovered(self, recovered: Recovered, segment: Segment) -> None:
        if recovered.user_count:
            recovered.note_segment(segment)
        else:
            self._recovered = None

    def _end_fan_out(self, fan_out: _FanOut) -> None:
        self._fan_out = None
        self.fanned_out_count += fan_out.segment.count

    def retry(self) -> bool:
        """Let a stuck fan-out be tried again. Returns whether it was stuck."""
        was_stuck = self.error is not None
        self.error = None
        return was_stuck

    def walk_channels(self) -> Iterator[ChannelState]:
        """Yield all present channels, except those deleted before their turn."""
        return self._roster.walk()

    def add_channel(self, channel: ChannelState) -> None:
        """Add a channel. It gets the messages that are fanned out from now on."""
        self.channels[channel.name] = channel
        self._roster.add(channel)
        if channel.store.backend.is_recovering():
            if self._recovered is None:
                self._recovered = Recovered()
            channel.store.use_recovered(self._recovered)
        if self.governor is not None:
            self.governor.add_channel(channel)

    def remove_channel(self, name: str) -> None:
        """Remove a channel. A segment that no other channel has got goes back to the queue."""
        channel = self.channels.pop(name)
        self._roster.discard(channel)
        channel.store.release_recovered()
        if self.governor is not None:
            self.governor.remove_channel(name)
        fan_out = self._fan_out
        if fan_out is None:
            return
        if fan_out.next is channel:
            fan_out.next = next(fan_out.behind, None)
            if fan_out.next is None:
                if fan_out.some_got_it:
                    self._end_fan_out(fan_out)
                else:
                    self._fan_out = None
                    if not self.store.backend.unread(fan_out.segment):
                        self.store.memory.put_back(fan_out.segment)
                    else:
                        self.store.backend_out_count -= fan_out.segment.count
        self.retry()

    def save(self) -> None:
        """Move all messages to the backend; a fan-out ends in the backends of its channels.

        Raises:
            BackendError: the rest is still in memory.
        """
        self.save_fan_out()
        self.store.save_memory()

    def save_fan_out(self) -> None:
        """End a fan-out that is under way, in the backends of its channels.

        Raises:
            BackendError: it is still under way.
        """
        fan_out = self._fan_out
        if fan_out is not None:
            batch, first, last = fan_out.segment.batch, fan_out.segment.first, fan_out.segment.last
            while fan_out.next is not None:
                copy = Segment(batch, first, last, fan_out.segment.attempts)
                fan_out.next.save_published(copy)
                fan_out.some_got_it = True
                fan_out.next = next(fan_out.behind, None)
            self._end_fan_out(fan_out)

    def empty(self) -> Iterator[None]:
        """Drop all messages of the topic, not those of its channels.

        They are gone at once. The caller frees the memory by exhausting the iterator, which yields
        where a turn ends.
        """
        memory = self.store.empty()
        if self._recovered is not None:
            self._recovered.clear()
        fan_out, self._fan_out = self._fan_out, None
        if fan_out is not None:
            if fan_out.some_got_it:
                self._end_fan_out(fan_out)
            else:
                self.store.drop("emptied", fan_out.segment.count)
            self.retry()
        return free(memory)

    def check(self) -> str | None:
        """Return what is wrong with the topic's counters, None if nothing is.

        The cost is constant. Messages that the backend held at the start are in no counter.
        """
        store = self.store
        came = self.message_count + store.backend_out_count
        went = self.fanned_out_count + store.dropped_count + store.backend_in_count
        if came != went + self.held:
            return f"{came} messages came, {went} went, {self.held} are held"
        if len(self._roster) != len(self.channels):
            return f"{len(self._roster)} channels are served, {len(self.channels)} are known"
        return store.check()
