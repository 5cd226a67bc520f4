"""Recognizes messages that the log has already, by (topic, nsqd, id), while the process lives.

nsqd delivers a message again when its FIN was lost or too late, or when it was away. ``attempts``
does not show this: after a crash nsqd counts from 1 again. An id is unique within one topic of one
nsqd.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pipelines.wal.segments import IdScope

__all__ = ["MAX_IDS", "Duplicates", "ids_in_memory"]

MAX_IDS: Final = 2_000_000
"""For each topic of an nsqd, unless more come within the time for which ids are kept."""

_ID_BYTES: Final = 120
_PART_OF_MEMORY: Final = 8
_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")


class _SegmentIds:
    """The ids that one segment has of one scope; empty when they were forgotten."""

    __slots__ = ("added_s", "ids", "scope")

    def __init__(self, scope: IdScope, ids: Sequence[bytes], added_s: float) -> None:
        self.scope = scope
        self.ids = ids
        self.added_s = added_s


class _ScopeIds:
    """The ids of one scope, and its segments, oldest first."""

    __slots__ = ("ids", "segments")

    def __init__(self) -> None:
        self.ids: set[bytes] = set()
        self.segments: deque[_SegmentIds] = deque()


class Duplicates:
    """Remembers the newest ids of each scope, at least those of one segment.

    With ``max_ids`` so many. Without it `MAX_IDS`, and more where they are younger than
    ``keep_s``: the number follows the rate. Of all scopes together the newest ``max_total`` are
    kept. Not thread-safe.
    """

    def __init__(
        self,
        max_ids: int | None = None,
        *,
        keep_s: float = 0.0,
        max_total: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``max_total``: None for an eighth of the memory. ``clock``: seconds."""
        self._max_ids = MAX_IDS if max_ids is None else max_ids
        self._keep_s = keep_s if max_ids is None else float("-inf")
        self._max_total = ids_in_memory() if max_total is None else max_total
        self._clock = clock
        self._scopes: dict[IdScope, _ScopeIds] = {}
        # Of all scopes, in the order in which they came
        self._segments: deque[_SegmentIds] = deque()
        self._count = 0
        # Segments without ids in that order
        self._gaps = 0

    def __len__(self) -> int:
        """The number of ids."""
        return self._count

    def new_indices(self, scope: IdScope, ids: Sequence[bytes]) -> list[int] | None:
        """Indices of the ids that are neither known nor earlier in ``ids``; None for all."""
        known = self._scopes.get(scope)
        seen = known.ids if known is not None else set()
        if seen.isdisjoint(ids) and len(set(ids)) == len(ids):
            return None
        new: dict[bytes, int] = {}
        for index, id_ in enumerate(ids):
            if id_ not in seen:
                new.setdefault(id_, index)
        return list(new.values())

    def add(self, scope: IdScope, ids: Sequence[bytes]) -> None:
        """Add the ids that a new segment has of the scope; none of them may be known."""
        known = self._scopes.get(scope)
        if known is None:
            known = self._scopes[scope] = _ScopeIds()
        segment = _SegmentIds(scope, ids, self._clock())
        known.ids.update(ids)
        known.segments.append(segment)
        self._segments.append(segment)
        self._count += len(ids)
        forgettable_s = segment.added_s - self._keep_s
        while (
            len(known.ids) > self._max_ids
            and len(known.segments) > 1
            and known.segments[0].added_s <= forgettable_s
        ):
            self._forget_oldest(known)
        while self._count > self._max_total and self._segments[0] is not segment:
            oldest = self._segments[0]
            if oldest.ids:
                self._forget_oldest(self._scopes[oldest.scope])
            self._segments.popleft()
            self._gaps -= 1
        if 2 * self._gaps > len(self._segments):
            self._segments = deque(segment for segment in self._segments if segment.ids)
            self._gaps = 0

    def _forget_oldest(self, known: _ScopeIds) -> None:
        segment = known.segments.popleft()
        known.ids.difference_update(segment.ids)
        self._count -= len(segment.ids)
        self._gaps += 1
        segment.ids = ()
        if not known.segments:
            del self._scopes[segment.scope]


def ids_in_memory() -> int:
    """How many ids take an eighth of the memory that this process may have."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # "max" where the container has no limit
    with suppress(OSError, ValueError):
        limit = min(limit, int(_CGROUP.read_text()))
    return limit // _PART_OF_MEMORY // _ID_BYTES
