"""The backend of ephemeral topics and channels, which have no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from trionsq.core.batch import Segment
from trionsq.core.deferred import Deferred
from trionsq.core.peek import BackendView

__all__ = ["DiscardingBackend"]


class DiscardingBackend:
    """Discards and counts every message: for those that do not fit in memory.

    Attributes:
        dropped: number of messages by reason; the owner may replace the counter by its own.
    """

    depth = 0
    on_disk = 0
    behind = False
    pending = None
    has_published = False

    def __init__(self, wanted: Callable[[Segment], bool] | None = None) -> None:
        """``wanted``: see `Deferred`."""
        self._wanted = wanted
        self.caught_up: Callable[[], None] = lambda: None
        self.dropped: Counter[str] = Counter()

    def new_deferred(self, scan_at: Callable[[float], None]) -> Deferred:
        return Deferred(self._wanted)

    def is_recovering(self) -> bool:
        return False

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        self.dropped["ephemeral overflow"] += segment.count

    def read(self, max_count: int, max_bytes: int) -> Segment | None:
        return None

    def unread(self, segment: Segment) -> bool:
        return False

    def peek(self) -> BackendView | None:
        return None

    def oldest_ns(self) -> int | None:
        return None

    def empty(self) -> int:
        return 0

    def delete(self) -> None:
        return None

    def close(self) -> None:
        return None

    def check(self) -> str | None:
        return None
