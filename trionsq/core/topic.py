"""A topic's decisions: what is admitted, and how batches fan out to the channels.

Synchronous, and told the time; `trionsq.broker` drives it. Spec: nsqd-internals, section 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final
from weakref import ref

from trionsq.core.backend import Backend, BackendError
from trionsq.core.batch import Batch, Segment
from trionsq.core.channel import Channel
from trionsq.core.ids import IdSource
from trionsq.core.recovered import Recovered
from trionsq.core.store import Store
from trionsq.wire.bodies import Bodies

__all__ = ["Topic"]

# No limit of its own: a batch moves whole, whatever was published together.
_ANY: Final = 2**63


@dataclass(slots=True)
class _Stuck:
    """A segment, and the channels that still lack it."""

    segment: Segment
    channels: list[Channel]
    some_got_it: bool = False


class Topic:
    """One topic.

    Attributes:
        carry: takes a segment to the topic's task, False if it can't; the task calls `arrived`.
            It may be empty: a mere wake-up.
        channels: by name.
        message_count, message_bytes: published since the start.
        ids: of its messages.
        error: why the last fan-out could not go on, None if nothing is stuck.
        dropped: messages given up on purpose, by reason.
    """

    def __init__(self, name: str, mem_queue_size: int, backend: Backend, ids: IdSource) -> None:
        self.name = name
        self.store = Store(mem_queue_size, backend)
        self.channels: dict[str, Channel] = {}
        self.paused = False
        self.message_count = 0
        self.message_bytes = 0
        self.dropped: Counter[str] = Counter()
        self.error: BackendError | None = None
        self.carry: Callable[[Segment], bool] = lambda segment: False
        self.ids = ids
        self._stuck: _Stuck | None = None
        self._backend_next = False
        # What channels must know that an unclean end left twice; theirs, as long as they need it.
        self._recovered: ref[Recovered] | None = None

    def __repr__(self) -> str:
        return f"<Topic {self.name} depth={self.depth} channels={len(self.channels)}>"

    @property
    def depth(self) -> int:
        """Messages that no channel, or not yet every channel, has got."""
        return self.store.depth + (self._stuck.segment.count if self._stuck else 0)

    @property
    def held(self) -> int:
        """Messages in memory that no channel, or not yet every channel, has got."""
        return self.store.in_memory + (self._stuck.segment.count if self._stuck else 0)

    def oldest_ns(self) -> int | None:
        """As `Store.oldest_ns`, with what not every channel has got yet."""
        waiting_ns = self.store.oldest_ns()
        if self._stuck is None:
            return waiting_ns
        stuck_ns = self._stuck.segment.first_ns
        return stuck_ns if waiting_ns is None else min(stuck_ns, waiting_ns)

    @property
    def can_pump(self) -> bool:
        """Whether messages can go on to the channels now."""
        return bool(self.channels) and not self.paused and self.error is None

    def publish(self, bodies: Bodies, now_ns: int, defer_ms: int = 0) -> None:
        """Admit messages: all of them, or none.

        Raises:
            BackendError: there is no room for them.
        """
        batch = Batch(bodies, self.ids.take(bodies.count, now_ns), now_ns, defer_ms)
        kept = self.store.admit(Segment(batch, 0, batch.count))
        self.message_count += batch.count
        self.message_bytes += bodies.nbytes
        if kept is None:
            if self.can_pump:
                # The backend has all of it. An empty segment makes the task look there.
                self.carry(Segment(batch, batch.count, batch.count))
        elif self.can_pump and self.carry(kept):
            self.store.carried += kept.count
        else:
            self.store.memory.append(kept)

    def arrived(self, segment: Segment) -> None:
        """Queue what was carried; `pump` is the caller's next step."""
        if segment.count:
            self.store.carried -= segment.count
            self.store.memory.append(segment)

    def pump(self, now_s: float, now_ns: int) -> int:
        """Hand one segment to every channel; the number of messages, 0 if there is nothing to do.

        If a channel has no room, the segment is kept with the channels that still lack it,
        `error` says why, and the topic does not pump until `retry`.
        """
        if not self.can_pump:
            return 0
        stuck = self._stuck
        if stuck is None:
            segment = self._take()
            if segment is None:
                return 0
            stuck = _Stuck(segment, list(self.channels.values()))
        self._stuck = None
        return self._fan_out(stuck, now_s, now_ns)

    def peek(self) -> Iterator[Segment]:
        """What waits in memory, to be looked at only. Nothing may change meanwhile."""
        if self._stuck is not None:
            yield self._stuck.segment
        yield from self.store.memory.peek()

    def _take(self) -> Segment | None:
        store = self.store
        # In turn, so that a steady stream through memory does not leave the backlog where it is.
        if store.backend.depth and (self._backend_next or not store.memory.depth):
            self._backend_next = False
            segment = store.backend.read(_ANY, _ANY)
            if segment is not None:
                if self._recovered is not None:
                    self._note_recovered(segment)
                return segment
        if not store.memory.depth:
            return None
        self._backend_next = True
        return store.memory.take(_ANY, _ANY)

    def _note_recovered(self, segment: Segment) -> None:
        recovered = self._recovered() if self._recovered is not None else None
        if recovered is None:
            self._recovered = None  # no channel needs it any more
        else:
            recovered.note(segment)

    def _fan_out(self, what: _Stuck, now_s: float, now_ns: int) -> int:
        segment = what.segment
        batch, first, last, attempts = segment.batch, segment.first, segment.last, segment.attempts
        for place, channel in enumerate(what.channels):
            try:
                channel.put(Segment(batch, first, last, attempts), now_s, now_ns)
            except Exception as error:
                self._stuck = _Stuck(segment, what.channels[place:], what.some_got_it or place > 0)
                if not isinstance(error, BackendError):
                    raise  # a defect: the next `pump` goes on with this channel
                self.error = error
                return 0
        return last - first

    def retry(self) -> bool:
        """Let a fan-out that was stuck be tried again; whether it was stuck."""
        stuck = self.error is not None
        self.error = None
        return stuck

    def add_channel(self, channel: Channel) -> None:
        """Begin to fan out to a channel: it gets what is pumped from now on."""
        self.channels[channel.name] = channel
        if channel.is_recovering is not None:
            recovered = self._recovered() if self._recovered is not None else None
            channel.recovered = Recovered() if recovered is None else recovered
            self._recovered = ref(channel.recovered)

    def remove_channel(self, name: str) -> None:
        """End the fan-out to a channel. What no other channel got goes back to the queue."""
        channel = self.channels.pop(name)
        stuck = self._stuck
        if stuck is None:
            return
        stuck.channels = [other for other in stuck.channels if other is not channel]
        if not stuck.channels:
            self._stuck = None
            if not stuck.some_got_it:
                self.store.memory.put_back(stuck.segment)
        self.retry()

    def save(self) -> None:
        """Move what waits at the topic to its backend, and to those of channels that lack it.

        Raises:
            BackendError: the rest is still in memory.
        """
        stuck = self._stuck
        while stuck is not None and stuck.channels:
            one = stuck.segment
            stuck.channels[0].save_published(Segment(one.batch, one.first, one.last, one.attempts))
            stuck.some_got_it = True
            del stuck.channels[0]
        self._stuck = None
        self.store.save_memory()

    def empty(self) -> None:
        """Drop what waits at the topic. What is being carried is the caller's part."""
        self.dropped["emptied"] += self.store.empty()
        recovered = self._recovered() if self._recovered is not None else None
        if recovered is not None:
            recovered.clear()
        if self._stuck is not None:
            if not self._stuck.some_got_it:
                self.dropped["emptied"] += self._stuck.segment.count
            self._stuck = None
            self.retry()
