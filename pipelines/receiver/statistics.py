"""What a receiver counts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

__all__ = ["Statistics"]


@dataclass(slots=True)
class Statistics:
    """Counts since the start, and some figures of now. Written in trio's thread, read in any.

    Attributes:
        received: messages taken from nsqds, again for each delivery.
        stored: messages written to the log.
        segments: written.
        duplicates_dropped: messages that the log had already; finished, not stored again.
        requeued: messages given back because there was no room.
        pauses: how often there was none.
        is_paused: 1 while RDY is 0 for want of room.
        pending: messages received and not stored yet, now.
        pending_nbytes: of their bodies.
        connections, topics: now.
    """

    received: int = 0
    stored: int = 0
    segments: int = 0
    duplicates_dropped: int = 0
    requeued: int = 0
    pauses: int = 0
    is_paused: int = 0
    pending: int = 0
    pending_nbytes: int = 0
    connections: int = 0
    topics: int = 0

    def as_dict(self) -> dict[str, int]:
        """Name and value of each."""
        return dataclasses.asdict(self)
