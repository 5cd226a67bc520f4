"""What the tests of the core share: batches with readable ids, and a backend in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from trionsq.core.batch import ListColumn, MessageBatch, Segment
from trionsq.core.deferred import Deferred
from trionsq.core.in_flight import MissedIds
from trionsq.core.peek import Page, show_segments
from trionsq.core.queue import BackendError
from trionsq.core.round import Round
from trionsq.wire.bodies import ListBodies, StridedBodies

NS_PER_MS = 1_000_000
WALL_NS = 1_700_000_000_000_000_000
"""Wall clock time at the monotonic time 0."""


def wall_ns(now_s: float) -> int:
    """The wall clock at a monotonic time of whole milliseconds."""
    return WALL_NS + round(now_s * 1000) * NS_PER_MS


def message_ids(first: int, count: int) -> list[bytes]:
    return [b"%016x" % number for number in range(first, first + count)]


def body_of(id_: bytes, size: int = 16) -> bytes:
    """A body that tells its id, so that a mix-up shows."""
    return (id_ * (size // 16 + 1))[:size]


def batch(first: int, count: int, sizes: Sequence[int] = (16,), defer_ms: int = 0) -> MessageBatch:
    """Messages with the ids ``first``... and bodies of these sizes in turn; strided if equal."""
    ids = message_ids(first, count)
    bodies = [body_of(id_, sizes[index % len(sizes)]) for index, id_ in enumerate(ids)]
    if len({len(body) for body in bodies}) == 1:
        gap = b"PUB t\n...."
        strided = StridedBodies(b"".join(gap + body for body in bodies), len(gap), len(bodies[0]))
        return MessageBatch(strided, ListColumn(ids), WALL_NS + first, defer_ms)
    return MessageBatch(ListBodies(bodies), ListColumn(ids), WALL_NS + first, defer_ms)


def segment(first: int, count: int, sizes: Sequence[int] = (16,), attempts: int = 0) -> Segment:
    """A whole batch as a segment."""
    return Segment(batch(first, count, sizes), 0, count, attempts)


def contents(one: Segment) -> list[tuple[bytes, bytes, int]]:
    """Id, body and attempts of each message."""
    bodies = one.batch.bodies.slice(one.first, one.last)
    return [(id_, body, one.attempts) for id_, body in zip(one.ids(), bodies, strict=True)]


def run_out(steps: Iterator[None]) -> int:
    """Do all steps; how many turns that took."""
    return 1 + sum(1 for _ in steps)


def reasons(missed: MissedIds | None) -> list[tuple[bytes, str]]:
    """The answers to ids that were missed, however long it takes to find them out."""
    if missed is None:
        return []
    while not missed.is_known:
        missed.search(1)
    return missed.reasons()


class MemoryView:
    """What a `MemoryBackend` held."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = [Segment(one.batch, one.first, one.last, one.attempts) for one in segments]

    def read(self, skip: int, page: Page) -> None:
        show_segments(self._segments, skip, page)


class MemoryBackend:
    """A backend that keeps its segments, or refuses them.

    Attributes:
        refuses: whether it refuses all.
        takes: how many times it takes some before it refuses, None: no limit.
        has_published: see `Backend`.
        deferred: what `new_deferred` made last.
    """

    def __init__(self, refuses: bool = False, has_published: bool = False) -> None:
        self.refuses = refuses
        self.has_published = has_published
        self.deferred = Deferred()
        self.takes: int | None = None
        self.reads_nothing = False
        self.refusals = 0
        self.closed = False
        self.behind = False
        self.caught_up: Callable[[], None] = lambda: None
        self.dropped: Counter[str] = Counter()
        self.segments: list[Segment] = []

    @property
    def on_disk(self) -> int:
        return self.depth

    @property
    def pending(self) -> Round | None:
        return None

    def new_deferred(self, scan_at: Callable[[float], None]) -> Deferred:
        self.deferred = Deferred()
        return self.deferred

    def unread(self, segment: Segment) -> bool:
        return False

    def is_recovering(self) -> bool:
        return False

    @property
    def depth(self) -> int:
        return sum(one.count for one in self.segments)

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        if self.refuses or self.takes == 0:
            self.refusals += 1
            raise BackendError("no space left on device")
        if self.takes is not None:
            self.takes -= 1
        if due_ns is None:
            self.segments.append(segment)
            return
        for place, (id_, due) in enumerate(zip(segment.ids(), due_ns, strict=True)):
            alone = segment.batch.extract([segment.first + place], [id_])
            delay_ms = max(1, -((alone.timestamp_ns - due) // NS_PER_MS))
            deferred = MessageBatch(alone.bodies, alone.ids, alone.timestamp_ns, delay_ms)
            self.segments.append(Segment(deferred, 0, 1, segment.attempts))

    def read(self, count_max: int, nbytes_max: int) -> Segment | None:
        if self.reads_nothing or not self.segments:
            return None
        head = self.segments[0]
        bodies = head.batch.bodies.slice(head.first, head.last)
        count = nbytes = 0
        for body in bodies[:count_max]:
            nbytes += len(body)
            if nbytes > nbytes_max and count:
                break
            count += 1
        taken = Segment(head.batch, head.first, head.first + count, head.attempts)
        head.first += count
        if head.first == head.last:
            del self.segments[0]
        return taken

    def peek(self) -> MemoryView | None:
        return MemoryView(self.segments) if self.segments else None

    def oldest_ns(self) -> int | None:
        return self.segments[0].first_ns if self.segments else None

    def check(self) -> str | None:
        return None

    def empty(self) -> int:
        dropped = self.depth
        self.segments.clear()
        return dropped

    def delete(self) -> None:
        self.segments.clear()
        self.closed = True

    def close(self) -> None:
        self.closed = True


class RoundBackend(MemoryBackend):
    """A backend of a topic whose messages are safe when a test says so.

    Attributes:
        rounds: those that have not ended, the oldest first, and what each has.
    """

    def __init__(self) -> None:
        super().__init__(has_published=True)
        self.rounds: list[tuple[Round, list[Segment]]] = []
        self._is_gathering = False

    @property
    def pending(self) -> Round | None:
        return self.rounds[-1][0] if self._is_gathering else None

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        if self.refuses:
            raise BackendError("no space left on device")
        if not self._is_gathering:
            self.rounds.append((Round(), []))
            self._is_gathering = True
        self.rounds[-1][1].append(segment)

    def next_round(self) -> None:
        """What is appended from now on belongs to another round."""
        self._is_gathering = False

    def finish(self, error: str | None = None, place: int = 0) -> None:
        """End one of the rounds."""
        if place in (len(self.rounds) - 1, -1):
            self._is_gathering = False
        ended, segments = self.rounds.pop(place)
        if error is None:
            self.segments += segments
        ended.finish(error)
        self.caught_up()
