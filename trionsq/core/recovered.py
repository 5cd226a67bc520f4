"""Messages that an unclean end left twice: in a channel's queue, and still in its topic's.

A topic's queue on disk may say later than the channels' that a message has left it. After a kill it
then gives such messages to its channels once more, which have them on disk already. The topic notes
what it gives them from disk; of what a channel reads from the files of before the start it leaves
out the copies.
"""

from __future__ import annotations

from typing import Final

from trionsq.core.batch import Segment

__all__ = ["Recovered"]

# A topic's queue says every --sync-every (2,500) messages where it is, some may be read meanwhile.
# So many take about 3 MB, until the channels have read their files.
_IDS_MAX: Final = 20_000


class Recovered:
    """What a topic gave to its channels from disk since the start: the first of it."""

    __slots__ = ("__weakref__", "_bodies")

    def __init__(self) -> None:
        # The hash of each body, by id.
        self._bodies: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def clear(self) -> None:
        """Forget what was noted: the topic was emptied before all channels had got it."""
        self._bodies.clear()

    def note(self, segment: Segment) -> None:
        """Note messages that all channels get now, unless there are too many already."""
        if len(self._bodies) >= _IDS_MAX:
            return
        bodies = segment.batch.bodies.cut(segment.first, segment.last)
        self._bodies.update(zip(segment.ids(), map(hash, bodies), strict=True))

    def without_copies(self, segment: Segment) -> Segment | None:
        """What a channel has read, less the messages that were noted; None if no other is there."""
        noted = self._bodies.get
        ids = segment.ids()
        bodies = segment.batch.bodies.cut(segment.first, segment.last)
        keep = [
            place
            for place, (id_, body) in enumerate(zip(ids, bodies, strict=True))
            if noted(id_) != hash(body)
        ]
        if len(keep) == len(ids):
            return segment
        if not keep:
            return None
        places = [segment.first + place for place in keep]
        batch = segment.batch.extract(places, [ids[place] for place in keep])
        return Segment(batch, 0, len(keep), segment.attempts)
