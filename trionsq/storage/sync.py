"""Durability of a disk queue: when a sync begins, and what follows from its result.

`trionsq.storage.sync_job` has the work itself.

Spec: nsqd-internals, section 7 (sync).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from trionsq.storage.deferrals import DeferralChanges, Deferrals
from trionsq.storage.folder import DataFolder, Queue, error_text
from trionsq.storage.positions import (
    MAX_DELETED_AT_ONCE,
    FileNumbers,
    Generation,
    PositionsFile,
    QueueFiles,
)
from trionsq.storage.reader import QueueReader
from trionsq.storage.sync_job import SyncJob
from trionsq.storage.writer import MAX_OPEN_SEALED, QueueWriter, close_sealed

__all__ = ["QueueSync", "SyncOwner"]

log = logging.getLogger("trionsq")

# While a sync runs, this many times --sync-every operations may follow before publishers wait.
_MAX_INTERVALS_BEHIND: Final = 2
# Files deleted at the stop: at 50 ms for each of 100 MB they take 5 s of the minute that nsqd has.
# The rest is deleted at the next start.
_MAX_DELETED_AT_STOP: Final = 100


class SyncOwner(Queue, Protocol):
    """The queue as its `QueueSync` sees it.

    Attributes:
        caught_up: to be called when `Backend.behind` or an error may have ended.
    """

    caught_up: Callable[[], None]

    def note_error(self, error: Exception) -> None:
        """Log the error, and show it in the health of nsqd."""

    def clear_fault(self) -> None:
        """Forget the last error if the queue works again."""


class QueueSync:
    """Makes a disk queue durable by jobs, one at a time.

    Attributes:
        error: why the last sync failed; None if it went well. Nothing may be appended then.
        generation: invalidates jobs when the queue is emptied or deleted.
        reads: records read since the last sync that stores the positions began; the queue counts.
        begun: syncs that were begun.
        durable: the last of these that went well.
    """

    __slots__ = ("_deferrals", "_files", "_folder", "_is_needed", "_is_stopped", "_job",
                 "_operations", "_owner", "_positions", "_positions_file", "_reader", "_reads",
                 "_unsynced", "_writer", "begun", "durable", "error", "generation",
                 "reads")  # fmt: skip

    def __init__(
        self,
        owner: SyncOwner,
        folder: DataFolder,
        files: QueueFiles,
        positions_file: PositionsFile,
        writer: QueueWriter,
        reader: QueueReader,
        deferrals: Deferrals,
    ) -> None:
        self.error: str | None = None
        self.generation = Generation()
        self.reads = 0
        self.begun = self.durable = 0
        self._owner = owner
        self._folder = folder
        self._files = files
        self._positions_file = positions_file
        self._positions = positions_file.positions
        self._writer = writer
        self._reader = reader
        self._deferrals = deferrals
        self._job: SyncJob | None = None
        self._is_needed = False
        self._is_stopped = False
        # Records written or read since the last sync began.
        self._operations = 0
        self._unsynced: list[tuple[int, int | None]] = []

    @property
    def is_busy(self) -> bool:
        """Whether a job of the queue is under way."""
        return self._job is not None or self._deferrals.is_loading

    @property
    def is_behind(self) -> bool:
        """Whether too much waits for the job under way."""
        if not self.is_busy:
            return False
        limit = _MAX_INTERVALS_BEHIND * max(1, self._folder.sync_every)
        return self._operations >= limit or len(self._writer.sealed) >= MAX_OPEN_SEALED // 2

    def count_operations(self, count: int, file_changed: bool) -> None:
        """Count records written or read.

        Begins a sync after --sync-every of them, or if a file was begun or finished.
        """
        self._operations += count
        self._folder.changed[self._owner] = None
        if file_changed:
            self.request()
        elif self._operations >= self._folder.sync_every and not self.is_busy:
            self._begin_unless_failed()

    def request(self) -> None:
        """Begin to make everything durable. If a job is under way, another one follows."""
        self._is_needed = True
        if not self.is_busy:
            self._begin_unless_failed()

    def _begin_unless_failed(self) -> None:
        if self.error is None:
            self._begin_job()

    def retry(self) -> None:
        """Sync everything again after an error."""
        self._positions_file.mark_unsynced()
        if not self.is_busy:
            self._begin_job()
        else:
            self._is_needed = True

    def begin_next(self) -> None:
        """Begin the next job if one is due: the last one has ended."""
        if self._is_stopped:
            return
        is_due = self._operations >= max(1, self._folder.sync_every)
        if self.error is None and (self._is_needed or is_due):
            self._begin_job()
        self._owner.caught_up()

    def _begin_job(self) -> None:
        """Make the records durable, and the positions if it is time for them.

        A crash loses no records behind the stored positions: they are found. So positions, which
        cost more than records, are stored less often.
        """
        with_positions = (
            self._is_needed
            or not self._positions_file.is_durable
            or self.reads >= self._folder.sync_every
            or self._deferrals.has_new
        )
        self._is_needed = False
        self._operations = 0
        try:
            self._writer.repair_files()
        except OSError as error:
            self._owner.note_error(error)
            self.error = error_text(error)
            return
        self.begun += 1
        job = self._job = self._make_job(with_positions)
        self._folder.submit(self._files.queue, job.run, self._job_done)

    def _make_job(self, with_positions: bool, *, at_stop: bool = False) -> SyncJob:
        positions: bytes | None = None
        deferrals: DeferralChanges | None = None
        finished = FileNumbers()
        if with_positions:
            self._folder.changed.pop(self._owner, None)
            self.reads = 0
            positions = self._positions_file.text_to_store()
            deferrals = self._deferrals.plan_changes(at_stop=at_stop)
            finished = self._reader.lend_finished()
            # Files to be deleted need no rewriting, for which the disk may have no room.
            self._unsynced = [each for each in self._unsynced if each[0] not in finished]
        sealed, current = self._writer.lend_files()
        unsynced, self._unsynced = self._unsynced, []
        return SyncJob(
            disk=self._folder.disk,
            files=self._files,
            generation=self.generation,
            number=self.generation.number,
            sealed=sealed,
            current=current,
            unsynced=unsynced,
            deferrals=deferrals,
            positions=positions,
            finished=finished,
            max_deleted=_MAX_DELETED_AT_STOP if at_stop else MAX_DELETED_AT_ONCE,
        )

    def _job_done(self, error: Exception | None) -> None:
        job, self._job = self._job, None
        assert job is not None
        try:
            self._apply_result(job, error)
        except Exception as defect:
            if not self._is_stopped:
                # Unknown what the job did: nothing is accepted before a whole sync went well.
                self._positions_file.mark_unsynced()
                self.error = error_text(defect)
                self._owner.note_error(defect)
                self._owner.caught_up()
            raise
        self.begin_next()

    def _apply_result(self, job: SyncJob, error: Exception | None) -> None:
        for duration_s in job.fsyncs_s:
            self._folder.fsync_s.observe(duration_s)
        self._writer.end_loan()
        if job.number != self.generation.number:
            close_sealed(job.sealed)
            if not self._is_stopped:
                self._reader.return_finished(job.finished)
        elif job.durable:
            self._apply_success(job, error)
        elif error is not None:
            self._apply_failure(job, error)

    def _apply_success(self, job: SyncJob, error: Exception | None) -> None:
        if job.positions is not None:
            self._positions_file.mark_stored(job.positions)
        self.error = None
        self.durable = self.begun
        if job.finished:
            self._reader.return_finished(job.finished)
            self._folder.changed[self._owner] = None
            # The rest follows at once, unless the disk refuses to delete all of it.
            self._is_needed |= job.deleted > 0 and not self._folder.stopping
        if error is None:
            self._owner.clear_fault()
        else:
            self._owner.note_error(error)
            self._folder.changed[self._owner] = None

    def _apply_failure(self, job: SyncJob, error: Exception) -> None:
        """Rewrite what the sync failed to make durable, and write on in another file."""
        self._owner.note_error(error)
        self.error = error_text(error)
        self._unsynced += job.unsynced
        if job.sealed:
            failed = job.sealed.pop(0)
            close_sealed([failed])
            self._mark_unsynced(failed[0])
        elif job.current is not None:
            self._mark_unsynced(job.current[0])
        self._writer.return_sealed(job.sealed)
        self._reader.return_finished(job.finished)
        if job.deferrals is not None:
            self._deferrals.restore_changes(job.deferrals)
        number = self._positions.write_file
        if job.current is not None and job.current[0] == number:
            log.error(
                "DISKQUEUE(%s): %s may not survive a power failure; writing continues in the next "
                "file",
                self._files.queue,
                self._files.records(number),
            )
            if not self._writer.has_open_file:  # a refused append has closed it
                self._mark_unsynced(number)
            self._writer.seal()
            self._reader.skip_finished_file()

    def _mark_unsynced(self, number: int) -> None:
        self._unsynced.append((number, self._writer.end_of(number)))

    def abandon(self) -> None:
        """Invalidate the job under way: the queue has left all its records behind."""
        self.generation.number += 1
        self._positions_file.mark_unsynced()
        self.error = None
        self._unsynced.clear()

    def stop(self) -> FileNumbers:
        """Begin no more jobs: the queue is deleted. Return the numbers of all its finished files.

        A job under way may be deleting some of them.
        """
        self._is_stopped = True
        numbers = self._reader.lend_finished()
        if self._job is not None:
            numbers.add_all(self._job.finished)
        return numbers

    def sync_at_stop(self) -> Exception | None:
        """Make everything durable here and now; return what went wrong first, if anything.

        No job may be under way.
        """
        assert not self.is_busy, "a job is under way"
        failure: Exception | None = None
        try:
            self._writer.repair_files()
        except OSError as error:
            failure = error
        job = self._make_job(True, at_stop=True)
        try:
            job.run()
        except OSError as error:
            if job.durable:
                log.error(
                    "DISKQUEUE(%s): some files remain: %s", self._files.queue, error_text(error)
                )
            else:
                failure = failure or error
        except Exception as defect:
            self._folder.background.defects.report(defect)
            failure = failure or defect
        close_sealed(job.sealed)
        self._writer.end_loan()
        return failure
