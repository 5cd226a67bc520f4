"""The data path: its lock, and what its disk queues share: disk, limits, background jobs, faults.

Spec: nsqd-internals, section 5 (data path lock).
"""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from trionsq.disk import Disk, DiskFile, FolderLock, FolderLockError
from trionsq.histogram import Histogram
from trionsq.storage.positions import QueueStart

__all__ = [
    "Background",
    "DataFolder",
    "DataPathError",
    "Job",
    "JobDefects",
    "JobDone",
    "NextJob",
    "OpenQueue",
    "Queue",
    "error_text",
    "lock_data_path",
    "reason_of",
]

log = logging.getLogger("trionsq")

# From a fast SSD (0.5 ms) to a disk in trouble (5 s).
FSYNC_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_RECORD_FILE: Final = re.compile(r"(.+)\.diskqueue\.[0-9]{6,}\.dat")
# Queues handled in one turn of the event loop. Beginning a sync takes about 50 us.
_QUEUES_PER_STEP: Final = 16

_T = TypeVar("_T")


class DataPathError(Exception):
    """The data path cannot be locked; the text is that of nsqd's FATAL line."""


def lock_data_path(path: str) -> FolderLock:
    """Lock the data path (--data-path; empty: the current folder) without waiting.

    Two brokers in one folder would destroy each other's files.

    Raises:
        DataPathError: the path is not a folder, cannot be opened, or is locked already.
    """
    try:
        path = path or os.getcwd()
        return FolderLock(path)
    except FolderLockError as error:
        raise DataPathError(
            f"failed to lock data-path: cannot flock directory {path} - {reason_of(error)}"
            " (possibly in use by another instance of nsqd)"
        ) from error
    except OSError as error:
        raise DataPathError(f"failed to lock data-path: open {path}: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """Return the system's text for an error with a lower-case first letter, as nsqd prints it."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def error_text(error: Exception) -> str:
    """Return what failed with which file; any error but the disk's is a defect of nsqd."""
    if not isinstance(error, OSError):
        return f"a defect of nsqd, the log has its trace: {error!r}"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


Job = Callable[[], None]
"""Blocking disk work: fsync, renames, deletions. Runs outside of the event loop."""

JobDone = Callable[[Exception | None], None]
"""Gets the exception of a job, or None. An OSError is the disk's, any other is our defect."""

NextJob = Callable[[], tuple[Job, JobDone] | None]
"""Returns the next job of a series, or None: the series has ended. For any thread."""


class JobDefects:
    """Unexpected exceptions of jobs and of their `JobDone` functions.

    Attributes:
        count: number of exceptions.
        last: text of the last one, as logged; empty if there was none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self._logged: set[tuple[type[Exception], str]] = set()

    def report(self, error: Exception) -> None:
        """Count the exception; log it with its trace, but only once for each line of code."""
        self.count += 1
        self.last = f"a disk job failed by a defect of nsqd: {error!r}"
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        if (type(error), place) not in self._logged:
            self._logged.add((type(error), place))
            log.error("%s", self.last, exc_info=error)


class Background(Protocol):
    """Runs blocking jobs outside of the event loop.

    Attributes:
        defects: unexpected exceptions of jobs.
    """

    defects: JobDefects

    @property
    def writes_directly(self) -> bool:
        """Whether `submit_write` costs less than a job that writes."""

    def submit(self, job: Job, done: JobDone) -> None:
        """Run ``job``, usually in a thread; then call ``done`` with its exception, if any.

        `submit` is called, and calls ``done`` exactly once, in the broker's thread. No ``done`` is
        called within another one.
        """

    def submit_series(self, next_job: NextJob) -> None:
        """Run jobs one after the other, as `submit` does each, until ``next_job`` returns None.

        It is called at once, and behind each job: then in the job's thread, perhaps before ``done``
        of that is called. The ``done`` have the order of the jobs.
        """

    def submit_write(
        self, file: DiskFile, data: bytes, offset: int, room: int, done: JobDone
    ) -> None:
        """Write to a file, which stays open, and make that durable; then call ``done``.

        Behind the data ``room`` zeros are written.

        What else was written to the file may still not be durable. After an error, any part of the
        data may be written, and none of it may be durable.
        """

    async def wait_idle(self) -> None:
        """Wait until all submitted jobs and writes are done."""


def _in_steps(queues: Iterable[_T]) -> Iterator[list[_T]]:
    # A copy, at a few ns for each queue: the original changes between the steps.
    copied = list(queues)
    return (copied[at : at + _QUEUES_PER_STEP] for at in range(0, len(copied), _QUEUES_PER_STEP))


class Queue(Protocol):
    """A disk queue, or the undeleted files of one, as the folder sees it."""

    def sync(self) -> None:
        """Begin to make everything durable."""

    def retry(self) -> None:
        """Retry the operation that failed."""


class Undeleted(Queue, Protocol):
    """The undeleted files of a former queue."""

    def take_over(self) -> QueueStart:
        """Return where a new queue of the same name starts. It owns the remaining files now."""


class OpenQueue(Queue, Protocol):
    """A disk queue that is in use."""

    def release_finished_file(self) -> None:
        """Let the current file be deleted if all of it is read: the disk may be full."""


@dataclass(slots=True)
class DataFolder:
    """The files of one broker.

    Attributes:
        disk: the disk with the files.
        background: runs blocking jobs.
        max_file_bytes: --max-bytes-per-file.
        max_body_bytes: --max-msg-size.
        sync_every: --sync-every, in operations (records written or read).
        changed: the queues and logs with changes that are not durable.
        faults: the last error of each queue or file that has failed and not recovered.
        queues: all open queues.
        undeleted: the undeleted files of deleted queues, by name of the queue.
        stopping: whether nsqd stops: deletions that can wait are left to the next start.
        fsync_s: durations of the fsyncs of record files, in seconds.
    """

    disk: Disk
    background: Background
    max_file_bytes: int = 104_857_600
    max_body_bytes: int = 1_048_576
    sync_every: int = 2_500
    changed: dict[Queue, None] = field(default_factory=dict)
    faults: dict[Queue | str, str] = field(default_factory=dict)
    queues: dict[OpenQueue, None] = field(default_factory=dict)
    undeleted: dict[str, Undeleted] = field(default_factory=dict)
    stopping: bool = False
    fsync_s: Histogram = field(default_factory=lambda: Histogram(FSYNC_BOUNDS_S))
    # Names of record files by queue, as first listed.
    _record_files: dict[str, list[str]] | None = None
    # By owner of a running job: the job that follows it.
    _next_jobs: dict[object, tuple[Job, JobDone] | None] = field(default_factory=dict)

    def submit(self, owner: object, job: Job, done: JobDone) -> None:
        """Run a job in the background, after the running job of the same ``owner``.

        Jobs of a queue have its name as owner, also after the queue was deleted and created again:
        they change the same files. One job may wait. A further job replaces it, for its queue was
        deleted: it never runs, and its ``done`` is called at once.
        """
        if owner in self._next_jobs:
            replaced = self._next_jobs[owner]
            self._next_jobs[owner] = (job, done)
            if replaced is not None:
                replaced[1](None)
        else:
            self._begin_job(owner, job, done)

    def _begin_job(self, owner: object, job: Job, done: JobDone) -> None:
        self._next_jobs[owner] = None

        def finished(error: Exception | None) -> None:
            try:
                done(error)
            finally:
                following = self._next_jobs.pop(owner)
                if following is not None:
                    self._begin_job(owner, *following)

        self.background.submit(job, finished)

    def record_files(self, queue: str, *, refresh: bool = False) -> list[str]:
        """Return the names of a queue's record files by number, as first listed.

        ``refresh`` lists the whole folder again if the disk lets it; only for errors.

        Raises:
            DataPathError: the folder cannot be listed, and never was.
        """
        if self._record_files is None:
            self._record_files = self._list_record_files()
        elif refresh:
            try:
                self._record_files = self._list_record_files()
            except DataPathError as error:
                log.error("DISKQUEUE(%s): %s", queue, error)
        return self._record_files.get(queue, [])

    def queues_with_files(self) -> list[str]:
        """Return the names of all queues that had record files when first listed.

        Raises:
            DataPathError: the folder cannot be listed, and never was.
        """
        if self._record_files is None:
            self._record_files = self._list_record_files()
        return list(self._record_files)

    def _list_record_files(self) -> dict[str, list[str]]:
        files: dict[str, list[str]] = defaultdict(list)
        try:
            names = self.disk.names()
        except OSError as error:
            # Without the names, files would be taken for those of no queue and set aside.
            raise DataPathError(
                f"failed to list data-path: open {self.disk.path}: {reason_of(error)}"
            ) from error
        for name in sorted(names, key=lambda name: (len(name), name)):
            if match := _RECORD_FILE.fullmatch(name):
                files[match[1]].append(name)
        return files

    def sync_all(self) -> None:
        """Begin to make everything durable (every --sync-timeout)."""
        for _ in self.sync_in_steps():
            pass

    def sync_in_steps(self) -> Iterator[None]:
        """Do the same, a few queues before each yield."""
        for queues in _in_steps(self.changed):
            for queue in queues:
                if queue in self.changed:
                    queue.sync()
            yield

    def retry(self) -> None:
        """Let each failed queue retry its operation, and the others make room on the disk."""
        for _ in self.retry_in_steps():
            pass

    def retry_in_steps(self) -> Iterator[None]:
        """Do the same, a few queues before each yield."""
        if not self.faults:
            return
        for queues in _in_steps(self.queues):
            for queue in queues:
                if queue in self.queues:
                    queue.release_finished_file()
            yield
        for failures in _in_steps(self.faults):
            for failed in failures:
                if not isinstance(failed, str) and failed in self.faults:
                    failed.retry()
            yield

    @property
    def fault(self) -> str | None:
        """The error that the disk has now, None without one."""
        return next(iter(self.faults.values()), None)
