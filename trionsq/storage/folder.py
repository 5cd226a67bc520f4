"""What all disk queues of a data path share: the disk, its limits, and what is wrong with it."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from trionsq.disk import Disk
from trionsq.histogram import Histogram
from trionsq.storage.background import Background, Done, Job

__all__ = ["DataFolder", "OpenQueue", "Queue", "error_text"]

log = logging.getLogger("trionsq")

FSYNC_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_RECORDS: Final = re.compile(r"(.+)\.diskqueue\.[0-9]{6,}\.dat")
# Queues that are looked after in one step. To begin a sync takes some 50 us.
_STEP_QUEUES: Final = 16

_T = TypeVar("_T")


def error_text(error: Exception) -> str:
    """What went wrong with which file; of an exception that is not the disk's, that it is ours."""
    if not isinstance(error, OSError):
        return f"a defect of nsqd, the log has its trace: {error!r}"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _in_steps(queues: Iterable[_T]) -> Iterator[list[_T]]:
    # Copied at once, which costs a few ns for each: it changes meanwhile.
    copied = list(queues)
    return (copied[at : at + _STEP_QUEUES] for at in range(0, len(copied), _STEP_QUEUES))


class Queue(Protocol):
    """A disk queue, or what is left of one, as the folder sees it."""

    def sync(self) -> None:
        """Make durable what is not."""

    def try_again(self) -> None:
        """See whether what went wrong goes right now."""


class OpenQueue(Queue, Protocol):
    """A disk queue that is in use."""

    def give_room(self) -> None:
        """Remove what is all read, before it would have to go: the disk may be full."""


@dataclass(slots=True)
class DataFolder:
    """The files of one broker.

    Attributes:
        disk: they are on.
        background: where blocking work is done.
        file_nbytes_max: --max-bytes-per-file.
        body_nbytes_max: --max-msg-size.
        sync_every: --sync-every, in operations (records written or read).
        changed: the queues with something that is not durable.
        faults: what went wrong last, by the queue or file that it happened to.
        queues: all that are open.
        removals: what is left of deleted queues, by the queue's name.
        stopping: nsqd ends: files that can be removed at the next start are left to that.
        fsync_s: how long the syncs of files with records took, in seconds.
    """

    disk: Disk
    background: Background
    file_nbytes_max: int = 104_857_600
    body_nbytes_max: int = 1_048_576
    sync_every: int = 2_500
    changed: dict[Queue, None] = field(default_factory=dict)
    faults: dict[Queue | str, str] = field(default_factory=dict)
    queues: dict[OpenQueue, None] = field(default_factory=dict)
    removals: dict[str, Queue] = field(default_factory=dict)
    stopping: bool = False
    fsync_s: Histogram = field(default_factory=lambda: Histogram(FSYNC_BOUNDS_S))
    _found: dict[str, list[str]] | None = None
    # By what they belong to: a job is under way, and this is the one that comes next.
    _next_jobs: dict[object, tuple[Job, Done] | None] = field(default_factory=dict)

    def submit(self, owner: object, job: Job, done: Done) -> None:
        """Run a job in the background, after the one of the same ``owner`` that is under way.

        Jobs of a queue have its name as owner, also when it was deleted and made anew: they change
        the same files. One job may wait. When another one comes, nobody needs the first any more
        (its queue was deleted): it is never run, and its ``done`` is called at once.
        """
        if owner in self._next_jobs:
            void = self._next_jobs[owner]
            self._next_jobs[owner] = (job, done)
            if void is not None:
                void[1](None)
        else:
            self._begin_job(owner, job, done)

    def _begin_job(self, owner: object, job: Job, done: Done) -> None:
        self._next_jobs[owner] = None

        def finished(error: Exception | None) -> None:
            try:
                done(error)
            finally:
                following = self._next_jobs.pop(owner)
                if following is not None:
                    self._begin_job(owner, *following)

        self.background.submit(job, finished)

    def found(self, queue: str, *, afresh: bool = False) -> list[str]:
        """Names of a queue's files with records, by number, as they were when first asked for.

        ``afresh``: as they are now, which takes a look at the whole folder; for errors only.
        """
        if self._found is None or afresh:
            self._found = self._look()
        return self._found.get(queue, [])

    def strangers(self, queues: Collection[str]) -> list[str]:
        """Names of others than these that had files with records when `found` was first asked."""
        if self._found is None:
            self._found = self._look()
        return [queue for queue in self._found if queue not in queues]

    def _look(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        try:
            names = self.disk.names()
        except OSError as error:
            log.error("the data path can't be listed: %s", error)
            names = []
        for name in sorted(names, key=lambda name: (len(name), name)):
            if match := _RECORDS.fullmatch(name):
                found[match[1]].append(name)
        return found

    def sync_all(self) -> None:
        """Begin to make everything durable (every --sync-timeout)."""
        for _ in self.sync_in_steps():
            pass

    def sync_in_steps(self) -> Iterator[None]:
        """The same, but of no more than a few queues before each yield."""
        for queues in _in_steps(self.changed):
            for queue in queues:
                if queue in self.changed:
                    queue.sync()
            yield

    def try_again(self) -> None:
        """Let every queue that failed see whether it can go on, and the others make room."""
        for _ in self.try_again_in_steps():
            pass

    def try_again_in_steps(self) -> Iterator[None]:
        """The same, but with no more than a few queues before each yield."""
        if not self.faults:
            return
        for queues in _in_steps(self.queues):
            for queue in queues:
                if queue in self.queues:
                    queue.give_room()
            yield
        for failures in _in_steps(self.faults):
            for failed in failures:
                if not isinstance(failed, str) and failed in self.faults:
                    failed.try_again()
            yield

    @property
    def fault(self) -> str | None:
        """What is wrong with the disk, None if nothing is."""
        return next(iter(self.faults.values()), None)
