"""The disk queue: the overflow of a topic or channel, in the very files of the original nsqd.

Records are written and read here and now: that is a copy to or from the page cache. What may
block for long (fsync, renames, removals) is done by a background job, one at a time.

Spec: nsqd-internals, section 7.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from trionsq.core.backend import BackendError
from trionsq.core.batch import Segment
from trionsq.storage.deferrals import DeferralFile
from trionsq.storage.duetimes import NO_WORK, DueTimes
from trionsq.storage.folder import DataFolder, error_text, let_go
from trionsq.storage.leftover import Leftover, Remains, leftover_of, remove_files
from trionsq.storage.peek import QueueView
from trionsq.storage.positions import QueueFiles, begin_file, find_start
from trionsq.storage.reader import QueueReader
from trionsq.storage.records import encode
from trionsq.storage.sync import Generation, SyncJob
from trionsq.storage.writer import SEALED_MAX, QueueWriter

__all__ = ["DiskQueue"]

log = logging.getLogger("trionsq")

# While a sync is under way, so many times --sync-every may follow before publishers must wait.
_BEHIND_SYNCS: Final = 2
# A file that can't be read is tried so often (once a second) before it is given up, if the error
# speaks of what it holds. With any other one, such as too many open files, it is tried for ever.
_READ_ATTEMPTS: Final = 5
_DAMAGE: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})


class DiskQueue:
    """A FIFO of messages on disk; implements `trionsq.core.backend.Backend`.

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
        left = leftover_of(folder, name)
        start = find_start(folder, self._files) if left is None else left.start()
        self._positions = start.positions
        # Files before this one are of before an unclean end.
        self._recovered_end = start.positions.write_file if start.moved else 0
        # The content of the positions file, None if it is not known to be durable.
        self._durable = start.text
        self._has_positions_file = start.text is not None
        self._generation = Generation()
        self._job: SyncJob | None = None
        self._sync_again = False
        self._sync_error: str | None = None
        self._doubtful: list[tuple[str, int | None]] = []
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
        self._due_times.load(self._sidecar)
        if self._positions.all_read:
            self._due_times.clear()
        folder.queues[self] = None
        if start.moved or start.finished or (self._due_times.on_disk and not self._due_times):
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
    def behind(self) -> bool:
        if self._job is None:
            return False
        limit = _BEHIND_SYNCS * max(1, self._folder.sync_every)
        return self._operations >= limit or len(self._writer.sealed) >= SEALED_MAX // 2

    # Messages

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        if self._sync_error is not None:
            raise BackendError(self._sync_error)
        records = encode(segment)
        try:
            if not self._has_positions_file:
                begin_file(self._disk, self._files.positions, self._positions)
                self._has_positions_file = True
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

    def read(self, count_max: int, nbytes_max: int) -> Segment | None:
        if not self._can_read:
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

    def check(self) -> str | None:
        return None

    def empty(self) -> int:
        dropped = self.depth
        positions = self._positions
        # What can't be removed now goes with the next sync.
        self._reader.finished = self._remove().records
        positions.depth = 0
        positions.write_file += 1
        positions.write_pos = 0
        positions.read_file, positions.read_pos = positions.write_file, 0
        # So that the numbering goes on after a crash, too.
        self._operated(0, True)
        return dropped

    def delete(self) -> None:
        left = self._remove()
        self._deleted = True
        self._folder.changed.pop(self, None)
        self._folder.queues.pop(self, None)
        reason = self._folder.faults.pop(self, "")
        if left:
            Leftover(self._folder, self._files, left, self._positions.write_file + 1).tell(reason)

    def _remove(self) -> Remains:
        """Remove all files, and void what a job under way has still to do; what stays."""
        positions, files = self._positions, self._files
        numbers = range(positions.read_file, positions.write_file + 1)
        names = [*map(files.records, numbers), *self._reader.finished]
        with suppress(OSError):  # one that stays is set aside when its number comes
            self._writer.settle()
        self._reader.release()
        self._writer.release()
        self._due_times.clear()
        self._durable = None
        self._has_positions_file = False
        self._sync_error = None
        self._doubtful.clear()
        self._can_read = True
        self._read_failures = 0
        self._refused_nbytes = 0
        self._clear_fault()
        with self._generation.lock:
            self._generation.number += 1
            if self._job is not None:
                names += self._job.finished
            records = remove_files(self._disk, names, self._failed)
            others = remove_files(self._disk, [files.positions], self._failed)
            try:
                self._sidecar.remove()
            except OSError as error:
                self._failed(error)
                others.append(self._sidecar.name)
            else:
                self._due_times.forget_file()
        return Remains(records, others)

    # Durability

    def _operated(self, count: int, moved: bool) -> None:
        self._operations += count
        self._folder.changed[self] = None
        if moved:
            self.sync()
        elif self._operations >= self._folder.sync_every and self._job is None:
            self._sync_records()

    def sync(self) -> None:
        """Begin to make durable all that is not. If that is under way, it is done once more."""
        self._sync_again = True
        if self._job is None:
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
        self._folder.background.submit(job.run, self._synced)

    def _make_job(self, with_positions: bool, *, at_end: bool = False) -> SyncJob:
        writer, reader = self._writer, self._reader
        positions: bytes | None = None
        due_times = NO_WORK
        finished: list[str] = []
        if with_positions:
            self._folder.changed.pop(self, None)
            self._reads = 0
            text = self._positions.text()
            positions = text if text != self._durable else None
            due_times = self._due_times.plan(at_end=at_end)
            finished, reader.finished, reader.moved = reader.finished, [], False
            # What is removed need not be written anew, for which there may be no room.
            self._doubtful = [each for each in self._doubtful if each[0] not in finished]
        current = None
        if writer.unsynced and writer.file is not None:
            current = (self._positions.write_file, writer.file)
        job = SyncJob(
            disk=self._disk,
            generation=self._generation,
            number=self._generation.number,
            sealed=writer.sealed,
            current=current,
            doubtful=self._doubtful,
            sidecar=self._sidecar,
            due_times=due_times,
            positions_file=self._files.positions,
            positions=positions,
            finished=finished,
        )
        writer.sealed, writer.unsynced = [], False
        self._doubtful = []
        return job

    def _synced(self, error: OSError | None) -> None:
        job, self._job = self._job, None
        assert job is not None
        for duration_s in job.fsyncs_s:
            self._folder.fsync_s.observe(duration_s)
        self._writer.take_back()
        if job.number != self._generation.number:
            for _, file in job.sealed:
                let_go(file)
            if self._deleted:
                return
        elif job.durable:
            self._made_durable(job, error)
        elif error is not None:
            self._sync_failed(job, error)
        may_sync = self._sync_error is None
        if may_sync and (self._sync_again or self._operations >= max(1, self._folder.sync_every)):
            self._begin_sync()
        self.caught_up()

    def _made_durable(self, job: SyncJob, error: OSError | None) -> None:
        if job.positions is not None:
            self._durable = job.positions
            self._has_positions_file = True
        self._sync_error = None
        if error is None:
            self._due_times.done(job.due_times)
            self._clear_fault()
        else:
            # Files that were left over go next time.
            self._failed(error)
            self._reader.finished[:0] = job.finished
            self._folder.changed[self] = None

    def _sync_failed(self, job: SyncJob, error: OSError) -> None:
        """What a sync failed to make durable never is: write it anew, and don't go on in it."""
        self._failed(error)
        self._sync_error = error_text(error)
        self._doubtful += job.doubtful
        if job.sealed:
            number, file = job.sealed.pop(0)
            let_go(file)
            self._doubt(number)
        elif job.current is not None:
            self._doubt(job.current[0])
        self._writer.sealed[:0] = job.sealed
        self._reader.finished[:0] = job.finished
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
        self._doubtful.append((self._files.records(number), self._writer.torn.get(number, end)))

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
        if self._job is None:
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

    def _failed(self, error: OSError) -> None:
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
        assert self._job is None, "a sync is under way"
        error = self._settle_and_sync()
        self._reader.release()
        self._writer.release()
        self._folder.changed.pop(self, None)
        self._folder.queues.pop(self, None)
        if error is not None:
            self._failed(error)
            raise BackendError(error_text(error)) from error
        self._folder.faults.pop(self, None)

    def _settle_and_sync(self) -> OSError | None:
        """Make durable what can be, here and now; what went wrong first."""
        failure: OSError | None = None
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
        for _, file in job.sealed:
            let_go(file)
        return failure
