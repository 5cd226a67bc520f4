"""The logs of one node: one state, and one job at a time that commits and writes.

The jobs have the order in which the loop asked for them. So what was committed before a publish is
durable before the publisher's OK, and a file goes only after the commit that says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from trionsq.core.round import Round
from trionsq.disk import Disk
from trionsq.storage.folder import DataFolder, Job, JobDone, error_text
from trionsq.storage.log.budgets import CacheBudget, ReadBudget
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.damage import DamagedPlaces, show_error
from trionsq.storage.log.figures import StateFigures
from trionsq.storage.log.journals import DEFAULT_JOURNAL_BYTES, Journals
from trionsq.storage.log.names import incarnation_of
from trionsq.storage.log.nodejobs import NodeJob, NodeJobs
from trionsq.storage.log.reserve import RESERVE_FILE
from trionsq.storage.log.rows import (
    AddTopic,
    Change,
    DropTopic,
    ForgetTopic,
    State,
)
from trionsq.storage.log.seeking import begin_cursor
from trionsq.storage.log.segmentfile import SegmentFile
from trionsq.storage.log.segments import Damage
from trionsq.storage.log.segmentwriter import SegmentWriter
from trionsq.storage.log.storedkeys import StoredKeys
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["DEFAULT_SEGMENT_BYTES", "LogNode"]

log = logging.getLogger("trionsq")

DEFAULT_SEGMENT_BYTES: Final = 128 * 1024 * 1024

# The names of files, as a job finds them, and what is to be done when the files are gone.
_Removal = tuple[Callable[[], Sequence[str]], Callable[[], None]]


class LogNode:
    """See the module.

    Attributes:
        folder: the data path.
        state: positions and settings.
        logs: of the topics, by number.
        durability: of new topics.
        next_number: of the next topic or channel.
        damaged: damaged places of the logs.
        keys: of idempotent publishes that are in the logs.
        figures: counts, for operators.
        holds: how many copy or replace files; nothing is removed meanwhile.
    """

    def __init__(
        self,
        folder: DataFolder,
        state: State,
        *,
        durability: str = "interval",
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        journal_bytes: int = DEFAULT_JOURNAL_BYTES,
        next_number: int = 1,
        keys: StoredKeys | None = None,
    ) -> None:
        self.folder = folder
        self.state = state
        self.logs: dict[int, TopicLog] = {}
        self.next_number = next_number
        self.damaged = DamagedPlaces(folder.faults)
        self.figures = StateFigures()
        self.durability = durability
        self.keys = keys or StoredKeys()
        self.segment_bytes = segment_bytes
        self._journals = Journals[TopicLog](folder.disk, self.figures.fsync_s, journal_bytes)
        self._jobs = NodeJobs(folder.background, state, self._journals, self._end_job)
        self.add_batch = self._jobs.add_batch
        self.holds = 0
        self._held: list[_Removal] = []
        # What could not be removed, or may not be yet: its commit failed.
        self._left: list[_Removal] = []
        self._removal_error: str | None = None
        self._reads_to_retry: list[tuple[Job, JobDone]] = []
        self.count_cached = CacheBudget().count_batch
        self._reads = ReadBudget()

    def __repr__(self) -> str:
        return f"<LogNode {self.folder.disk.path} logs={len(self.logs)}>"

    @property
    def disk(self) -> Disk:
        return self.folder.disk

    @property
    def is_full(self) -> bool:
        """Whether the disk is so full that nothing may be published: finishing needs the rest."""
        return self.state.reserve_given_up

    # Topics and channels

    def new_topic(self, name: str, durability: str | None = None) -> TopicLog:
        """Make the log of a new topic."""
        number = self.take_number()
        durability = durability or self.durability
        log_ = TopicLog(self, number, name, durability, self.new_writer(name, number, None))
        self.add_log(log_)
        self.commit([AddTopic(log_.row())])
        return log_

    def add_log(self, log_: TopicLog) -> None:
        """Serve a log."""
        self.logs[log_.number] = log_

    def new_writer(self, name: str, number: int, last: SegmentFile | None) -> SegmentWriter:
        """Return what writes the log of a topic."""
        fsync_s = self.figures.fsync_s
        return SegmentWriter(self.disk, name, number, self.segment_bytes, fsync_s, last)

    def new_cursor(self, log_: TopicLog, name: str, begin_at: int | None = None) -> Cursor:
        """Make the cursor of a new channel; see `begin_cursor`."""
        cursor, changes = begin_cursor(log_, self.take_number(), name, begin_at)
        self.commit(changes)
        return cursor

    def take_number(self) -> int:
        """Return a number for a topic or channel that has not had one."""
        number = self.next_number
        self.next_number += 1
        return number

    def drop_topic(self, log_: TopicLog) -> None:
        self.logs.pop(log_.number, None)
        self.folder.changed.pop(log_, None)
        number = log_.number
        self.damaged.forget_segments(number)

        def names() -> list[str]:
            # A round that is under way may begin a segment still.
            log_.close_files()
            return [name for name in self.disk.names() if incarnation_of(name) == number]

        def removed() -> None:
            self.commit([ForgetTopic(number)])

        never_written = self._jobs.forget_log(log_)
        committed = self.commit([DropTopic(number)])
        self.remove_after(committed, names, removed)
        if never_written is not None:
            never_written.finish("the topic is deleted")

    def remove_after(
        self,
        committed: Round,
        names: Callable[[], Sequence[str]],
        removed: Callable[[], None],
    ) -> None:
        """Remove files after a commit; if that fails, after the one that takes its changes along.

        ``names`` is called in the job that does it.
        """

        def remove() -> None:
            if committed.error is None:
                self._remove_files(names, removed)
            else:
                self._left.append((names, removed))

        committed.when_done(remove)

    def _remove_files(
        self, names: Callable[[], Sequence[str]], removed: Callable[[], None]
    ) -> None:
        if self.holds:
            self._held.append((names, removed))
            return

        def job() -> None:
            for name in names():
                with suppress(FileNotFoundError):
                    self.disk.unlink(name)
            self.disk.sync_folder()

        def done(error: Exception | None) -> None:
            text = None if error is None else error_text(error)
            if text not in (None, self._removal_error):
                log.error("LOG: removing files failed: %s", text)
            self._removal_error = text
            if text is None:
                removed()
            else:
                self._left.append((names, removed))

        self.folder.background.submit(job, done)

    def _remove_left(self) -> None:
        left, self._left = self._left, []
        for names, removed in left:
            self._remove_files(names, removed)

    def hold_files(self) -> None:
        """Remove no files until `release_files`: somebody copies them."""
        self.holds += 1

    def release_files(self) -> None:
        """Remove what was to be removed meanwhile, if nobody else holds it."""
        self.holds -= 1
        if not self.holds:
            held, self._held = self._held, []
            for names, removed in held:
                self._remove_files(names, removed)

    # Work

    def sync_log(self, log_: TopicLog, *, probe: bool) -> None:
        self._jobs.sync_log(log_, probe=probe)

    def note_unsynced(self, log_: TopicLog) -> None:
        # What `always` has not synced to its segment, a journal has.
        if log_.durability == "interval" and log_.has_unsynced and not log_.is_deleted:
            self.folder.changed[log_] = None
        else:
            self.folder.changed.pop(log_, None)

    def commit(self, changes: Sequence[Change]) -> Round:
        return self._jobs.commit([*self.keys.changes(), *changes])

    def committed(self) -> Round | None:
        """Return the round of all changes so far; None if they are durable.

        Changes that failed are tried again.
        """
        return self._jobs.committed()

    def _end_job(self, job: NodeJob) -> None:
        self._show_full()
        self._end_commit(job)
        for one in job.rounds:
            one.log.end_round(one)

    def _end_commit(self, job: NodeJob) -> None:
        text: str | None = None
        if job.changes:
            faults, name = self.folder.faults, "trionsq.state.db"
            if job.failure is None:
                faults.pop(name, None)
                self.figures.commits += 1
            else:
                self.figures.failed_commits += 1
                text = str(job.failure)
                if faults.get(name) != text:
                    log.error("LOG: committing the state failed: %s", text)
                faults[name] = text
        if job.committed is not None:
            if job.failure is None:  # what failed before was among the changes
                self._remove_left()
            job.committed.finish(text)

    def close(self) -> None:
        """Release the files. In a job, when all is durable that can be."""
        self._journals.close()
        for log_ in self.logs.values():
            log_.close_files()
        self.state.close()

    # Reading

    def submit_job(self, job: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self.folder.background.submit(job, done)

    def retry_read(self, job: Job, done: JobDone) -> None:
        self._reads_to_retry.append((job, done))

    def retry(self) -> None:
        """Commit, read and remove what could not be committed, read or removed."""
        self._jobs.retry(checkpoint=self.is_full)  # a checkpoint makes the reserve again
        if self._left and self.committed() is None:
            self._remove_left()
        reads, self._reads_to_retry = self._reads_to_retry, []
        for job, done in reads:
            self.submit_job(job, done)
        for log_ in self.logs.values():
            if f"log of {log_.name}" in self.folder.faults:
                log_.retry()
                log_.caught_up()
                for cursor in list(log_.cursors.values()):
                    cursor.caught_up()

    def block_bytes(self) -> int:
        return self._reads.take_block()

    def release_block(self, nbytes: int) -> None:
        self._reads.release(nbytes)

    # Trouble

    def _show_full(self) -> None:
        faults = self.folder.faults
        if self.is_full:
            faults[RESERVE_FILE] = "the disk is full: topics with a log take no messages"
        elif RESERVE_FILE in faults:
            del faults[RESERVE_FILE]

    def segments_left(self, log_: TopicLog) -> None:
        self.damaged.forget_segments(log_.number, log_.first)

    def report_damage(self, name: str, found: Sequence[tuple[str, Damage]]) -> None:
        for file, damage in found:
            self.damaged.report(name, file, damage)

    def report_error(self, name: str, error: Exception | None) -> None:
        if error is not None or self.folder.faults:
            show_error(self.folder.faults, name, error)
