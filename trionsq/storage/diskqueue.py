"""The disk queue: the overflow of a topic or channel, in the very files of the original nsqd.

Records are written and read in the event loop: a copy to or from the page cache. Background jobs,
one at a time for each queue, do what may block for long: fsyncs, deletions, large deferral files.

No call waits for a job, nor does more work than its messages need: `empty` and `delete` leave all
files behind, with a positions file that says so, and jobs delete them.

Spec: nsqd-internals, section 7.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.deferred import Deferred
from trionsq.core.queue import BackendError
from trionsq.storage.deferrals import Deferrals
from trionsq.storage.folder import DataFolder, error_text
from trionsq.storage.peek import QueueView
from trionsq.storage.positions import PositionsFile, QueueFiles
from trionsq.storage.queuecopy import QueueCopy
from trionsq.storage.reader import QueueReader, without_damaged
from trionsq.storage.records import encode
from trionsq.storage.recovery import UndeletedFiles, find_start
from trionsq.storage.sync import QueueSync
from trionsq.storage.writer import QueueWriter

__all__ = ["DiskQueue"]

log = logging.getLogger("trionsq")

# Attempts, one a second, to read a file whose content seems damaged, before it is set aside. After
# any other error, such as too many open files, reading is retried for ever.
_MAX_READ_ATTEMPTS: Final = 5
_DAMAGE: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})


class DiskQueue:
    """A FIFO of messages on disk; implements `trionsq.core.queue.Backend`.

    Attributes:
        name: ``topic`` or ``topic:channel``.
        caught_up: is called when `behind` or an error has ended.
        dropped: see `Backend`.
    """

    pending = None
    has_published = False

    def __init__(self, name: str, folder: DataFolder) -> None:
        """Take over the files of that name, if there are any."""
        self.name = name
        self.caught_up: Callable[[], None] = lambda: None
        self.dropped: Counter[str] = Counter()
        self._folder = folder
        self._files = files = QueueFiles(name)
        undeleted = folder.undeleted.get(name)
        start = find_start(folder, files) if undeleted is None else undeleted.take_over()
        self._positions = positions = start.positions
        # Files before this one were written before an unclean stop.
        self._recovered_end = positions.write_file if start.moved else 0
        self._is_recovering = positions.read_file < self._recovered_end
        self._is_bare = start.is_bare
        self._is_deleted = False
        # Reading failed; `retry` tries again.
        self._has_read_error = False
        self._damaged_reads = 0
        # Size of the records that the disk has refused, 0 if it takes them.
        self._refused_bytes = 0
        self._positions_file = PositionsFile(folder.disk, files, start)
        self._writer = QueueWriter(folder.disk, files, positions, folder.max_file_bytes)
        self._reader = QueueReader(
            folder.disk, files, positions, self._writer, folder.max_body_bytes, start.finished
        )
        self._deferrals = Deferrals(folder.disk, files)
        self._sync = QueueSync(
            self,
            folder,
            files,
            self._positions_file,
            self._writer,
            self._reader,
            self._deferrals,
        )
        folder.queues[self] = None
        if undeleted is None:
            self._load_deferrals()
        if start.moved or start.finished or self._deferrals.has_only_spent_lines:
            folder.changed[self] = None

    def __repr__(self) -> str:
        return f"<DiskQueue {self.name} {self._positions}>"

    def _load_deferrals(self) -> None:
        if self._deferrals.load(self._folder, self._sync.generation, self._deferrals_loaded):
            self._is_bare = False
        if self._positions.all_read:
            self._deferrals.clear()

    def _deferrals_loaded(self) -> None:
        if self._positions.all_read:
            self._deferrals.clear()
        self._sync.begin_next()

    @property
    def depth(self) -> int:
        # After an unclean stop there may be more messages than the positions count.
        at = self._positions
        if at.read_pos >= at.write_pos and at.read_file >= at.write_file:
            return 0  # as `all_read`: each delivery asks
        return max(1, at.depth)

    @property
    def on_disk(self) -> int:
        return self.depth

    @property
    def behind(self) -> bool:
        return self._sync.is_behind

    def new_deferred(self, scan_at: Callable[[float], None]) -> Deferred:
        return Deferred()

    def is_recovering(self) -> bool:
        return self._is_recovering

    # Messages

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        sync = self._sync
        if sync.error is not None:
            raise BackendError(sync.error)
        records = encode(segment)
        self._is_bare = False
        try:
            if not self._positions_file.exists:
                self._positions_file.write()
            began_file = self._writer.append(records)
        except OSError as error:
            self._refused_bytes = records.size
            self.note_error(error)
            raise BackendError(error_text(error)) from error
        if self._folder.faults:
            self._refused_bytes = 0
            self.clear_fault()
        self._positions.depth += records.count
        if due_ns is not None:
            self._deferrals.add(segment.ids(), due_ns)
        if began_file:
            self._reader.skip_finished_file()
        sync.count_operations(records.count, began_file)

    def read(self, max_count: int, max_bytes: int) -> Segment | None:
        while True:
            segment = self._read_next(max_count, max_bytes)
            if segment is None:
                return None
            if segment.batch.defer_ms and self._deferrals.is_cancelled(segment):
                self.dropped["cancelled"] += 1
                continue
            segment = self._without_damaged(segment)
            if segment is not None:
                return segment

    def _read_next(self, max_count: int, max_bytes: int) -> Segment | None:
        if self._has_read_error or self._deferrals.is_loading:
            return None
        try:
            segment = self._reader.next_segment(max_count, max_bytes)
        except OSError as error:
            self._has_read_error = True
            self._damaged_reads += error.errno in _DAMAGE
            self.note_error(error)
            return None
        self._damaged_reads = 0
        if segment is None:
            self._note_end()
            if self._reader.has_moved:
                self._sync.count_operations(0, True)
            return None
        if self._deferrals:
            segment = self._deferrals.limit_segment(segment)
        count = segment.last - segment.first
        # One read may skip damaged files and end in one of after the stop.
        self._is_recovering = self._positions.read_file < self._recovered_end
        self._reader.advance(count)
        self._positions.depth -= count
        if self._positions.all_read:
            self._note_end()
        self._sync.reads += count
        self._sync.count_operations(count, self._reader.has_moved)
        return segment

    def _without_damaged(self, segment: Segment) -> Segment | None:
        kept = without_damaged(segment, self._is_recovering)
        if kept is not segment:
            count = segment.count - (0 if kept is None else kept.count)
            self.dropped["damaged"] += count
            log.error("DISKQUEUE(%s): dropping %d damaged messages: invalid ids", self.name, count)
        return kept

    def _note_end(self) -> None:
        """Note that all records were read."""
        self._deferrals.clear()
        if self._positions.depth:
            log.warning(
                "DISKQUEUE(%s): depth was %d at the end of the data",
                self.name,
                self._positions.depth,
            )
            self._positions.depth = 0

    def set_due(self, id_: bytes, due_ns: int, new_due_ns: int | None) -> bool:
        """Change when a deferred message is due; None: drop it when it is read.

        False if none is due at ``due_ns``. Times are in nanoseconds since the epoch. The change is
        durable with the next sync.
        """
        if not self._deferrals.set_due(id_, due_ns, new_due_ns):
            return False
        self._sync.count_operations(1, False)
        return True

    def unread(self, segment: Segment) -> bool:
        return False

    def peek(self) -> QueueView | None:
        if self._positions.all_read:
            return None
        return QueueView(
            self._folder.disk,
            self._files,
            self._positions,
            self._writer.repaired_ends(),
            self._folder.max_body_bytes,
            self._deferrals.due_ns,
            self._sync.generation,
        )

    @property
    def is_loading(self) -> bool:
        """Whether it is not known yet which messages are deferred."""
        return self._deferrals.is_loading

    def copy(self) -> QueueCopy:
        """Return what is to be read, for somebody who copies it. Not while `is_loading`."""
        return QueueCopy(
            self._folder.disk,
            self._files,
            self._positions,
            self._writer.repaired_ends(),
            self._folder.max_body_bytes,
            self._deferrals.due_ns,
            self._recovered_end,
        )

    def set_aside(self, name: str) -> None:
        """Keep a record file of a queue that is to be deleted, under another name. Blocks."""
        with suppress(FileNotFoundError):
            self._folder.disk.rename(name, self._files.set_aside(self._files.number(name)))

    def oldest_ns(self) -> int | None:
        return self._reader.oldest_ns()

    def empty(self) -> int:
        dropped = self.depth
        if not self._is_bare:
            self._abandon_files()
            # This sync deletes the files, and keeps the numbering over a power failure.
            self._sync.count_operations(0, True)
        return dropped

    def delete(self) -> None:
        if not self._is_bare:
            self._abandon_files()
        self._is_deleted = True
        finished = self._sync.stop()
        self._folder.changed.pop(self, None)
        self._folder.queues.pop(self, None)
        self._folder.faults.pop(self, None)
        if not self._is_bare:
            UndeletedFiles(
                self._folder,
                self._files,
                self._positions.write_file,
                finished,
                is_void=self._positions_file.exists,
            ).begin()

    def _abandon_files(self) -> None:
        """Leave all records behind, and invalidate the job under way.

        Their files count as finished. After a kill no message comes back, unless the disk does not
        take the positions file.
        """
        self._writer.abandon_files()
        self._reader.skip_all()
        self._positions.depth = 0
        self._deferrals.clear()
        self._sync.abandon()
        self._has_read_error = False
        self._damaged_reads = 0
        self._refused_bytes = 0
        self.clear_fault()
        try:
            self._positions_file.write()
        except OSError as error:
            self._positions_file.exists = False
            self.note_error(error)

    # Durability and errors

    def sync(self) -> None:
        """Begin to make everything durable. If a job is under way, another one follows."""
        self._sync.request()

    def sync_after_now(self) -> Callable[[], bool]:
        """Begin to make durable what was appended; return what tells whether that is done."""
        wanted = self._sync.begun + 1
        self._sync.request()
        return lambda: self._sync.durable >= wanted or self._is_deleted

    def retry(self) -> None:
        """Retry what the disk refused, and continue if it works now."""
        if self._damaged_reads >= _MAX_READ_ATTEMPTS:
            self._damaged_reads = 0
            self._reader.set_file_aside(f"reading failed {_MAX_READ_ATTEMPTS} times")
            if self._positions.all_read:
                self._note_end()  # nobody reads a queue that is empty
        if self._has_read_error:
            self._reader.release()
            self._has_read_error = False
        if self._has_room():
            self._refused_bytes = 0
        elif not self._reader.finished:
            self.caught_up()  # reading may continue
            return
        self._sync.retry()

    def _has_room(self) -> bool:
        if not self._refused_bytes:
            return True
        try:
            return self._folder.disk.free_bytes() >= self._refused_bytes
        except OSError as error:
            self.note_error(error)
            return False

    def release_finished_file(self) -> None:
        """Let the current file be deleted if all of it is read: the disk may be full."""
        if self._positions.all_read and self._positions.write_pos:
            self._writer.seal()
            self._reader.skip_finished_file()
            self._sync.count_operations(0, True)

    def note_error(self, error: Exception) -> None:
        """Log the error, and show it in the health of nsqd."""
        text = error_text(error)
        if self._folder.faults.get(self) != text:
            log.error("DISKQUEUE(%s): %s", self.name, text)
        self._folder.faults[self] = text

    def clear_fault(self) -> None:
        """Forget the last error if the queue works again."""
        if not self._has_read_error and not self._refused_bytes and self._sync.error is None:
            self._folder.faults.pop(self, None)

    def close(self) -> None:
        """Raises BackendError as the interface says. No job may be under way."""
        error = self._sync.sync_at_stop()
        self._reader.release()
        self._writer.release()
        self._folder.changed.pop(self, None)
        self._folder.queues.pop(self, None)
        if error is not None:
            self.note_error(error)
            raise BackendError(error_text(error)) from error
        self._folder.faults.pop(self, None)

    def check(self) -> str | None:
        """Return a contradiction in the state of the queue, None if there is none. O(1)."""
        positions = self._positions
        read = (positions.read_file, positions.read_pos)
        written = (positions.write_file, positions.write_pos)
        if read > written:
            return f"the read position {read} is behind the write position {written}"
        if positions.depth > 0 and self._is_bare:
            return f"its depth is {positions.depth}, but it has no file"
        if self._is_deleted and (self._writer.has_open_file or not positions.all_read):
            return "it is deleted, but has messages"
        if self._deferrals and positions.all_read:
            return f"it has no message, but due times of {len(self._deferrals)}"
        return self._writer.check() or self._reader.check()
