"""Which messages of a disk queue are deferred, and what that asks of the sidecar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trionsq.core.batch import MessageBatch, Segment

__all__ = ["NO_WORK", "DueTimes", "SidecarWork"]

_MS_NS: Final = 1_000_000
# So many lines of messages that were read may stand in the sidecar, or as many as of others.
_SPENT_LINES: Final = 1_000
# So many ids are looked at first for the next deferred message, then twice as many each time.
_LOOK_FIRST: Final = 16


@dataclass(frozen=True, slots=True)
class SidecarWork:
    """What a sync does to the sidecar. The maps are those of the queue, which goes on using them.

    Attributes:
        new: ids and due times (ns since the epoch) to be added before the positions count them.
        due_ns: due times of all deferred messages, by id.
        read: of those that were read since the positions of this sync: a crash brings them back.
        tidy: whether lines of no use go, once the positions are stored.
        dropped: maps of messages that were dropped. To free a large one takes its time.
    """

    new: list[tuple[bytes, int]] = field(default_factory=list)
    due_ns: dict[bytes, int] = field(default_factory=dict)
    read: dict[bytes, int] = field(default_factory=dict)
    tidy: bool = False
    dropped: list[dict[bytes, int]] = field(default_factory=list)

    def wanted(self) -> list[tuple[bytes, int]]:
        """Of the new ones those that the positions of this sync count as not read."""
        due_ns, read = self.due_ns, self.read
        return [entry for entry in self.new if entry[0] in due_ns or entry[0] in read]

    def is_kept(self, id_: bytes, due_ns: int) -> bool:
        """Whether a line of the sidecar is of use."""
        return self.due_ns.get(id_) == due_ns or self.read.get(id_) == due_ns

    def free_dropped(self) -> None:
        """Free the maps entry by entry: as a whole they would hold up all threads."""
        for dropped in self.dropped:
            while dropped:
                dropped.popitem()


NO_WORK: Final = SidecarWork()


class DueTimes:
    """The deferred messages of a queue. Bounded by the depth of the queue."""

    __slots__ = ("_dropped", "_due_ns", "_new", "_read")

    def __init__(self) -> None:
        self._due_ns: dict[bytes, int] = {}
        self._new: list[tuple[bytes, int]] = []
        # Those that were read since the last plan.
        self._read: dict[bytes, int] = {}
        self._dropped: list[dict[bytes, int]] = []

    def __bool__(self) -> bool:
        """Whether a message is deferred."""
        return bool(self._due_ns)

    def __len__(self) -> int:
        return len(self._due_ns)

    @property
    def has_new(self) -> bool:
        """Whether a message is deferred of which the sidecar does not know."""
        return bool(self._new)

    def due_ns(self, id_: bytes) -> int | None:
        """When a message is due, None if it is not deferred. May be asked in another thread."""
        return self._due_ns.get(id_)

    def load(self, due_ns: dict[bytes, int]) -> None:
        """Take over what the sidecar says; what was stored since is newer."""
        due_ns.update(self._due_ns)
        self._due_ns = due_ns

    def add(self, ids: list[bytes], due_ns: Sequence[int]) -> None:
        """Messages were stored that are due at these times, nanoseconds since the epoch."""
        entries = list(zip(ids, due_ns, strict=True))
        self._due_ns.update(entries)
        self._new += entries

    def take(self, segment: Segment) -> Segment:
        """The first message alone if it is deferred, else those before the next deferred one."""
        batch, first = segment.batch, segment.first
        ids = batch.ids.slice(first, first + 1)
        due_ns = self._due_ns.get(ids[0])
        if due_ns is None:
            segment.last = self._next_deferred(segment)
            return segment
        self._read[ids[0]] = due_ns  # first, for a job may ask now
        del self._due_ns[ids[0]]
        alone = batch.extract([first], ids)
        delay_ms = max(1, -((alone.timestamp_ns - due_ns) // _MS_NS))
        alone = MessageBatch(alone.bodies, alone.ids, alone.timestamp_ns, delay_ms)
        return Segment(alone, 0, 1, segment.attempts)

    def _next_deferred(self, segment: Segment) -> int:
        """The index of the first deferred message behind the first one, or that of the end."""
        due_ns, ids = self._due_ns, segment.batch.ids
        first, step = segment.first + 1, _LOOK_FIRST
        while first < segment.last:
            end = min(first + step, segment.last)
            for index, id_ in enumerate(ids.slice(first, end), first):
                if id_ in due_ns:
                    return index
            first, step = end, 2 * step
        return segment.last

    def clear(self) -> None:
        """The queue has no messages."""
        if self._due_ns:
            self._dropped.append(self._due_ns)
            self._due_ns = {}
        self._new = []

    def plan(self, lines: int, *, at_end: bool = False) -> SidecarWork:
        """What the next sync has to do.

        ``lines`` are in the sidecar now. ``at_end``: it is to have no line too many.
        """
        due_ns = self._due_ns
        spent = lines + len(self._new) - len(due_ns)
        tidy = spent > 0 and (at_end or not due_ns or spent > max(_SPENT_LINES, len(due_ns)))
        self._read = {}
        work = SidecarWork(self._new, due_ns, self._read, tidy, self._dropped)
        self._new, self._dropped = [], []
        return work

    def failed(self, work: SidecarWork) -> None:
        """The sync did some of it, or nothing."""
        if work.due_ns is self._due_ns:
            self._new = work.new + self._new
