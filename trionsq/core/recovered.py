"""The queue of a channel, and the copies that an unclean end left in it.

A topic's queue on disk may say later than the channels' queues that a message has left it. After a
kill it then gives such messages to its channels once more, which have them on disk already. So the
topic notes the messages that it gives from disk, and a channel that reads files of before the
start leaves out the copies.
"""

from __future__ import annotations

from random import Random
from typing import Final, Protocol

from trionsq.core.batch import Segment
from trionsq.core.queue import Backend, Store

__all__ = ["MAX_DELIVERY_BYTES", "ChannelStore", "GovernsDelivery", "Recovered"]

# The bodies of one delivery; so much is popped at once.
MAX_DELIVERY_BYTES: Final = 256 * 1024
# Messages that are read at once while copies are left out, whatever the client has credit for.
_MAX_READ_MESSAGES: Final = 512
# Reads of nothing but copies before other tasks get their turn.
_MAX_COPIES_READS: Final = 16
# A topic's queue says every --sync-every (2,500) messages where it is, some may be read meanwhile.
# So many take about 3 MB, until the channels have read their files.
_MAX_IDS: Final = 20_000


class Recovered:
    """The first messages that a topic gave to its channels from disk since the start.

    Attributes:
        user_count: the `ChannelStore`s that need it.
    """

    __slots__ = ("_bodies", "user_count")

    def __init__(self) -> None:
        self.user_count = 0
        # The hash of each body, by id.
        self._bodies: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def clear(self) -> None:
        """Forget what was noted: the topic was emptied before all channels had got it."""
        self._bodies.clear()

    def note_segment(self, segment: Segment) -> None:
        """Note messages that all channels get now, unless too many are noted already."""
        if len(self._bodies) >= _MAX_IDS:
            return
        bodies = segment.batch.bodies.slice(segment.first, segment.last)
        self._bodies.update(zip(segment.ids(), map(hash, bodies), strict=True))

    def without_copies(self, segment: Segment) -> Segment | None:
        """Return the messages of a segment that were not noted; None if all were."""
        noted = self._bodies.get
        ids = segment.ids()
        bodies = segment.batch.bodies.slice(segment.first, segment.last)
        kept = [
            place
            for place, (id_, body) in enumerate(zip(ids, bodies, strict=True))
            if noted(id_) != hash(body)
        ]
        if len(kept) == len(ids):
            return segment
        if not kept:
            return None
        places = [segment.first + place for place in kept]
        batch = segment.batch.extract(places, [ids[place] for place in kept])
        return Segment(batch, 0, len(kept), segment.attempts)


class GovernsDelivery(Protocol):
    """A policy at work on what a `ChannelStore` delivers."""

    def pop_segment(self, max_count: int) -> Segment | None:
        """Take the place of `ChannelStore.pop_segment`."""

    def read_wanted(self, max_count: int) -> Segment | None:
        """Read the next messages of the backend, without those that the policy leaves out."""


class ChannelStore(Store):
    """The queue of a channel, from which segments are popped for delivery.

    Attributes:
        recovered: the messages that the topic may have given once more; None if there is no need
            to know them.
        must_read_on: whether the last `pop_segment` gave up although there may be more to read.
        random: makes the choices.
        governor: the policy at work on what is delivered; None without one.
    """

    __slots__ = ("governor", "must_read_on", "random", "recovered")

    def __init__(self, limit: int, backend: Backend, random: Random) -> None:
        super().__init__(limit, backend)
        self.recovered: Recovered | None = None
        self.must_read_on = False
        self.random = random
        self.governor: GovernsDelivery | None = None

    def use_recovered(self, recovered: Recovered) -> None:
        """Leave out copies from now on."""
        self.recovered = recovered
        recovered.user_count += 1

    def release_recovered(self) -> None:
        """Leave out no copies any more."""
        if self.recovered is not None:
            self.recovered.user_count -= 1
            if not self.recovered.user_count:
                self.recovered.clear()  # the topic has it, until it is to note something
            self.recovered = None

    def pop_segment(self, max_count: int) -> Segment | None:
        """Pop the next messages; None if the backend has some and gives none now.

        Memory and the backend are served at random, so that neither waits for the other to end. A
        deferred message that the backend kept comes alone.
        """
        if self.governor is not None:
            return self.governor.pop_segment(max_count)
        if self.backend.depth and (not self.memory.depth or self.random.random() < 0.5):
            segment = self.read_segment(max_count)
            if segment is not None:
                return segment
            if not self.memory.depth:
                return None
        return self.memory.pop_segment(max_count, MAX_DELIVERY_BYTES)

    def read_segment(self, max_count: int) -> Segment | None:
        """Read the next messages of the backend, without copies of what the topic gave again."""
        self.must_read_on = False
        for _ in range(_MAX_COPIES_READS):
            recovered = self.recovered
            if recovered is None:
                if self.governor is not None:
                    return self.governor.read_wanted(max_count)
                return self.read_backend(max_count, MAX_DELIVERY_BYTES)
            segment = self.read_backend(_MAX_READ_MESSAGES, MAX_DELIVERY_BYTES)
            is_recovering = self.backend.is_recovering()
            kept = segment
            if segment is not None and is_recovering:
                kept = recovered.without_copies(segment)
            if not is_recovering or not self.backend.depth:
                self.release_recovered()
            if segment is None:
                return None
            self.drop("double", segment.count - (0 if kept is None else kept.count))
            if kept is not None:
                return self._first_of(kept, max_count)
        self.must_read_on = True
        return None

    def _first_of(self, segment: Segment, max_count: int) -> Segment:
        """The first messages; the others go to the head of the memory queue."""
        if segment.count <= max_count or segment.batch.defer_ms:
            return segment
        middle = segment.first + max_count
        rest = Segment(segment.batch, middle, segment.last, segment.attempts)
        self.memory.put_back(rest)
        return Segment(segment.batch, segment.first, middle, segment.attempts)
