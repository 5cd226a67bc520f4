"""The disk queue: the overflow of a topic or channel, in the very files of the original nsqd.

Records are written and read here and now: that is a copy to or from the page cache. What may
block for long (fsync, removals, large sidecars) is done by a background job, one at a time.

Nothing here waits for a job, and no call does more than its messages ask for: `empty` and `delete`
leave all files behind, with a positions file that says so, and a job removes them.

Spec: nsqd-internals, section 7.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from typing import Final

from trionsq.core.batch import Segment
from trionsq.core.queue import BackendError
from trionsq.storage.deferrals import DeferralFile
from trionsq.storage.disk import DiskFile
from trionsq.storage.duetimes import NO_WORK, DueTimes
from trionsq.storage.folder import DataFolder, error_text, let_go
from trionsq.storage.leftover import Removal, removal_of
from trionsq.storage.peek import QueueView
from trionsq.storage.positions import FileNumbers, QueueFiles, begin_file, find_start
from trionsq.storage.reader import QueueReader
from trionsq.storage.records import encode
from trionsq.storage.sync import REMOVED_AT_ONCE, Generation, SyncJob
from trionsq.storage.writer import SEALED_MAX, QueueWriter

__all__ = ["DiskQueue"]

log = logging.getLogger("trionsq")

# While a sync is under way, so many times --sync-every may follow before publishers must wait.
_BEHIND_SYNCS: Final = 2
# A file that can't be read is tried so often (once a second) before it is given up, if the error
# speaks of what it holds. With any other one, such as too many open files, it is tried for ever.
_READ_ATTEMPTS: Final = 5
_DAMAGE: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
# Files that are removed at the stop, which takes up to 5 s of the minute that nsqd has (50 ms for
# each of 100 MB). What is left goes at the next start.
_REMOVED_AT_END: Final = 100
# A sidecar up to this size (1,200 messages) is loaded at once, in about 1 ms.
_SIDECAR_NBYTES_AT_ONCE: Final = 64 * 1024


class DiskQueue:
    """A FIFO of messages on disk; implements `trionsq.core.queue.Backend`.

    Attributes:
        name: ``topic`` or ``topic:channel``.
        caught_up: is called when `behind` or an error has ended.
    """

    def __init__(self, name: str, folder: DataFolder) -> None:
        """Take over the files of that name, if there are any."""
        self.name = name
        self.caught_up: Callable[[], None] = lambda: None
        self._folder = folder
        self._disk = folder.disk
        self._files = QueueFiles(name)
        removal = removal_of(folder, name)
        start = find_start(folder, self._files) if removal is None else removal.hand_over()
        self._positions = start.positions
        # Files before this one are of before an unclean end.
        self._recovered_end = start.positions.write_file if start.moved else 0
        # The content of the positions file, None if it is not known to be durable.
        self._durable = start.text
        self._has_positions_file = start.has_file
        # What it was made to say here and now, None if something else may stand in it.
        self._said: bytes | None = None
        self._is_bare = start.is_bare
        self._generation = Generation()
        self._job: SyncJob | None = None
        self._is_loading = False
        self._sync_again = False
        self._sync_error: str | None = None
        self._doubtful: list[tuple[int, int | None]] = []
        self._operations = 0
        # Records read since the positions were last on their way to disk.
        self._reads = 0
        self._read_failures = 0
        self._can_read = True
        self._refused_nbytes = 0
        self._deleted = False
        self._writer = QueueWriter(
            folder.disk, self._files, self._positions, folder.file_nbytes_max
        )
        self._reader = QueueReader(
            folder.disk, self._files, self._positions, self._writer, folder.body_nbytes_max
        )
        self._reader.finished = start.finished
        self._sidecar = DeferralFile(folder.disk, name)
        self._due_times = DueTimes()
        folder.queues[self] = None
        if removal is None:
            self._begin_to_load()
        if start.moved or start.finished or (self._sidecar.lines and not self._due_times):
            folder.changed[self] = None

    def __repr__(self) -> str:
        return f"<DiskQueue {self.name} {self._positions}>"

    @property
    def depth(self) -> int:
        # After an unclean stop there may be more than was counted.
        positions = self._positions
        return 0 if positions.all_read else max(1, positions.depth)

    def is_recovering(self) -> bool:
        """Whether the next record is one that an unclean end left."""
        return self._positions.read_file < self._recovered_end

    @property
    def _is_busy(self) -> bool:
        """Whether a job is under way."""
        return self._job is not None or self._is_loading

    @property
    def behind(self) -> bool:
        if not self._is_busy:
            return False
        limit = _BEHIND_SYNCS * max(1, self._folder.sync_every)
        return self._operations >= limit or len(self._writer.sealed) >= SEALED_MAX // 2

    # The sidecar at the start

    def _begin_to_load(self) -> None:
        """Load the due times; nothing can be read before they are there."""
        try:
            nbytes = self._sidecar.size()
        except OSError as error:
            self._loaded(None, error)
            return
        if not nbytes:
            return
        self._is_bare = False
        if nbytes <= _SIDECAR_NBYTES_AT_ONCE:
            self._load_now()
            return
        self._is_loading = True
        generation, found = self._generation.number, list[dict[bytes, int]]()

        def done(error: Exception | None) -> None:
            self._is_loading = False
            if self._generation.number == generation:
                self._loaded(found[0] if found else None, error)
            if not self._deleted:
                self._go_on()

        self._folder.submit(self.name, lambda: found.append(self._sidecar.load()), done)

    def _load_now(self) -> None:
        try:
            self._loaded(self._sidecar.load(), None)
        except OSError as error:
            self._loaded(None, error)

    def _loaded(self, due_ns: dict[bytes, int] | None, error: Exception | None) -> None:
        if error is not None:
            text = error_text(error)
            log.error("%s: deferred messages lose their delay: %s", self._sidecar.name, text)
        if due_ns is not None:
            self._due_times.load(due_ns)
        if self._positions.all_read:
            self._due_times.clear()

    # Messages

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        if self._sync_error is not None:
            raise BackendError(self._sync_error)
        records = encode(segment)
        self._is_bare = False
        try:
            if not self._has_positions_file:
                self._say_positions()
            began_file = self._writer.append(records)
        except OSError as error:
            self._refused_nbytes = records.nbytes
            self._failed(error)
            raise BackendError(error_text(error)) from error
        if self._folder.faults:
            self._refused_nbytes = 0
            self._clear_fault()
        self._positions.depth += records.count
        if due_ns is not None:
            self._due_times.add(segment.ids(), due_ns)
        if began_file:
            self._reader.leave_finished_file()
        self._operated(records.count, began_file)

    def _say_positions(self) -> None:
        """Write the positions file so that a kill can't undo what they say. O(1), not durable."""
        text = self._positions.text()
        if text != self._said:
            begin_file(self._disk, self._files.positions, self._positions)
            self._said = text
        self._has_positions_file = True

    def read(self, count_max: int, nbytes_max: int) -> Segment | None:
        if not self._can_read or self._is_loading:
            return None
        try:
            segment = self._reader.peek(count_max, nbytes_max)
        except OSError as error:
            self._can_read = False
            self._read_failures += error.errno in _DAMAGE
            self._failed(error)
            return None
        self._read_failures = 0
        if segment is None:
            self._ended()
            if self._reader.moved:
                self._operated(0, True)
            return None
        if self._due_times:
            segment = self._due_times.take(segment)
        count = segment.last - segment.first
        self._reader.advance(count)
        self._positions.depth -= count
        if self._positions.all_read:
            self._ended()
        self._reads += count
        self._operated(count, self._reader.moved)
        return segment

    def _ended(self) -> None:
        """All is read."""
        self._due_times.clear()
        if self._positions.depth:
            log.warning(
                "DISKQUEUE(%s): depth was %d at the end of the data",
                self.name,
                self._positions.depth,
            )
            self._positions.depth = 0

    def peek(self) -> QueueView | None:
        if self._positions.all_read:
            return None
        return QueueView(
            self._disk,
            self._files,
            self._positions,
            self._writer.torn,
            self._folder.body_nbytes_max,
            self._due_times.due_ns,
            self._generation,
        )

    def oldest_ns(self) -> int | None:
        return self._reader.oldest_ns()

    def empty(self) -> int:
        dropped = self.depth
        if not self._is_bare:
            self._leave_files()
            # So that the files go, and the numbering goes on after a power failure, too.
            self._operated(0, True)
        return dropped

    def delete(self) -> None:
        if not self._is_bare:
            self._leave_files()
        self._deleted = True
        self._folder.changed.pop(self, None)
        self._folder.queues.pop(self, None)
        self._folder.faults.pop(self, None)
        if self._is_bare:
            return
        numbers = self._reader.finished
        if self._job is not None:
            numbers.add_all(self._job.finished)
        end, is_void = self._positions.write_file, self._has_positions_file
        Removal(self._folder, self._files, end, numbers, is_void=is_void).begin()

    def _leave_files(self) -> None:
        """Leave all records behind, and void what a job under way has still to do.

        The files are among the finished ones then. A kill brings no message back, unless the disk
        does not take the positions.
        """
        positions, reader = self._positions, self._reader
        first = positions.read_file
        reader.release()
        self._writer.leave_all()
        positions.depth = 0
        positions.read_file, positions.read_pos = positions.write_file, 0
        reader.finished.add_range(range(first, positions.write_file))
        self._due_times.clear()
        self._generation.number += 1
        self._durable = None
        self._sync_error = None
        self._doubtful.clear()
        self._can_read = True
        self._read_failures = 0
        self._refused_nbytes = 0
        self._clear_fault()
        try:
            self._say_positions()
        except OSError as error:
            self._has_positions_file = False
            self._failed(error)

    # Durability

    def _operated(self, count: int, moved: bool) -> None:
        self._operations += count
        self._folder.changed[self] = None
        if moved:
            self.sync()
        elif self._operations >= self._folder.sync_every and not self._is_busy:
            self._sync_records()

    def sync(self) -> None:
        """Begin to make durable all that is not. If that is under way, it is done once more."""
        self._sync_again = True
        if not self._is_busy:
            self._sync_records()

    def _sync_records(self) -> None:
        if self._sync_error is None:
            self._begin_sync()

    def _begin_sync(self) -> None:
        """Begin to make the records durable, and, if it is time for them, the positions.

        Records behind those that the positions count are found after any crash, so mere writing
        need not wait for the positions, which cost more than the records.
        """
        with_positions = (
            self._sync_again
            or self._durable is None
            or self._reads >= self._folder.sync_every
            or self._due_times.has_new
        )
        self._sync_again = False
        self._operations = 0
        try:
            self._writer.settle()
        except OSError as error:
            self._failed(error)
            self._sync_error = error_text(error)
            return
        job = self._job = self._make_job(with_positions)
        self._writer.lent = job.current[1] if job.current else None
        self._folder.submit(self.name, job.run, self._synced)

    def _make_job(self, with_positions: bool, *, at_end: bool = False) -> SyncJob:
        writer, reader = self._writer, self._reader
        positions: bytes | None = None
        due_times = NO_WORK
        finished = FileNumbers()
        if with_positions:
            self._folder.changed.pop(self, None)
            self._reads = 0
            text = self._positions.text()
            if text != self._durable:
                positions = text
            if positions != self._said:
                self._said = None
            due_times = self._due_times.plan(self._sidecar.lines, at_end=at_end)
            finished, reader.finished, reader.moved = reader.finished, finished, False
            # What is removed need not be written anew, for which there may be no room.
            self._doubtful = [each for each in self._doubtful if each[0] not in finished]
        current = None
        if writer.unsynced and writer.file is not None:
            current = (self._positions.write_file, writer.file)
        job = SyncJob(
            disk=self._disk,
            files=self._files,
            generation=self._generation,
            number=self._generation.number,
            sealed=writer.sealed,
            current=current,
            doubtful=self._doubtful,
            sidecar=self._sidecar,
            due_times=due_times,
            positions=positions,
            finished=finished,
            removed_max=_REMOVED_AT_END if at_end else REMOVED_AT_ONCE,
        )
        writer.sealed, writer.unsynced = [], False
        self._doubtful = []
        return job

    def _synced(self, error: Exception | None) -> None:
        job, self._job = self._job, None
        assert job is not None
        try:
            self._end_job(job, error)
        except Exception as defect:
            if not self._deleted:
                # What the job did is not known: nothing is taken before a whole sync went well.
                self._durable = None
                self._sync_error = error_text(defect)
                self._failed(defect)
                self.caught_up()
            raise
        if not self._deleted:
            self._go_on()

    def _end_job(self, job: SyncJob, error: Exception | None) -> None:
        for duration_s in job.fsyncs_s:
            self._folder.fsync_s.observe(duration_s)
        self._writer.take_back()
        if job.number != self._generation.number:
            _close_all(job.sealed)
            if not self._deleted:
                self._reader.finished.add_all(job.finished)
        elif job.durable:
            self._made_durable(job, error)
        elif error is not None:
            self._sync_failed(job, error)

    def _go_on(self) -> None:
        """A job has ended: begin the next one, if there is something to do."""
        enough = self._operations >= max(1, self._folder.sync_every)
        if self._sync_error is None and (self._sync_again or enough):
            self._begin_sync()
        self.caught_up()

    def _made_durable(self, job: SyncJob, error: Exception | None) -> None:
        if job.positions is not None:
            self._durable = job.positions
            self._has_positions_file = True
        self._sync_error = None
        if job.finished:
            self._reader.finished.add_all(job.finished)
            self._folder.changed[self] = None
            # At once, but for those that can't be removed.
            self._sync_again |= job.removed > 0 and not self._folder.stopping
        if error is None:
            self._clear_fault()
        else:
            self._failed(error)
            self._folder.changed[self] = None

    def _sync_failed(self, job: SyncJob, error: Exception) -> None:
        """What a sync failed to make durable never is: write it anew, and don't go on in it."""
        self._failed(error)
        self._sync_error = error_text(error)
        self._doubtful += job.doubtful
        if job.sealed:
            number, file = job.sealed.pop(0)
            if file is not None:
                let_go(file)
            self._doubt(number)
        elif job.current is not None:
            self._doubt(job.current[0])
        self._writer.sealed[:0] = job.sealed
        self._reader.finished.add_all(job.finished)
        self._due_times.failed(job.due_times)
        if job.current is not None and job.current[0] == self._positions.write_file:
            log.error(
                "DISKQUEUE(%s): %s may not survive a power failure; writing goes on in the next",
                self.name,
                self._files.records(self._positions.write_file),
            )
            if self._writer.file is None:  # a refused append let go of it
                self._doubt(self._positions.write_file)
            self._writer.seal()
            self._reader.leave_finished_file()

    def _doubt(self, number: int) -> None:
        positions = self._positions
        end = positions.write_pos if number == positions.write_file else None
        self._doubtful.append((number, self._writer.torn.get(number, end)))

    def try_again(self) -> None:
        """See whether the disk takes and gives something now; if so, go on."""
        if self._read_failures >= _READ_ATTEMPTS:
            self._read_failures = 0
            self._reader.give_up_file("tried in vain for some time")
        if not self._can_read:
            self._reader.release()
            self._can_read = True
        if self._has_room():
            self._refused_nbytes = 0
        elif not self._reader.finished:
            self.caught_up()  # reading may go on
            return
        self._durable = None
        if not self._is_busy:
            self._begin_sync()
        else:
            self._sync_again = True

    def give_room(self) -> None:
        """Let the file go that is all read, before it is full: the disk may be."""
        if self._positions.all_read and self._positions.write_pos:
            self._writer.seal()
            self._reader.leave_finished_file()
            self._operated(0, True)

    def _has_room(self) -> bool:
        if not self._refused_nbytes:
            return True
        try:
            return self._disk.free_nbytes() >= self._refused_nbytes
        except OSError as error:
            self._failed(error)
            return False

    def _failed(self, error: Exception) -> None:
        text = error_text(error)
        if self._folder.faults.get(self) != text:
            log.error("DISKQUEUE(%s): %s", self.name, text)
        self._folder.faults[self] = text

    def _clear_fault(self) -> None:
        """Forget what went wrong, if all goes well by now."""
        if self._can_read and not self._refused_nbytes and self._sync_error is None:
            self._folder.faults.pop(self, None)

    def close(self) -> None:
        """Raises BackendError as the interface says. No job may be under way."""
        assert not self._is_busy, "a job is under way"
        error = self._settle_and_sync()
        self._reader.release()
        self._writer.release()
        self._folder.changed.pop(self, None)
        self._folder.queues.pop(self, None)
        if error is not None:
            self._failed(error)
            raise BackendError(error_text(error)) from error
        self._folder.faults.pop(self, None)

    def _settle_and_sync(self) -> Exception | None:
        """Make durable what can be, here and now; what went wrong first."""
        failure: Exception | None = None
        try:
            self._writer.settle()
        except OSError as error:
            failure = error
        job = self._make_job(True, at_end=True)
        try:
            job.run()
        except OSError as error:
            if job.durable:
                log.error("DISKQUEUE(%s): left over: %s", self.name, error_text(error))
            else:
                failure = failure or error
        except Exception as defect:
            self._folder.background.defects.tell(defect)
            failure = failure or defect
        _close_all(job.sealed)
        return failure

    def check(self) -> str | None:
        """What is wrong with the state of the queue, None if nothing is. O(1)."""
        positions, writer, reader = self._positions, self._writer, self._reader
        read = (positions.read_file, positions.read_pos)
        written = (positions.write_file, positions.write_pos)
        if read > written:
            return f"it is read at {read}, behind {written}, where it is written"
        if positions.depth > 0 and self._is_bare:
            return f"its depth is {positions.depth}, but it has no file"
        if reader.finished.end > positions.read_file:
            return f"it is read in file {positions.read_file}, but later ones are to be removed"
        if writer.sealed and writer.sealed[-1][0] >= positions.write_file:
            return f"it is written in file {positions.write_file}, which is taken for full"
        if self._deleted and (writer.file is not None or not positions.all_read):
            return "it is deleted, but has messages"
        if self._due_times and positions.all_read:
            return f"it has no message, but due times of {len(self._due_times)}"
        return reader.check()


def _close_all(files: list[tuple[int, DiskFile | None]]) -> None:
    for _, file in files:
        if file is not None:
            let_go(file)
