"""A channel of a log topic: a position in the log, and what has returned. No message is copied."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from trionsq.core.batch import MessageBatch, Segment
from trionsq.core.deferred import DeferredMessages
from trionsq.core.peek import BackendView
from trionsq.core.queue import count_fitting
from trionsq.core.round import Round
from trionsq.storage.log.cursorlog import CursorLog
from trionsq.storage.log.held import HeldMessages
from trionsq.storage.log.needed import LastSnapshot
from trionsq.storage.log.peek import HeldView, LogView
from trionsq.storage.log.ranges import HeldRange, MessageRange, pack_open, segment_ranges
from trionsq.storage.log.reading import Block, Place, RangesRead, share_nbytes
from trionsq.storage.log.rows import DropHeld, StoredChannel

__all__ = ["Cursor"]

# Returned messages that are read in one job: ranges, messages, bytes.
_MAX_FETCH: Final = 64
_MAX_FETCH_MESSAGES: Final = 4096
_FIRST_FETCH_MESSAGES: Final = 256
_FETCH_BYTES: Final = 1 << 20


class Cursor:
    """The `trionsq.core.queue.Backend` of a channel.

    Attributes:
        number: of the channel, never given again.
        name: of the channel.
        next: the sequence to be read next.
        frontier: the sequence up to which the topic has handed on.
        depth: messages before the frontier that are to be read, and returned ones beside memory.
        held: the deferred messages.
        is_paused: whether the channel is.
        generation: counts up with each `empty` or seek: what a job brings back later is void.
        low: messages before it are finished, as the last snapshot, or a seek behind it, saw that.
        last_snapshot: None before the first.
        replay_end: deferred messages before it are not in `held` before they are read.
    """

    behind: Final = False
    pending: Round | None = None
    has_published: Final = True

    def __init__(
        self, log: CursorLog[Cursor], number: int, name: str, next_: int, frontier: int
    ) -> None:
        self.number = number
        self.name = name
        self.next = next_
        self.frontier = frontier
        self.is_paused = False
        self.low = self.replay_end = 0
        self.last_snapshot: LastSnapshot | None = None
        self.depth = frontier - next_ - log.count_gaps(next_, frontier)
        self.caught_up: Callable[[], None] = lambda: None
        self.dropped: Counter[str] = Counter()
        self._log = log
        self._scan_at: Callable[[float], None] = lambda at_s: None
        self.held = self._new_held(0)
        # What is read ahead of `next`, and where it goes on.
        self._batches: deque[MessageBatch] = deque()
        self._batches_nbytes = 0
        self._place: Place | None = None
        self._is_reading = False
        self.generation = 0
        # What is beside memory, as messages: places, places being read, messages.
        self._returned_count = 0
        self._returned: deque[MessageRange] = deque()
        self._fetching: list[MessageRange] = []
        self._fetched: deque[Segment] = deque()
        self._fetch_messages = _FIRST_FETCH_MESSAGES
        self._returned_next = True

    def __repr__(self) -> str:
        return f"<Cursor {self.name} next={self.next} frontier={self.frontier} depth={self.depth}>"

    def _new_held(self, first_chunk: int) -> HeldMessages:
        return HeldMessages(
            self._log, self._advance, self._note_damaged, lambda at_s: self._scan_at(at_s),
            first_chunk, self.name,
        )  # fmt: skip

    @property
    def on_disk(self) -> int:
        return min(self.depth, self._log.count_on_disk(self.next, self.frontier))

    def new_deferred(self, scan_at: Callable[[float], None]) -> DeferredMessages:
        """Return `held`, which `empty` has replaced by an empty one."""
        self._scan_at = scan_at
        return self.held

    def is_recovering(self) -> bool:
        return False

    # From the topic and the channel

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        """Note that the topic has handed these on, or keep the places of returned ones."""
        if due_ns is not None:
            raise NotImplementedError("deferred messages of a log are in `held`")
        count = segment.last - segment.first
        self.depth += count
        if not self._advance(segment):
            self._returned_count += count
            self._returned.extend(segment_ranges(segment))

    def _advance(self, segment: Segment) -> bool:
        """Move the frontier behind a segment; False if it was behind before."""
        sequences = segment.batch.sequences
        assert sequences is not None, "the messages are of no log"
        first = sequences[segment.first]
        if first < self.frontier or self._log.gap_end(first) is not None:  # never handed on
            return False
        self.frontier = sequences[segment.last - 1] + 1
        return True

    def _note_damaged(self, count: int) -> None:
        self.dropped["damaged"] += count

    # Reading

    def read(self, max_count: int, max_bytes: int) -> Segment | None:
        has_returned = bool(self._returned or self._fetched)
        if has_returned and (self._returned_next or self.next >= self.frontier):
            self._returned_next = False
            segment = self._read_returned(max_count)
            if segment is not None:
                return segment
            return self._read_published(max_count, max_bytes)
        self._returned_next = True
        segment = self._read_published(max_count, max_bytes)
        return self._read_returned(max_count) if segment is None and has_returned else segment

    def _read_published(self, max_count: int, max_bytes: int) -> Segment | None:
        while self.next < self.frontier:
            has_gaps = self._log.has_gaps
            if has_gaps and (gap_end := self._log.gap_end(self.next)) is not None:
                self.next = min(gap_end, self.frontier)
                continue
            batch = self._batch_at_next()
            if batch is None:
                return None
            assert batch.sequences is not None
            first = self.next - batch.sequences[0]
            end = min(self.frontier, self._log.gap_begin(self.next)) if has_gaps else self.frontier
            last = min(batch.count, end - batch.sequences[0])
            if last <= first:
                continue  # what was damaged ends in a gap
            if batch.defer_ms:
                # From its publishing on each channel holds it, unless it replays that.
                if self.next >= self.replay_end:
                    self.next = batch.sequences[0] + last
                    continue
                last = min(last, self.replay_end - batch.sequences[0])
            last = min(last, first + max_count)
            last = first + count_fitting(batch.bodies, first, last - first, max_bytes)
            self.next = batch.sequences[0] + last
            self.depth -= last - first
            return Segment(batch, first, last)
        self._drop_surplus()
        return None

    def _drop_surplus(self) -> None:
        """All is read: what is counted beside returned messages was lost."""
        surplus = self.depth - self._returned_count
        if surplus:
            self.depth -= surplus
            self._note_damaged(surplus)

    def _batch_at_next(self) -> MessageBatch | None:
        """Return the batch that has the next message; None if it is being read."""
        while self._batches:
            batch = self._batches[0]
            assert batch.sequences is not None
            if batch.sequences[0] <= self.next <= batch.sequences[-1]:
                return batch
            if batch.sequences[0] > self.next:
                self._skip_to(min(batch.sequences[0], self.frontier))
                return self._batch_at_next() if self.next < self.frontier else None
            self._pop_batch()
        cached = self._log.cached_batch(self.next)
        if cached is None and not self._is_reading:
            self._is_reading = True
            place, self._place = self._place, None
            generation = self.generation
            self._log.read_block(
                self.next, self.frontier, place, lambda block: self._have_read(block, generation)
            )
            if self._batches:  # the job was quick
                return self._batch_at_next()
        return cached

    def _pop_batch(self) -> None:
        nbytes = self._batches.popleft().bodies.nbytes
        self._batches_nbytes -= nbytes
        self._log.release_block(nbytes)

    def _skip_to(self, sequence: int) -> None:
        """Go on behind sequences that have no message; those that had one are lost."""
        lost = sequence - self.next - self._log.count_gaps(self.next, sequence)
        # Deferred messages are in no `depth`. All of them may be among the lost ones: rather a
        # depth that is too high for a while than messages that nobody reads.
        lost -= self.skipped if lost > 0 else 0
        self.next = sequence
        if lost > 0:
            self.depth -= lost
            self._note_damaged(lost)

    def _have_read(self, block: Block, generation: int) -> None:
        if generation != self.generation:
            self._log.release_block(block.nbytes)
            return
        self._is_reading = False
        self._batches.extend(block.batches)
        self._batches_nbytes += block.nbytes
        self._place = block.next
        if not block.batches and block.end > self.next:
            self._skip_to(min(block.end, self.frontier))
        self.caught_up()

    def _read_returned(self, max_count: int) -> Segment | None:
        if not self._fetched:
            if not self._returned or self._fetching:
                return None
            cached = self._log.cached_segment(self._returned[0])
            if cached is None:
                self._fetch()
                if not self._fetched:
                    return None
            else:
                first = self._returned.popleft()
                if rest := first.count - cached.count:
                    sequence = first.sequence + cached.count
                    self._returned.appendleft(MessageRange(sequence, rest, first.attempts))
                self._fetched.append(cached)
        segment = self._fetched.popleft()
        if segment.count > max_count:
            middle = segment.first + max_count
            self._fetched.appendleft(Segment(segment.batch, middle, segment.last, segment.attempts))
            segment = Segment(segment.batch, segment.first, middle, segment.attempts)
        self.depth -= segment.count
        self._returned_count -= segment.count
        return segment

    def _fetch(self) -> None:
        left = self._fetch_messages
        while left > 0 and self._returned and len(self._fetching) < _MAX_FETCH:
            one = self._returned.popleft()
            if one.count > left:
                rest = one._replace(sequence=one.sequence + left, count=one.count - left)
                self._returned.appendleft(rest)
                one = one._replace(count=left)
            self._fetching.append(one)
            left -= one.count
        generation = self.generation
        self._log.read_ranges(self._fetching, lambda read: self._have_fetched(read, generation))

    def _have_fetched(self, read: RangesRead, generation: int) -> None:
        nbytes = sum(map(share_nbytes, read.segments))
        self._log.release_block(nbytes)  # they are few
        if generation != self.generation:
            return
        self._fetching = []
        self._returned.extendleft(reversed(read.unread))
        self._fetched.extend(read.segments)
        if nbytes:
            count = sum(segment.count for segment in read.segments)
            self._fetch_messages = max(1, min(_FETCH_BYTES * count // nbytes, _MAX_FETCH_MESSAGES))
        if read.lost:
            self.depth -= read.lost
            self._returned_count -= read.lost
            self._note_damaged(read.lost)
        self.caught_up()

    def step_over_held(self) -> None:
        """Go on behind deferred messages if nothing else is to be read: no reader comes by."""
        if not self.depth:
            self.next = self.frontier

    # What is known of it

    def unread(self, segment: Segment) -> bool:
        return False

    def peek(self) -> BackendView | None:
        if not self.depth:
            return None
        part, returned = self._log.part, self._returned_ranges()
        return LogView(part, self.next, self.frontier, returned, leaves_out=self.skipped > 0)

    def peek_held(self, ranges: list[HeldRange]) -> HeldView:
        """Return a view of deferred messages that `held` has."""
        return HeldView(self._log.part, ranges)

    def oldest_ns(self) -> int | None:
        if self.next >= self.frontier:
            return None
        batch = self._batches[0] if self._batches else self._log.cached_batch(self.next)
        if batch is None or batch.sequences is None or self.next not in batch.sequences:
            return None
        return int.from_bytes(batch.stamp(self.next - batch.sequences[0]), signed=True)

    def check(self) -> str | None:
        if self.depth < 0 or self.next > self.frontier:
            return f"{self!r} is impossible"
        return None

    # By the operator

    def empty(self) -> int:
        return self.seek(self.frontier)

    def seek(self, sequence: int) -> int:
        """Drop all, and go on at a sequence up to the frontier; returns how many were dropped.

        The state gets both in one change.
        """
        dropped = self.depth
        self._restart(sequence)
        chunks = self.held.chunk_numbers()
        self.held = self._new_held(self.held.next_chunk)
        self._log.note_emptied(self, [DropHeld(self.number, chunks)])
        return dropped

    def release(self) -> None:
        """Let go of what was read ahead, and ignore what a job will bring."""
        self.generation += 1
        self._log.release_block(self._batches_nbytes)
        self._batches.clear()
        self._batches_nbytes = 0
        self._place = None
        self._is_reading = False

    def _restart(self, sequence: int) -> None:
        self.release()
        self._returned.clear()
        self._returned_count = 0
        self._fetching = []
        self._fetched.clear()
        self.next = self.low = sequence
        self.replay_end = self.frontier
        self.depth = self.frontier - sequence - self._log.count_gaps(sequence, self.frontier)

    def delete(self) -> None:
        self._restart(self.frontier)
        self._log.drop_cursor(self)

    def close(self) -> None:
        """Do nothing: the log is closed as one."""

    # The state

    def row(self, topic: int) -> StoredChannel:
        """Return what the state should have but for what is open; ``topic``: number of that."""
        replay_end = self.replay_end if self.next < self.replay_end else 0
        return StoredChannel(
            number=self.number,
            topic=topic,
            name=self.name,
            paused=self.is_paused,
            next=self.next,
            frontier=self.frontier,
            open=pack_open((), self.skipped, replay_end),
            fired_ns=self.held.fired_ns,
        )

    def load(self, returned: Sequence[MessageRange], skipped: int = 0) -> None:
        """Take over messages that come again, beside ``skipped`` that are, or were, in `held`."""
        count = sum(one.count for one in returned)
        self._returned.extend(returned)
        self._returned_count += count
        # Of those that were in `held` some may be gaps by now.
        self.depth += count - min(skipped, self.depth)

    @property
    def skipped(self) -> int:
        """Messages from `next` to the frontier that are, or were, in `held`."""
        ahead = self.frontier - self.next - self._log.count_gaps(self.next, self.frontier)
        return max(0, ahead - (self.depth - self._returned_count))

    def returned(self) -> Iterator[MessageRange]:
        """Yield what has returned, beside what is in the channel's memory."""
        yield from self._returned_ranges()
        yield from self.held.in_transit()

    def _returned_ranges(self) -> Iterator[MessageRange]:
        yield from self._returned
        yield from self._fetching
        for segment in self._fetched:
            yield from segment_ranges(segment)
