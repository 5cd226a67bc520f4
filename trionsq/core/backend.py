"""What a queue does with messages that memory has no room for: the interface of the overflow.

The engines live in `trionsq.storage`; a topic and each channel has a backend of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from trionsq.core.batch import Segment
from trionsq.core.peek import BackendView

__all__ = ["Backend", "BackendBusy", "BackendError"]


class BackendError(Exception):
    """The backend did not take the messages. None of them was stored; the text says why."""


class BackendBusy(BackendError):
    """Too much waits to be made durable. No fault: when it is, the messages will be taken."""


class Backend(Protocol):
    """A FIFO of messages outside of memory, in batches. All calls are synchronous.

    Attributes:
        depth: messages that were appended and not yet read; above 0 as long as `read` may give
            one.
        behind: whether too much waits to be made durable. To be asked before `append`, which
            itself does not refuse for that.
        caught_up: is called when `behind` has ended.
    """

    caught_up: Callable[[], None]

    @property
    def depth(self) -> int: ...
    @property
    def behind(self) -> bool: ...

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        """Take all messages of ``segment`` or none.

        ``due_ns`` is for deferred messages: when each is due, in nanoseconds since the epoch. Such
        a message comes back alone, in a batch whose timestamp_ns and defer_ms add up to that time.

        Raises:
            BackendError: nothing was stored.
        """

    def read(self, count_max: int, nbytes_max: int) -> Segment | None:
        """The next messages, at least one and within both limits; None if it can give none now.

        How much it reads at once is for the backend to decide, whatever the limits allow.
        """

    def peek(self) -> BackendView | None:
        """What is stored now, to be looked at; None if that is nothing."""

    def oldest_ns(self) -> int | None:
        """When the message was published that is read next, nanoseconds since the epoch.

        None if there is none or that is not known. Cheap: nothing is read for it twice.
        """

    def check(self) -> str | None:
        """What is wrong with its own account of itself, None if nothing is. Cheap."""

    def empty(self) -> int:
        """Drop everything; the number of messages dropped."""

    def delete(self) -> None:
        """Drop everything and leave nothing behind."""

    def close(self) -> None:
        """Make durable what was appended, and let go of all resources.

        Raises:
            BackendError: it is not durable.
        """
