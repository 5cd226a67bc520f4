"""A topic's decisions: what is admitted, and how batches fan out to the channels.

Synchronous, and told the time; `trionsq.broker` drives it. Spec: nsqd-internals, section 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final
from weakref import ref

from trionsq.core.batch import MessageBatch, Segment
from trionsq.core.channel import ChannelState
from trionsq.core.containers import Roster
from trionsq.core.ids import IdSource
from trionsq.core.queue import Backend, BackendError, Store, free
from trionsq.core.recovered import Recovered
from trionsq.wire.bodies import Bodies

__all__ = ["TopicState"]

# No limit of its own: a batch moves whole, whatever was published together.
_ANY: Final = 2**63
# What one `pump` may cost, in units of what `ChannelState.put` says it costs: half a millisecond.
_PUMP_MAX: Final = 512
# Of large batches so many bytes count as one unit more for each channel: they may go to disk.
_PUMP_NBYTES: Final = 16 * 1024


class _FanOut:
    """A segment, and the channels that still lack it.

    Attributes:
        segment: the messages.
        next: the channel that gets them next.
        behind: the channels behind that one. A channel that is made meanwhile is not among them,
            nor one that was deleted.
        some_got_it: whether a channel has got them.
    """

    __slots__ = ("behind", "next", "segment", "some_got_it")

    def __init__(self, segment: Segment, channels: Iterator[ChannelState]) -> None:
        self.segment = segment
        self.next = next(channels, None)
        self.behind = channels
        self.some_got_it = False


class TopicState:
    """One topic.

    Attributes:
        wake: makes the topic's task call `pump` in a turn to come.
        channels: by name.
        message_count, message_bytes: published since the start.
        fanned_out_count: messages that every channel has got, since the start.
        ids: of its messages.
        error: why the last fan-out could not go on, None if nothing is stuck.
    """

    def __init__(self, name: str, mem_queue_size: int, backend: Backend, ids: IdSource) -> None:
        self.name = name
        self.store = Store(mem_queue_size, backend)
        self.channels: dict[str, ChannelState] = {}
        self.paused = False
        self.message_count = 0
        self.message_bytes = 0
        self.error: BackendError | None = None
        self.wake: Callable[[], None] = lambda: None
        self.ids = ids
        self.fanned_out_count = 0
        # The channels in the order in which they were made.
        self._roster: Roster[ChannelState] = Roster()
        self._fan_out: _FanOut | None = None
        self._backend_next = False
        # What channels must know that an unclean end left twice; theirs, as long as they need it.
        self._recovered: ref[Recovered] | None = None

    def __repr__(self) -> str:
        return f"<TopicState {self.name} depth={self.depth} channels={len(self.channels)}>"

    @property
    def depth(self) -> int:
        """Messages that no channel, or not yet every channel, has got."""
        return self.store.depth + (self._fan_out.segment.count if self._fan_out else 0)

    @property
    def dropped(self) -> Counter[str]:
        """Messages given up on purpose, by reason."""
        return self.store.dropped

    @property
    def held(self) -> int:
        """Messages in memory that no channel, or not yet every channel, has got."""
        return self.store.memory.depth + (self._fan_out.segment.count if self._fan_out else 0)

    def oldest_ns(self) -> int | None:
        """As `Store.oldest_ns`, with what not every channel has got yet."""
        waiting_ns = self.store.oldest_ns()
        if self._fan_out is None:
            return waiting_ns
        begun_ns = self._fan_out.segment.first_ns
        return begun_ns if waiting_ns is None else min(begun_ns, waiting_ns)

    @property
    def can_pump(self) -> bool:
        """Whether messages can go on to the channels now."""
        return bool(self.channels) and not self.paused and self.error is None

    @property
    def stuck_at(self) -> ChannelState | None:
        """The channel that had no room for what the topic hands on."""
        return self._fan_out.next if self._fan_out and self.error is not None else None

    def publish(self, bodies: Bodies, now_ns: int, defer_ms: int = 0) -> None:
        """Admit messages: all of them, or none.

        Raises:
            BackendError: there is no room for them.
        """
        batch = MessageBatch(bodies, self.ids.next_ids(bodies.count, now_ns), now_ns, defer_ms)
        kept = self.store.admit(Segment(batch, 0, batch.count))
        self.message_count += batch.count
        self.message_bytes += bodies.nbytes
        if kept is not None:
            self.store.memory.append(kept)
        if self.can_pump:
            self.wake()

    def pump(self, now_s: float, now_ns: int) -> int:
        """Hand a segment to the channels: to so many as one turn can serve, then to the next ones.

        If a channel has no room, the segment stays with it and with the channels behind it,
        `error` says why, and the topic does not pump until `retry`.

        Returns the cost, in units of `ChannelState.put`; 0 if nothing could be done.
        """
        if not self.can_pump:
            return 0
        fan_out = self._fan_out
        if fan_out is None:
            segment = self._take()
            if segment is None:
                return 0
            fan_out = self._fan_out = _FanOut(segment, self._roster.walk())
        return self._hand_on(fan_out, now_s, now_ns)

    def peek(self) -> Iterator[Segment]:
        """What waits in memory, to be looked at only. Nothing may change meanwhile."""
        if self._fan_out is not None:
            yield self._fan_out.segment
        yield from self.store.memory.peek()

    def _take(self) -> Segment | None:
        store = self.store
        # In turn, so that a steady stream through memory does not leave the backlog where it is.
        if store.backend.depth and (self._backend_next or not store.memory.depth):
            self._backend_next = False
            segment = store.read_backend(_ANY, _ANY)
            if segment is not None:
                if self._recovered is not None:
                    self._note_recovered(segment)
                return segment
        if not store.memory.depth:
            return None
        self._backend_next = True
        return store.memory.pop_segment(_ANY, _ANY)

    def _note_recovered(self, segment: Segment) -> None:
        recovered = self._recovered() if self._recovered is not None else None
        if recovered is None:
            self._recovered = None  # no channel needs it any more
        else:
            recovered.note_segment(segment)

    def _hand_on(self, fan_out: _FanOut, now_s: float, now_ns: int) -> int:
        segment = fan_out.segment
        batch, first, last, attempts = segment.batch, segment.first, segment.last, segment.attempts
        nbytes_cost = batch.bodies.nbytes // _PUMP_NBYTES
        cost = 0
        channel = fan_out.next
        while channel is not None:
            if cost >= _PUMP_MAX:
                return cost
            try:
                cost += channel.put(Segment(batch, first, last, attempts), now_s, now_ns)
            except BackendError as error:
                self.error = error
                return 0
            cost += nbytes_cost
            fan_out.some_got_it = True
            channel = fan_out.next = next(fan_out.behind, None)
        self._fan_out = None
        self.fanned_out_count += last - first
        return cost

    def _end_fan_out(self, fan_out: _FanOut) -> None:
        self._fan_out = None
        self.fanned_out_count += fan_out.segment.count

    def retry(self) -> bool:
        """Let a fan-out that was stuck be tried again; whether it was stuck."""
        stuck = self.error is not None
        self.error = None
        return stuck

    def walk_channels(self) -> Iterator[ChannelState]:
        """Yield the channels of now, but for those that are deleted before their turn comes."""
        return self._roster.walk()

    def add_channel(self, channel: ChannelState) -> None:
        """Begin to fan out to a channel: it gets what is pumped from now on."""
        self.channels[channel.name] = channel
        self._roster.add(channel)
        if channel.store.is_recovering is not None:
            recovered = self._recovered() if self._recovered is not None else None
            channel.store.recovered = Recovered() if recovered is None else recovered
            self._recovered = ref(channel.store.recovered)

    def remove_channel(self, name: str) -> None:
        """End the fan-out to a channel. What no other channel got goes back to the queue."""
        channel = self.channels.pop(name)
        self._roster.discard(channel)
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
                    self.store.memory.put_back(fan_out.segment)
        self.retry()

    def save(self) -> None:
        """Move what waits at the topic to its backend, and to those of channels that lack it.

        Raises:
            BackendError: the rest is still in memory.
        """
        fan_out = self._fan_out
        if fan_out is not None:
            one = fan_out.segment
            while fan_out.next is not None:
                fan_out.next.save_published(Segment(one.batch, one.first, one.last, one.attempts))
                fan_out.some_got_it = True
                fan_out.next = next(fan_out.behind, None)
            self._end_fan_out(fan_out)
        self.store.save_memory()

    def empty(self) -> Iterator[None]:
        """Drop what waits at the topic.

        It is gone at once; whoever exhausts the iterator, which yields where a turn ends, lets go
        of the memory.
        """
        memory = self.store.empty()
        recovered = self._recovered() if self._recovered is not None else None
        if recovered is not None:
            recovered.clear()
        fan_out, self._fan_out = self._fan_out, None
        if fan_out is not None:
            if fan_out.some_got_it:
                self._end_fan_out(fan_out)
            else:
                self.store.drop("emptied", fan_out.segment.count)
            self.retry()
        return free(memory)

    def check(self) -> str | None:
        """What is wrong with the topic's account of its messages, None if nothing is.

        It costs the same whatever the topic holds. What a backend held at the start is no part.
        """
        store = self.store
        came = self.message_count + store.backend_out_count
        went = self.fanned_out_count + store.dropped_count + store.backend_in_count
        if came != went + self.held:
            return f"{came} messages came, {went} went, {self.held} are held"
        if len(self._roster) != len(self.channels):
            return f"{len(self._roster)} channels are served, {len(self.channels)} are known"
        return store.check()
