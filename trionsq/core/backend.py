"""What a queue does with messages that memory has no room for: the interface of the overflow.

The engines live in `trionsq.storage`; a topic and each channel has a backend of its own.
"""

from __future__ import annotations

from typing import Protocol

from trionsq.core.batch import Segment

__all__ = ["Backend", "BackendError"]


class BackendError(Exception):
    """The backend did not take the messages. None of them was stored; the text says why."""


class Backend(Protocol):
    """A FIFO of messages outside of memory, in batches. All calls are synchronous.

    Attributes:
        depth: messages that were appended and not yet read.
    """

    @property
    def depth(self) -> int: ...

    def append(self, segment: Segment) -> None:
        """Take all messages of ``segment`` or none.

        Raises:
            BackendError: nothing was stored.
        """

    def read(self, count_max: int, nbytes_max: int) -> Segment | None:
        """The next messages, at least one and within both limits; None if there are none."""

    def empty(self) -> int:
        """Drop everything; the number of messages dropped."""

    def delete(self) -> None:
        """Drop everything and leave nothing behind."""

    def close(self) -> None:
        """Make durable what was appended, and let go of all resources."""
