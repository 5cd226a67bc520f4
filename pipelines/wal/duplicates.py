"""Recognizes messages that the log has already, by (topic, nsqd, id), while segments are retained.

nsqd delivers a message again when its FIN was lost or too late. ``attempts`` does not show this:
after a crash nsqd counts from 1 again. An id is unique within one topic of one nsqd.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from pipelines.wal.segments import IdScope

__all__ = ["MAX_IDS", "Duplicates"]

MAX_IDS: Final = 2_000_000
"""For each topic of an nsqd. An id takes about 120 bytes of memory."""


class _ScopeIds:
    """The ids of one scope. ``segments``: (end of the segment, its ids), oldest first."""

    __slots__ = ("ids", "segments")

    def __init__(self) -> None:
        self.ids: set[bytes] = set()
        self.segments: deque[tuple[int, Sequence[bytes]]] = deque()

    def forget_oldest(self) -> None:
        self.ids.difference_update(self.segments.popleft()[1])


class Duplicates:
    """Remembers the newest ``max_ids`` ids of each scope, at least those of one segment.

    Not thread-safe.
    """

    def __init__(self, max_ids: int = MAX_IDS) -> None:
        self._max_ids = max_ids
        self._scopes: dict[IdScope, _ScopeIds] = {}

    def __len__(self) -> int:
        """The number of ids."""
        return sum(len(known.ids) for known in self._scopes.values())

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

    def add(self, scope: IdScope, end: int, ids: Sequence[bytes]) -> None:
        """Add the ids of the segment that ends at ``end``; none of them may be known."""
        known = self._scopes.get(scope)
        if known is None:
            known = self._scopes[scope] = _ScopeIds()
        known.ids.update(ids)
        known.segments.append((end, ids))
        while len(known.ids) > self._max_ids and len(known.segments) > 1:
            known.forget_oldest()

    def forget_before(self, lsn: int) -> None:
        """Forget the segments that end at or before ``lsn``."""
        for scope, known in list(self._scopes.items()):
            while known.segments and known.segments[0][0] <= lsn:
                known.forget_oldest()
            if not known.segments:
                del self._scopes[scope]
