"""What a snapshot of a channel leaves with its cursor."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from trionsq.storage.log.ranges import HeldRange

__all__ = ["LastSnapshot", "NeededMessages"]


@dataclass(frozen=True, slots=True)
class NeededMessages:
    """What the state, once it has a snapshot, needs of the log for a channel.

    Attributes:
        number, generation: of the channel; after a seek it may need more.
        next: all from there on.
        open: what is read and not finished, packed.
        fired_ns, chunks, recent: what is deferred: of chunks only what is due later than that.
    """

    number: int
    generation: int
    next: int
    open: bytes
    fired_ns: int
    chunks: list[array[int]]
    recent: list[HeldRange]


@dataclass(frozen=True, slots=True)
class LastSnapshot:
    """The newest snapshot of a channel.

    Attributes:
        seen: the counts of the channel in that moment: the same ones need no other snapshot.
        needed: what it said.
    """

    seen: tuple[int, ...]
    needed: NeededMessages
