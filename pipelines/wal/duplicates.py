"""Which messages the log has already: by (topic, nsqd, id), as far as segments are retained.

A message comes again when its FIN was lost or came too late, whatever its attempts say: after a
crash nsqd counts anew. Ids are unique for one nsqd and topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from pipelines.wal.segments import Stream

__all__ = ["IDS_MAX", "Duplicates"]

IDS_MAX: Final = 2_000_000
"""For each topic of an nsqd. An id costs about 120 bytes of memory."""


class _Known:
    """The ids of one stream. ``parts``: (end of their segment, ids), oldest first."""

    __slots__ = ("ids", "parts")

    def __init__(self) -> None:
        self.ids: set[bytes] = set()
        self.parts: deque[tuple[int, Sequence[bytes]]] = deque()

    def forget_oldest(self) -> None:
        self.ids.difference_update(self.parts.popleft()[1])


class Duplicates:
    """Remembers the newest ``ids_max`` ids of each stream, at least those of one segment.

    For one thread.
    """

    def __init__(self, ids_max: int = IDS_MAX) -> None:
        self._ids_max = ids_max
        self._streams: dict[Stream, _Known] = {}

    def __len__(self) -> int:
        """All ids that are known."""
        return sum(len(known.ids) for known in self._streams.values())

    def new_ones(self, stream: Stream, ids: Sequence[bytes]) -> list[int] | None:
        """Indices of the ids that are neither known nor earlier in ``ids``; None: all of them."""
        known = self._streams.get(stream)
        seen = known.ids if known is not None else set()
        if seen.isdisjoint(ids) and len(set(ids)) == len(ids):
            return None
        fresh: dict[bytes, int] = {}
        for index, id_ in enumerate(ids):
            if id_ not in seen:
                fresh.setdefault(id_, index)
        return list(fresh.values())

    def remember(self, stream: Stream, end: int, ids: Sequence[bytes]) -> None:
        """These, of which none is known, are in the segment that ends at ``end``."""
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = _Known()
        known.ids.update(ids)
        known.parts.append((end, ids))
        while len(known.ids) > self._ids_max and len(known.parts) > 1:
            known.forget_oldest()

    def forget_before(self, lsn: int) -> None:
        """Segments that end at or before ``lsn`` are gone."""
        for stream, known in list(self._streams.items()):
            while known.parts and known.parts[0][0] <= lsn:
                known.forget_oldest()
            if not known.parts:
                del self._streams[stream]
