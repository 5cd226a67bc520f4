"""The log of a topic, as the cursors of its channels see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from trionsq.storage.log.duereader import MessageSource
from trionsq.storage.log.peek import LogPart
from trionsq.storage.log.reading import Block, Place
from trionsq.storage.log.rows import Change

__all__ = ["CursorLog"]

_AnyCursor = TypeVar("_AnyCursor", contravariant=True)


class CursorLog(MessageSource, Protocol[_AnyCursor]):
    """The log, as a cursor sees it."""

    @property
    def part(self) -> LogPart:
        """The log as it is now, for a thread to read."""

    def read_block(
        self, sequence: int, end: int, place: Place | None, done: Callable[[Block], None]
    ) -> None:
        """Read the messages from ``sequence`` on in a job, which is repeated if it fails."""

    @property
    def has_gaps(self) -> bool:
        """Whether there are sequences that have no message, or one that nobody gets."""

    def gap_end(self, sequence: int) -> int | None:
        """Return where the gap with a sequence ends; None if it is in none."""

    def gap_begin(self, sequence: int) -> int:
        """Return where the gap with a sequence begins, or else the next one."""

    def count_gaps(self, first: int, end: int) -> int:
        """Return how many of the sequences are in gaps."""

    def count_on_disk(self, first: int, end: int) -> int:
        """Return how many of the messages are not in the cache."""

    def drop_cursor(self, cursor: _AnyCursor) -> None:
        """The channel is deleted."""

    def note_emptied(self, cursor: _AnyCursor, dropped: Sequence[Change]) -> None:
        """The channel is emptied: the state has to know before the operator does."""
