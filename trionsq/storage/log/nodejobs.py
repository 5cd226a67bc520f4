"""The jobs of a node: each commits changes, then writes and syncs what was published.

There is one at a time. What the event loop asks for meanwhile is the next one. If that is much, the
same thread takes it, and the disk does not wait for a turn of the event loop. If it is little, the
event loop begins it, and by then it is more. A job that is one write needs no thread if the system
writes by itself; the next one begins before the publishers of this one have their answers. On a
slow disk it may wait for them instead, see `GroupCommit`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from threading import Lock
from time import perf_counter, sleep
from typing import Final

from trionsq.core.batch import MessageBatch
from trionsq.core.round import Round
from trionsq.storage.folder import Background, Job, JobDone
from trionsq.storage.log.groupcommit import GroupCommit
from trionsq.storage.log.journals import Journals
from trionsq.storage.log.roundjob import RoundJob
from trionsq.storage.log.rows import Change, State, StateError, numbers_added
from trionsq.storage.log.segmentfile import DiskWrite
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["NodeJob", "NodeJobs"]

log = logging.getLogger("trionsq")

# Topics written in one job: the others get the next one.
_MAX_TOPICS_A_JOB: Final = 256
# Commits after which SQLite's journal is taken into the file.
_COMMITS_PER_CHECKPOINT: Final = 256
# Beside so many messages a round costs little: a thread goes on with them.
_MESSAGES_TO_GO_ON: Final = 64
# Less is not worth a thread.
_MIN_SLEEP_S: Final = 0.0002


class NodeJob:
    """Changes that are committed, and rounds that are written then.

    Attributes:
        changes: of the state.
        committed: who waits for the changes; None if nobody does.
        rounds: one for each topic.
        messages: of the rounds, about.
        began_s: when it was begun.
        failure: why the changes were not committed.
        logs_to_sync: a journal needs that.
        is_last: its thread does not go on.
        awaited: so many messages the next job waits for.
    """

    __slots__ = ("awaited", "began_s", "changes", "committed", "failure", "is_last",
                 "logs_to_sync", "messages", "rounds")  # fmt: skip

    def __init__(
        self,
        changes: list[Change],
        committed: Round | None,
        rounds: list[RoundJob[TopicLog]],
        messages: int,
    ) -> None:
        self.changes = changes
        self.committed = committed
        self.rounds = rounds
        self.messages = messages
        self.began_s = perf_counter()
        self.failure: Exception | None = None
        self.logs_to_sync: list[TopicLog] = []
        self.is_last = False
        self.awaited = 0

    @property
    def has_failed(self) -> bool:
        """Whether some of it was not done."""
        return self.failure is not None or any(job.error for job in self.rounds)

    def single_write(self, journals: Journals[TopicLog]) -> DiskWrite | None:
        """Return the write that the job is; None if there is more to do."""
        if self.changes or self.committed is not None:
            return None
        return journals.encode(self.rounds)


class NodeJobs:
    """Gathers the next job while one is under way. For the event loop's thread."""

    def __init__(
        self,
        background: Background,
        state: State,
        journals: Journals[TopicLog],
        ended: Callable[[NodeJob], None],
    ) -> None:
        """``ended`` is called when a job has ended."""
        self._background = background
        self._state = state
        self._journals = journals
        self._ended = ended
        # For what the loop gathers, and the job's thread takes.
        self._lock = Lock()
        self._rounds: dict[TopicLog, RoundJob[TopicLog]] = {}
        self._messages = 0
        # While nothing is under way: so many messages begin a job.
        self._awaited = 0
        self._wait_ends_s = 0.0
        self._sleeps = False
        self._group_commit = GroupCommit()
        self._changes: list[Change] = []
        self._commit: Round | None = None
        # The newest commit that a job has taken, and that has not ended.
        self._under_way: Round | None = None
        # Changes that could not be committed; they go with the next ones.
        self._failed: list[Change] = []
        self._commits = 0
        self._is_working = False
        self._messages_to_go_on = _MESSAGES_TO_GO_ON

    def __repr__(self) -> str:
        return f"<NodeJobs working={self._is_working} rounds={len(self._rounds)}>"

    def add_batch(self, log_: TopicLog, batch: MessageBatch, first: int) -> Round:
        """Have a batch written that begins with the sequence ``first``; return its round."""
        with self._lock:
            job = self._rounds.get(log_) or self._round_of(log_)
            round_ = job.add_batch(batch, first)
            self._messages += batch.count
        if not self._is_working and self._messages >= self._awaited:
            self._work()
        return round_

    def sync_log(self, log_: TopicLog, *, probe: bool) -> None:
        """Have made durable what was written; with ``probe`` the disk shows that it works again."""
        with self._lock:
            self._round_of(log_).sync_alone(log_.end if probe else None)
        self._work()

    def forget_log(self, log_: TopicLog) -> Round | None:
        """Write no more to a log; return the round that does not take place."""
        with self._lock:
            job = self._rounds.pop(log_, None)
        return None if job is None else job.round

    def commit(self, changes: Sequence[Change]) -> Round:
        """Have changes committed, before what is published from now on is safe."""
        with self._lock:
            self._changes += changes
            committed = self._commit
            if committed is None:
                committed = self._commit = Round()
        self._work()
        return committed

    def committed(self) -> Round | None:
        """Return the round of all changes so far; None if they are durable.

        Changes that failed are tried again.
        """
        with self._lock:
            newest = self._commit or self._under_way
        if newest is None and self._failed:
            return self.commit([])
        return newest

    def retry(self, *, checkpoint: bool) -> None:
        """Commit what could not be committed; with ``checkpoint``, make SQLite's journal short."""
        if checkpoint:
            self._commits = _COMMITS_PER_CHECKPOINT
        if checkpoint or self._failed:
            self.commit([])

    def _round_of(self, log_: TopicLog) -> RoundJob[TopicLog]:
        job = self._rounds.get(log_)
        if job is None:
            job = self._rounds[log_] = log_.new_round()
        return job

    def _work(self) -> None:
        """Begin a job if there is anything to do."""
        if self._is_working:
            return
        self._awaited = 0
        if self._commits >= _COMMITS_PER_CHECKPOINT:
            self._commits = 0
            self._is_working = True
            self._background.submit(self._checkpoint, self._go_on)
            return
        job = self._take_job()
        if job is not None:
            self._is_working = True
            if not self._write_directly(job):
                self._run_series(job)

    def _write_directly(self, job: NodeJob) -> bool:
        """Begin a job that is one write; return False if it is more."""
        if not self._background.writes_directly:
            return False
        write = job.single_write(self._journals)
        if write is None:
            return False
        ended = partial(self._end_write, job)
        self._background.submit_write(write.file, write.data, write.offset, write.room, ended)
        return True

    def _run_series(self, first: NodeJob) -> None:
        """Run a job, and those with which its thread goes on."""
        newest: NodeJob | None = None

        def next_job() -> tuple[Job, JobDone] | None:
            nonlocal newest
            newest = first if newest is None else self._job_behind(newest)
            if newest is None:
                return None
            return partial(self._run, newest), partial(self._end, newest)

        self._background.submit_series(next_job)

    def _take_job(self) -> NodeJob | None:
        """Return what has gathered; None if nothing has."""
        if self._commit is None and not self._rounds:
            return None
        with self._lock:
            rounds, messages = self._pop_rounds(), self._messages
            self._messages = 0  # of some topics, perhaps, it is too few
            for job in rounds:
                job.seal(job.log.durability)
            changes, committed = self._failed + self._changes, self._commit
            if changes or committed is not None:
                self._failed, self._changes, self._commit = [], [], None
                committed = self._under_way = committed or Round()
        return NodeJob(changes, committed, rounds, messages)

    def _pop_rounds(self) -> list[RoundJob[TopicLog]]:
        if len(self._rounds) <= _MAX_TOPICS_A_JOB:
            rounds, self._rounds = list(self._rounds.values()), {}
            return rounds
        return [self._rounds.pop(log_) for log_ in [*islice(self._rounds, _MAX_TOPICS_A_JOB)]]

    def _job_behind(self, job: NodeJob) -> NodeJob | None:
        """Return the job with which the thread of another goes on, if it does.

        Behind one that failed it does not: the event loop has to know first what is not stored.
        """
        following: NodeJob | None = None
        job.awaited = 0 if job.has_failed else self._end_round(job)
        if (
            not job.has_failed
            and not job.awaited
            and self._messages >= self._messages_to_go_on
            and self._commits < _COMMITS_PER_CHECKPOINT
        ):
            following = self._take_job()
        job.is_last = following is None
        return following

    def _run(self, job: NodeJob) -> None:
        """Do a job, in its thread."""
        try:
            self._do(job)
        except Exception as error:
            job.failure = job.failure or error
            raise

    def _do(self, job: NodeJob) -> None:
        try:
            self._state.apply(job.changes)
            self._commits += bool(job.changes)
        except StateError as error:
            job.failure = error
        without_row = numbers_added(job.changes) if job.failure else set()
        for one in job.rounds:
            if one.log.number in without_row:
                one.error = OSError(str(job.failure))  # the disk's, not a defect of ours
        logs = {one.log for one in job.rounds}
        unwritten = self._journals.pop_unwritten()
        job.rounds += [log_.new_round() for log_ in unwritten if log_ not in logs]
        rounds = [one for one in job.rounds if one.error is None]
        self._journals.write(rounds, may_drop=job.failure is None)
        job.logs_to_sync = self._journals.logs_to_sync()

    def _end_write(self, job: NodeJob, error: Exception | None) -> None:
        """Hear that the one write of a job has ended."""
        if error is not None:
            job.is_last = True
            rescue = partial(self._journals.rescue_write, job.rounds, error)
            self._background.submit(rescue, partial(self._end, job))
            return
        self._journals.end_write(job.rounds)
        job.logs_to_sync = self._journals.logs_to_sync()
        awaited = self._end_round(job)
        if awaited:
            self._await(awaited)
            self._tell(job, None)
            return
        # The disk need not wait until the publishers have their answers.
        following = self._take_job() if self._commits < _COMMITS_PER_CHECKPOINT else None
        is_written = following is not None and self._write_directly(following)
        try:
            self._tell(job, None)
        finally:
            if following is None:
                self._go_on(None)
            elif not is_written:
                self._run_series(following)

    def _end_round(self, job: NodeJob) -> int:
        """Return how many messages the next job is to have; 0 if it does not wait for them."""
        now_s = perf_counter()
        took_s = now_s - job.began_s
        awaited = self._group_commit.end_round(job.messages, self._messages, took_s, now_s)
        return 0 if self._commit is not None else awaited

    def _await(self, awaited: int) -> None:
        """Begin the next job when so much has gathered, or after a moment."""
        self._is_working = False
        self._awaited = awaited
        self._wait_ends_s = perf_counter() + self._group_commit.wait_s
        if not self._sleeps:
            self._sleep(self._group_commit.wait_s)

    def _sleep(self, seconds: float) -> None:
        self._sleeps = True
        self._background.submit(partial(sleep, seconds), self._end_sleep)

    def _end_sleep(self, error: Exception | None) -> None:
        self._sleeps = False
        if not self._awaited:
            return  # it was begun
        left_s = self._wait_ends_s - perf_counter()
        if left_s > _MIN_SLEEP_S:
            self._sleep(left_s)
        elif self._group_commit.goes_on_waiting(self._awaited - self._messages):
            self._await(self._awaited)
        else:
            self._work()

    def _end(self, job: NodeJob, error: Exception | None) -> None:
        """Hear of a job in the event loop; go on if its thread does not."""
        try:
            self._tell(job, error)
        finally:
            if job.awaited > self._messages and error is None and self._commit is None:
                self._await(job.awaited)
            elif job.is_last or error is not None:
                self._go_on(None)

    def _tell(self, job: NodeJob, error: Exception | None) -> None:
        """Tell those who wait for a job that it has ended."""
        if self._under_way is job.committed:
            self._under_way = None
        if error is not None:
            job.failure = job.failure or error
            for one in job.rounds:
                one.error = one.error or error
        if job.failure is not None:
            self._failed = job.changes
        self._ended(job)
        if job.logs_to_sync and not job.has_failed:  # else `retry` goes on
            for log_ in job.logs_to_sync:
                log_.sync()

    def _go_on(self, error: Exception | None) -> None:
        self._is_working = False  # not before: what is asked for meanwhile is one job
        self._work()

    def _checkpoint(self) -> None:
        """Shorten SQLite's journal, after the publishers have their answers."""
        try:
            self._state.checkpoint()
        except StateError as error:
            log.warning("LOG: %s", error)  # the next checkpoint tries again
