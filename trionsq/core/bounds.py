"""What a queue with a policy knows beside its messages: what applies, and what is too old."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.policies import DROP_NEWEST, DROP_OLDEST, AppliedSettings

__all__ = ["EXPIRED", "Bounds", "LeftOut", "weight"]

EXPIRED: Final = "expired"
"""Why a message goes that is older than message_ttl."""

_NO_LIMIT: Final = 2**63


def weight(segment: Segment) -> int:
    """Return the size of the bodies; their share of the batch if they differ. Shares add up."""
    bodies, count = segment.batch.bodies, segment.batch.count
    return bodies.nbytes * segment.last // count - bodies.nbytes * segment.first // count


class LeftOut:
    """Sequences of a log that a channel is not to get, though its cursor passes them.

    They are added in order, and popped in order.

    Attributes:
        count: how many.
    """

    def __init__(self) -> None:
        self.count = 0
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def add(self, first: int, end: int) -> None:
        self.count += end - first
        if self._ends and self._ends[-1] == first:
            self._ends[-1] = end
        else:
            self._firsts.append(first)
            self._ends.append(end)

    def has(self, sequence: int) -> bool:
        at = bisect_right(self._firsts, sequence) - 1
        return at >= 0 and sequence < self._ends[at]

    def passed(self, sequence: int, count: int) -> None:
        """Forget the ranges before a sequence; ``count`` messages of them were popped."""
        self.count -= count
        done = bisect_right(self._ends, sequence)
        del self._firsts[:done], self._ends[:done]


class Bounds:
    """What a queue with a policy keeps beside its messages.

    Attributes:
        settings: what applies.
        max_messages, max_in_flight: of the settings.
        drops_newest, drops_oldest: whether ``when_full`` says so.
        ttl_ns: of the settings; 0 for what does not expire.
        max_bytes: of the settings; so much that nothing exceeds it for none.
        now_ns: the wall clock.
        backend_nbytes: size of the bodies in the backend.
        give_up: gets messages that are dropped, and why.
        count_in_flight: messages that the clients of the channel hold.
        has_room: tells whether expired messages may be given up now; None if they always may.
        left: what a cursor passes and the channel does not get.
    """

    __slots__ = ("backend_nbytes", "count_in_flight", "drops_newest", "drops_oldest", "give_up",
                 "has_room", "left", "max_bytes", "max_in_flight", "max_messages", "now_ns",
                 "settings", "ttl_ns")  # fmt: skip

    def __init__(
        self,
        settings: AppliedSettings,
        now_ns: Callable[[], int],
        give_up: Callable[[Segment, str], None],
        count_in_flight: Callable[[], int],
        has_room: Callable[[], bool] | None = None,
    ) -> None:
        self.settings = settings
        self.max_messages = settings.max_messages
        self.max_bytes = settings.max_bytes or _NO_LIMIT
        self.max_in_flight = settings.max_in_flight
        self.drops_newest = settings.when_full == DROP_NEWEST
        self.drops_oldest = settings.when_full == DROP_OLDEST
        self.ttl_ns = settings.message_ttl_ns
        self.now_ns = now_ns
        self.backend_nbytes = 0
        self.give_up = give_up
        self.count_in_flight = count_in_flight
        self.has_room = has_room
        self.left = LeftOut()

    def note_read(self, segment: Segment, depth: int) -> None:
        """Take what was read from the backend off its size; ``depth``: what it still has."""
        nbytes = self.backend_nbytes - weight(segment)
        self.backend_nbytes = nbytes if nbytes > 0 and depth else 0

    def forget(self) -> int:
        """Note that the queue is emptied; return how many messages it had left out.

        Those were counted as dropped when they came.
        """
        left, self.left = self.left, LeftOut()
        self.backend_nbytes = 0
        return left.count

    def oldest_allowed(self, wall_ns: int) -> tuple[int, str]:
        """Return the time up to which what was published is too old, and why.

        Without a reason nothing is.
        """
        settings, limits = self.settings, []
        if self.ttl_ns:
            limits.append((wall_ns - self.ttl_ns, EXPIRED))
        if settings.max_age_ns and settings.when_full == DROP_OLDEST:
            limits.append((wall_ns - settings.max_age_ns, "max_age"))
        return max(limits, default=(0, ""))

    def drop_older(self, segment: Segment, before_ns: int, reason: str) -> Segment | None:
        """Give up the messages that were not published after a time; return the others."""
        batch = segment.batch
        if batch.stamps is None:
            if batch.timestamp_ns > before_ns:
                return segment
            self.give_up(segment, reason)
            return None
        if before_ns <= 0:
            return segment
        # As bytes times after 1970 have the order of the numbers.
        limit = before_ns.to_bytes(8)
        stamps = batch.stamps.slice(segment.first, segment.last)
        if min(stamps) > limit:
            return segment
        return self._keep(segment, [stamp > limit for stamp in stamps], reason)

    def _keep(self, segment: Segment, wanted: Sequence[bool], reason: str) -> Segment | None:
        dropped = _part(segment, [place for place, one in enumerate(wanted) if not one])
        if dropped is not None:
            self.give_up(dropped, reason)
        return _part(segment, [place for place, one in enumerate(wanted) if one])

    def count_old(self, segment: Segment, before_ns: int) -> int:
        """Return how many messages at the begin of a segment were not published after a time."""
        batch = segment.batch
        if batch.stamps is None:
            return segment.count if batch.timestamp_ns <= before_ns else 0
        limit = max(0, before_ns).to_bytes(8)
        stamps = batch.stamps.slice(segment.first, segment.last)
        return next((at for at, stamp in enumerate(stamps) if stamp > limit), segment.count)

    def without_left(self, segment: Segment) -> tuple[Segment | None, int]:
        """Return the messages that are not in `left`, and how many are."""
        sequences = segment.batch.sequences
        if sequences is None:
            return segment, 0
        wanted = [not self.left.has(sequences[at]) for at in range(segment.first, segment.last)]
        count = segment.count - sum(wanted)
        self.left.passed(sequences[segment.last - 1] + 1, count)
        if not count:
            return segment, 0
        return _part(segment, [place for place, one in enumerate(wanted) if one]), count


def _part(segment: Segment, places: list[int]) -> Segment | None:
    """Return some messages of a segment, None if there are none; ``places`` begin with 0."""
    if not places:
        return None
    if places[-1] - places[0] + 1 == len(places):
        first = segment.first + places[0]
        return Segment(segment.batch, first, first + len(places), segment.attempts)
    ids = segment.ids()
    batch = segment.batch.extract(
        [segment.first + place for place in places], [ids[place] for place in places]
    )
    return Segment(batch, 0, len(places), segment.attempts)
