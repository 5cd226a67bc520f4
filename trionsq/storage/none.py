"""Backends that store nothing.

`RefusingBackend` stands where the disk queue will be: a publish that finds memory full is refused.
`DroppingBackend` is that of ephemeral topics and channels, which never touch the disk: what does
not fit in memory is dropped, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from trionsq.core.backend import BackendError
from trionsq.core.batch import Segment

__all__ = ["DroppingBackend", "RefusingBackend"]


class _EmptyBackend:
    """A backend that never holds a message."""

    depth = 0
    behind = False

    def __init__(self) -> None:
        self.caught_up: Callable[[], None] = lambda: None

    def read(self, count_max: int, nbytes_max: int) -> Segment | None:
        return None

    def empty(self) -> int:
        return 0

    def delete(self) -> None:
        return None

    def close(self) -> None:
        return None


class RefusingBackend(_EmptyBackend):
    """Refuses every message."""

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        raise BackendError("memory queue full (--mem-queue-size) and no disk queue")


class DroppingBackend(_EmptyBackend):
    """Drops every message.

    Attributes:
        dropped: messages dropped, by reason; whoever owns the backend may set a counter of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dropped: Counter[str] = Counter()

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        self.dropped["ephemeral overflow"] += segment.count
