"""Which messages of a disk queue are deferred, and what that asks of the sidecar."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trionsq.core.batch import Batch, Segment
from trionsq.storage.deferrals import DeferralFile

__all__ = ["NO_WORK", "DueTimes", "SidecarWork"]

log = logging.getLogger("trionsq")

_MS_NS: Final = 1_000_000
# So many lines of messages that were read may stand in the sidecar, or as many as of others.
_SPENT_LINES: Final = 1_000


@dataclass(frozen=True, slots=True)
class SidecarWork:
    """What a sync does to the sidecar: ids with due times in nanoseconds since the epoch.

    Attributes:
        new: to be added before the positions count the messages.
        keep: what alone is to be left once the positions are stored; None: leave all.
    """

    new: list[tuple[bytes, int]]
    keep: dict[bytes, int] | None


NO_WORK: Final = SidecarWork([], None)


class DueTimes:
    """The deferred messages of a queue. Bounded by the depth of the queue."""

    __slots__ = ("_due_ns", "_lines", "_new")

    def __init__(self) -> None:
        self._due_ns: dict[bytes, int] = {}
        self._new: list[tuple[bytes, int]] = []
        # At most so many lines stand in the sidecar.
        self._lines = 0

    def __bool__(self) -> bool:
        """Whether a message is deferred."""
        return bool(self._due_ns)

    @property
    def has_new(self) -> bool:
        """Whether a message is deferred of which the sidecar does not know."""
        return bool(self._new)

    @property
    def on_disk(self) -> bool:
        """Whether there may be a sidecar."""
        return self._lines > 0

    def due_ns(self, id_: bytes) -> int | None:
        """When a message is due, None if it is not deferred. May be asked in another thread."""
        return self._due_ns.get(id_)

    def load(self, sidecar: DeferralFile) -> None:
        """Take over what the file says."""
        try:
            self._due_ns = sidecar.load()
        except OSError as error:
            log.error("%s: deferred messages lose their delay: %s", sidecar.name, error)
            self._lines = 1
        else:
            self._lines = len(self._due_ns)

    def add(self, ids: list[bytes], due_ns: Sequence[int]) -> None:
        """Messages were stored that are due at these times, nanoseconds since the epoch."""
        entries = list(zip(ids, due_ns, strict=True))
        self._due_ns.update(entries)
        self._new += entries

    def take(self, segment: Segment) -> Segment:
        """The first message alone if it is deferred, else those before the next deferred one."""
        ids = segment.ids()
        due_ns = self._due_ns.pop(ids[0], None)
        if due_ns is None:
            for place, id_ in enumerate(ids):
                if id_ in self._due_ns:
                    segment.last = segment.first + place
                    break
            return segment
        alone = segment.batch.extract([segment.first], ids[:1])
        delay_ms = max(1, -((alone.timestamp_ns - due_ns) // _MS_NS))
        batch = Batch(alone.bodies, alone.ids, alone.timestamp_ns, delay_ms)
        return Segment(batch, 0, 1, segment.attempts)

    def clear(self) -> None:
        """The queue has no messages."""
        self._due_ns.clear()
        self._new.clear()

    def forget_file(self) -> None:
        """There is no sidecar any more."""
        self._lines = 0

    def plan(self, *, at_end: bool = False) -> SidecarWork:
        """What the next sync has to do; ``at_end``: the file is to have no line too many."""
        due_ns = self._due_ns
        new = [entry for entry in self._new if entry[0] in due_ns]
        self._new = []
        self._lines += len(new)
        spent = self._lines - len(due_ns)
        if spent > 0 and (at_end or not due_ns or spent > max(_SPENT_LINES, len(due_ns))):
            return SidecarWork(new, dict(due_ns))
        return SidecarWork(new, None)

    def done(self, work: SidecarWork) -> None:
        """The sync did it."""
        if work.keep is not None:
            self._lines = len(work.keep)

    def failed(self, work: SidecarWork) -> None:
        """The sync did some of it, or nothing."""
        self._new[:0] = work.new
