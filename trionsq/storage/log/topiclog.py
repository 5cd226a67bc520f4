"""A topic's log: takes what is published into rounds, and hands on what is safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from typing import Final

from trionsq.core.batch import MessageBatch, Segment
from trionsq.core.deferred import DeferredMessages
from trionsq.core.peek import BackendView
from trionsq.core.queue import BackendError
from trionsq.core.round import Round
from trionsq.storage.folder import error_text
from trionsq.storage.log.aims import Aims
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.figures import LogFigures
from trionsq.storage.log.logreader import LogReader
from trionsq.storage.log.peek import LogPart, LogView
from trionsq.storage.log.ranges import Gaps, MessageRange
from trionsq.storage.log.reading import Block, Place, RangesRead, extract_range
from trionsq.storage.log.roundjob import LogHost, RoundJob, finish_round
from trionsq.storage.log.rows import (
    Change,
    DropChannel,
    StoredTopic,
    UpdateChannel,
    UpdateTopic,
)
from trionsq.storage.log.segmentfile import SegmentFile, end_of
from trionsq.storage.log.segmentlist import add_begun, leave_segments, scan_place, whole_from
from trionsq.storage.log.segmentwriter import SegmentWriter
from trionsq.storage.log.tailcache import TailCache, cached_nbytes, joined_keyed
from trionsq.storage.log.topicreader import TopicReader

__all__ = ["TopicLog"]

# A topic with so much to be made safe takes no more: a disk in trouble must not fill the memory.
_MAX_UNSAFE_BYTES: Final = 16 * 1024 * 1024
# What a message costs beside its body.
_MESSAGE_BYTES: Final = 100


class TopicLog:
    """The `trionsq.core.queue.Backend` of a topic with a log.

    Attributes:
        number: of this incarnation of the topic, never given again.
        name: of the topic.
        durability: ``always`` or ``interval``: when a round is safe.
        segments: in order.
        end: the sequence that the next message gets.
        safe_end: messages before it are safe.
        frontier: the sequence up to which messages were handed to the channels.
        first: messages before it are gone.
        whole_from: of messages before it there are only those that a channel still needs.
        depth: safe messages behind the frontier.
        gaps: sequences that have no message, or one that was emptied.
        cache: the newest messages.
        cursors: of the channels, by number.
        aims: messages that are for one channel alone.
        is_deleted, is_paused: as the topic is.
        stored: what the state got last of it; None if that is not known.
        last_round: the newest that was begun; None before the first.
        refused: gets count and bytes of messages of a round that failed.
        figures: counts, for operators.
    """

    has_published: Final = True

    def __init__(
        self,
        node: LogHost[TopicLog],
        number: int,
        name: str,
        durability: str,
        writer: SegmentWriter,
        segments: Sequence[SegmentFile] = (),
        end: int = 0,
    ) -> None:
        self.number = number
        self.name = name
        self.durability = durability
        self.segments = list(segments)
        self.end = self.safe_end = self.frontier = end
        self.first = segments[0].first if segments else end
        self.whole_from = whole_from(segments, end)
        self.depth = 0
        self.gaps = Gaps()
        self.cache = TailCache()
        self.cursors: dict[int, Cursor] = {}
        self.aims = Aims()
        self.caught_up: Callable[[], None] = lambda: None
        self.refused: Callable[[int, int], None] = lambda count, nbytes: None
        self.dropped: Counter[str] = Counter()
        self.figures = LogFigures()
        self.is_deleted = False
        self.is_paused = False
        self.stored: StoredTopic | None = None
        self.last_round: Round | None = None
        self._node = node
        self._writer = writer
        self._unsafe_nbytes = 0
        # What is being handed on, when it had to be read.
        self._reader: TopicReader | None = None
        self._unwritten_from: int | None = None
        self._disk_reader = LogReader(node, name, lambda: self._unwritten_from)

    def __repr__(self) -> str:
        return f"<TopicLog {self.name} {self.number} frontier={self.frontier} end={self.end}>"

    @property
    def behind(self) -> bool:
        return self._unsafe_nbytes > _MAX_UNSAFE_BYTES

    @property
    def pending(self) -> Round | None:
        newest = self.last_round  # also while a job writes it: nothing gathers then
        return None if newest is None or newest.is_safe else newest

    @property
    def on_disk(self) -> int:
        return min(self.depth, self.count_on_disk(self.frontier, self.safe_end))

    def new_deferred(self, scan_at: Callable[[float], None]) -> DeferredMessages:
        raise NotImplementedError("a topic defers nothing")

    def is_recovering(self) -> bool:
        return False

    # Publishing

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        batch = segment.batch
        if batch.sequences is not None:
            raise NotImplementedError("these messages are in the log already")
        if self.is_deleted:
            raise BackendError("the topic is deleted")
        if self._node.is_full:
            self.figures.refused_count += segment.count
            raise BackendError("the disk is full")
        first = self.end
        self.end += batch.count
        self._unsafe_nbytes += batch.bodies.nbytes + batch.count * _MESSAGE_BYTES
        self.last_round = self._node.add_batch(self, batch, first)

    def sync(self) -> None:
        """Begin to make durable what `interval` has written (every --sync-timeout)."""
        if not self.is_deleted:
            self._node.sync_log(self, probe=False)

    def retry(self) -> None:
        """Find out whether the disk takes messages again, which it refused."""
        if not self.is_deleted:
            self._node.sync_log(self, probe=True)

    def new_round(self) -> RoundJob[TopicLog]:
        """Return a round, for what is published from now on."""
        return RoundJob(self, self._writer)

    def end_round(self, job: RoundJob[TopicLog]) -> None:
        """Take over what a job did, in the event loop."""
        self._unsafe_nbytes -= job.nbytes + _MESSAGE_BYTES * job.count
        if job.unwritten_from is not None:  # before the ends: a job may be reading
            self._unwritten_from = job.unwritten_from
        if job.begun:
            add_begun(self.segments, job.begun)
        for segment, end in job.ends:
            segment.end = end
        self._unwritten_from = job.unwritten_from
        self._node.report_error(self.name, job.error)
        self._node.note_unsynced(self)
        if job.error is None:
            self._keep_round(job)
        else:
            self._refuse_round(job, job.error)
        self.caught_up()

    def _keep_round(self, job: RoundJob[TopicLog]) -> None:
        """Have the messages of a round go to the channels, and their publishers hear of it."""
        node, written = self._node, job.written
        if written:
            for batch in written if len(written) == 1 else joined_keyed(written):
                self.cache.add_batch(batch)
                node.count_cached(self.cache, cached_nbytes(batch))
                self.depth += batch.count
            self.safe_end = max(self.safe_end, end_of(written[-1]))
        node.keys.note_round(self, written, is_durable=job.is_durable)
        if job.round is not None:
            self.figures.rounds += 1
            finish_round(job.round, node)

    def _refuse_round(self, job: RoundJob[TopicLog], error: Exception) -> None:
        """Make a gap of a round that failed."""
        count = job.count
        if job.entries:
            first = job.entries[0][1]
            self.gaps.add(first, first + count)
            self.safe_end = max(self.safe_end, first + count)
            self.refused(count, job.nbytes)
            self.figures.refused_count += count
        if job.round is not None:
            self.figures.failed_rounds += 1
            finish_round(job.round, self._node, error_text(error))

    def is_for(self, sequence: int, channel: str) -> bool:
        return self.aims.is_for(sequence, channel)

    # The newest messages, in memory

    def cached_batch(self, sequence: int) -> MessageBatch | None:
        return self.cache.batch_at(sequence)

    def cached_segment(self, one: MessageRange) -> Segment | None:
        batch = self.cache.batch_at(one.sequence)
        return None if batch is None else extract_range(batch, one)

    # Reading from the disk

    def read_block(
        self, sequence: int, end: int, place: Place | None, done: Callable[[Block], None]
    ) -> None:
        self._disk_reader.read_block(self.segments, sequence, end, place, done)

    def read_ranges(self, ranges: list[MessageRange], done: Callable[[RangesRead], None]) -> None:
        self._disk_reader.read_ranges(self.segments, ranges, done)

    def release_block(self, nbytes: int) -> None:
        self._node.release_block(nbytes)

    @property
    def has_gaps(self) -> bool:
        return bool(self.gaps)

    def gap_end(self, sequence: int) -> int | None:
        return self.gaps.end_at(sequence)

    def gap_begin(self, sequence: int) -> int:
        return self.gaps.begin_from(sequence)

    def count_gaps(self, first: int, end: int) -> int:
        return self.gaps.count(first, end)

    def count_on_disk(self, first: int, end: int) -> int:
        end = self.cache.first_from(end)
        return max(0, end - first - self.count_gaps(first, end))

    # To the channels

    def read(self, max_count: int, max_bytes: int) -> Segment | None:
        while self.frontier < self.safe_end:
            batch = self.cached_batch(self.frontier)
            if batch is not None:
                assert batch.sequences is not None
                first = self.frontier - batch.sequences[0]
                self.frontier = end_of(batch)
                self.depth -= batch.count - first
                self._drop_reader()
                return Segment(batch, first, batch.count)
            return self._read_stored(max_count, max_bytes)
        return None

    def _read_stored(self, max_count: int, max_bytes: int) -> Segment | None:
        """Read what was published when there was no channel."""
        reader = self._reader
        if reader is None or reader.began_at != self.frontier:
            self._drop_reader()
            reader = self._reader = TopicReader(self, self.frontier, self.safe_end)
            reader.caught_up = lambda: self.caught_up()
            reader.dropped = self.dropped
        else:
            # A job may have found that messages are lost.
            self.depth -= reader.left - reader.depth
        reader.frontier, reader.depth = self.safe_end, self.depth
        segment = reader.read(max_count, max_bytes)
        self.depth = reader.left = reader.depth
        self.frontier = reader.began_at = reader.next
        return segment

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._reader.release()
            self._reader = None

    def unread(self, segment: Segment) -> bool:
        sequences = segment.batch.sequences
        assert sequences is not None
        self._drop_reader()
        self.frontier = sequences[segment.first]
        self.depth += segment.last - segment.first
        return True

    # What is known of it

    def peek(self) -> BackendView | None:
        return LogView(self.part, self.frontier, self.safe_end) if self.depth else None

    @property
    def part(self) -> LogPart:
        cached_first = self.cache.first_from(self.end)
        return LogPart(self._node.disk, list(self.segments), cached_first, copy(self.gaps))

    def oldest_ns(self) -> int | None:
        return self.cache.time_of(self.frontier) if self.frontier < self.safe_end else None

    def check(self) -> str | None:
        if self.depth < 0 or not self.frontier <= self.safe_end <= self.end:
            return f"{self!r} is impossible: depth={self.depth} safe_end={self.safe_end}"
        return None

    # By the operator

    def empty(self) -> int:
        dropped, self.depth = self.depth, 0
        self.gaps.add(self.frontier, self.safe_end)
        self.frontier = self.safe_end
        self._drop_reader()
        self._node.commit([UpdateTopic(self.row())])
        return dropped

    def delete(self) -> None:
        self.is_deleted = True
        self.depth = 0
        self.frontier = self.safe_end
        self.cache.clear()
        self._node.drop_topic(self)

    def close(self) -> None:
        """Do nothing: the node is closed as one."""

    @property
    def handed_on(self) -> int:
        """Messages before it were handed to all channels."""
        return min([self.frontier, *(cursor.frontier for cursor in self.cursors.values())])

    def retire_segments(self, low: int) -> list[str]:
        """Leave the segments that have no message from ``low`` on, and return their names.

        The files may go when the state has the new `first`.
        """
        names = leave_segments(self.segments, low)
        if names:
            self.first = self.segments[0].first
            self.gaps.drop_before(self.first)
            self._node.segments_left(self)
        return names

    def close_files(self) -> None:
        """Release the files. In a job: the writer's thread uses them."""
        self._writer.close()

    def is_synced_to(self, sequence: int) -> bool:
        """Return whether what counts before a sequence is durable in the segments, or no matter."""
        return self.is_deleted or self._writer.is_synced_to(sequence)

    @property
    def has_unsynced(self) -> bool:
        """Whether something that was acknowledged is not durable."""
        return self._writer.has_unsynced

    @property
    def unsynced_nbytes(self) -> int:
        """Bytes of the log that are written and not durable."""
        return self._writer.unsynced_nbytes

    @property
    def unsafe(self) -> tuple[int, int]:
        """Messages that no publisher has an OK for yet, and about their size in bytes."""
        return self.end - self.safe_end, self._unsafe_nbytes

    # Channels

    def drop_cursor(self, cursor: Cursor) -> None:
        if self.cursors.pop(cursor.number, None) is not None and not self.is_deleted:
            changes: list[Change] = [DropChannel(cursor.number)]
            if not self.cursors:
                # What is published from now on belongs to the next channel.
                changes.append(UpdateTopic(self.row()))
            self._node.commit(changes)

    def note_emptied(self, cursor: Cursor, dropped: Sequence[Change]) -> None:
        if cursor.number in self.cursors:
            self._node.commit([UpdateChannel(cursor.row(self.number)), *dropped])

    def row(self) -> StoredTopic:
        """Return what the state should have of the topic."""
        stands_still = self.is_paused or not self.cursors
        known = min(self.handed_on, self.safe_end, self._node.keys.first_unsaved(self.number))
        return StoredTopic(
            number=self.number,
            name=self.name,
            durability=self.durability,
            paused=self.is_paused,
            frontier=self.frontier if stands_still else None,
            first=self.first,
            end=self.end,
            gaps=tuple(self.gaps),
            scan=scan_place(self.segments, known),
        )
