"""What the log engine's state has: topics, channels, held messages; and how it changes.

Topics and channels have numbers from one counter, which are never given again. So a change that
comes late, after its topic or channel is gone, finds no row and does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trionsq.disk import Disk

__all__ = [
    "AddChannel",
    "AddTopic",
    "Change",
    "DropChannel",
    "DropHeld",
    "DropTopic",
    "ForgetTopic",
    "PutHeld",
    "PutMeta",
    "State",
    "StateContent",
    "StateError",
    "StoredChannel",
    "StoredHeld",
    "StoredTopic",
    "UpdateChannel",
    "UpdateTopic",
    "numbers_added",
]


class StateError(Exception):
    """The state cannot be read or changed; the text names the file."""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic.

    Attributes:
        number: of this incarnation of the topic.
        durability: when a publisher gets its OK: ``always`` or ``interval``.
        frontier: the sequence at which a topic without channels, or a paused one, stands still;
            None: at the end.
        first: messages below it are gone.
        end: sequences below it may be in use.
        gaps: ranges ``(first, end)`` of sequences that have no message.
        scan: from where on a start looks for what the state does not know: first sequence of a
            segment, offset and sequence of a record in it; None: from the segment that it needs.
    """

    number: int
    name: str
    durability: str
    paused: bool
    frontier: int | None
    first: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()
    scan: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class StoredChannel:
    """A channel.

    Attributes:
        number: of this incarnation of the channel.
        topic: number of its topic.
        next: the next sequence to read.
        frontier: the sequence up to which the topic has handed on.
        open: what is read and not finished, packed.
        fired_ns: held messages that were due until then are no longer held.
    """

    number: int
    topic: int
    name: str
    paused: bool
    next: int
    frontier: int
    open: bytes = b""
    fired_ns: int = 0


@dataclass(frozen=True, slots=True)
class StoredHeld:
    """A chunk of a channel's held messages.

    Attributes:
        channel: number of the channel.
        chunk: number of the chunk in its channel.
        count: of messages.
        max_due_ns: when the last of them is due.
        data: the messages, packed.
    """

    channel: int
    chunk: int
    count: int
    max_due_ns: int
    data: bytes


@dataclass(frozen=True, slots=True)
class AddTopic:
    """Enter a topic. A second time replaces its row."""

    row: StoredTopic


@dataclass(frozen=True, slots=True)
class UpdateTopic:
    """Replace all of a topic but its name. Does nothing if the topic is gone."""

    row: StoredTopic


@dataclass(frozen=True, slots=True)
class DropTopic:
    """Remove a topic with its channels and what they hold; its number becomes a tombstone."""

    number: int


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """Remove a tombstone: the files of the topic are deleted."""

    number: int


@dataclass(frozen=True, slots=True)
class AddChannel:
    """Enter a channel. A second time replaces its row. Does nothing if its topic is gone."""

    row: StoredChannel


@dataclass(frozen=True, slots=True)
class UpdateChannel:
    """Replace all of a channel but its name and topic. Does nothing if the channel is gone."""

    row: StoredChannel


@dataclass(frozen=True, slots=True)
class DropChannel:
    """Remove a channel and what it holds."""

    number: int


@dataclass(frozen=True, slots=True)
class PutHeld:
    """Enter or replace a chunk of held messages. Does nothing if the channel is gone."""

    row: StoredHeld


@dataclass(frozen=True, slots=True)
class DropHeld:
    """Remove chunks of held messages."""

    channel: int
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PutMeta:
    """Set a value of the node."""

    key: str
    value: bytes


Change = (
    AddTopic
    | UpdateTopic
    | DropTopic
    | ForgetTopic
    | AddChannel
    | UpdateChannel
    | DropChannel
    | PutHeld
    | DropHeld
    | PutMeta
)


def numbers_added(changes: Sequence[Change]) -> set[int]:
    """Return the numbers of topics whose row, or a channel's, would be new."""
    added: set[int] = set()
    for change in changes:
        if isinstance(change, AddTopic):
            added.add(change.row.number)
        elif isinstance(change, AddChannel):
            added.add(change.row.topic)
    return added


@dataclass(slots=True)
class StateContent:
    """All that the state has.

    Attributes:
        topics, channels: in the order of their numbers.
        held: in the order of channels and chunks.
        tombstones: names of deleted topics whose files may still be there, by number.
        next_number: above all numbers that topics and channels ever had.
    """

    topics: list[StoredTopic] = field(default_factory=list)
    channels: list[StoredChannel] = field(default_factory=list)
    held: list[StoredHeld] = field(default_factory=list)
    tombstones: Mapping[int, str] = field(default_factory=dict)
    meta: Mapping[str, bytes] = field(default_factory=dict)
    next_number: int = 1


class State(Protocol):
    """The state of a data path. All calls block; for one thread at a time."""

    @property
    def reserve_given_up(self) -> bool:
        """Whether the disk is so full that publishes should be refused."""

    def load(self) -> StateContent:
        """Return all of it.

        Raises:
            StateError: it is damaged or cannot be read.
        """

    def apply(self, changes: Sequence[Change]) -> None:
        """Make the changes durable in one transaction, all or none.

        Each key (a number, a chunk, a key of the node) gets the result of its changes in their
        order. After an error the old or the new content survives a crash; the same changes may be
        applied again.

        Raises:
            StateError: they were not applied.
        """

    def checkpoint(self) -> None:
        """Shorten what a start has to read, and make a lost reserve again if there is room.

        Raises:
            StateError: nothing is lost; try again later.
        """

    def copy_to(self, disk: Disk) -> None:
        """Copy all that was applied to the state of another folder, which has none, durably.

        In any thread; other calls wait meanwhile.

        Raises:
            StateError, OSError: there is no copy, or it is not durable.
        """

    def close(self) -> None:
        """Release the file. Errors are ignored: all that was applied is durable."""
