"""Rounds of several topics in one job: one fsync of a journal makes small ones durable together.

The records go to their segments as well, then or later, not yet synced. A journal that is full gets
no more; its segments are synced a few with each job, and when all are, it goes. A journal that
failed is never written to again, and the rounds that it should have had are made durable each for
itself.

Small rounds that begin no file are one write, to a segment or a journal, which the system may do by
itself. What a journal alone has then is in memory as well, for readers, until a thread writes it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from trionsq.disk import Disk, DiskFile, close_quietly
from trionsq.histogram import Histogram
from trionsq.storage.folder import error_text
from trionsq.storage.log.journal import (
    JOURNAL_HEADER_BYTES,
    SPARE_JOURNAL,
    JournalPiece,
    encode_journal_header,
    encode_piece,
    journal_name,
    journal_number,
)
from trionsq.storage.log.roundjob import RoundJob
from trionsq.storage.log.segmentfile import DiskWrite

__all__ = ["DEFAULT_JOURNAL_BYTES", "Journals"]

log = logging.getLogger("trionsq")

DEFAULT_JOURNAL_BYTES: Final = 16 * 1024 * 1024
# Fewer topics begin no journal: they are as quick one by one.
_MIN_TOPICS: Final = 3
# Larger rounds go to their segments alone: they would be written twice.
_MAX_ROUND_BYTES: Final = 1 << 20
# Encoding so much, in so many publishes, takes the event loop a millisecond or two.
_MAX_DIRECT_BYTES: Final = 256 * 1024
_MAX_DIRECT_BATCHES: Final = 512
# So much is in a journal, and in no segment.
_MAX_UNWRITTEN_BYTES: Final = 1 << 20
# The file grows in such steps: an fsync that changes no size costs a fifth.
_STEP_BYTES: Final = 1 << 20
# Full or failed journals whose segments are being synced; with more there is no new one.
_MAX_OLD: Final = 2


class JournaledLog(Protocol):
    """A log, as a journal sees it."""

    def is_synced_to(self, sequence: int) -> bool:
        """Return whether what counts before a sequence is durable in its segments, or not needed.

        It is not needed if the log is deleted, once the state says so.
        """


_Log = TypeVar("_Log", bound=JournaledLog)


class _Journal(Generic[_Log]):
    """A journal that is, or was, written.

    Attributes:
        name: of the file.
        offset: where the next piece goes.
        logs: sequences up to which they have to be synced before the journal may go.
        count: of logs that it ever had.
    """

    def __init__(self, name: str, file: DiskFile, salt: int, step: int) -> None:
        """``step``: by so many bytes the file grows."""
        self.name = name
        self.offset = JOURNAL_HEADER_BYTES
        self.logs: dict[_Log, int] = {}
        self.count = 0
        self._file = file
        self._salt = salt
        self._step = step
        self._round = 0
        self._allocated = file.size()
        # Behind the newest pieces.
        self._end = self.offset

    def encode(self, pieces: Sequence[JournalPiece]) -> DiskWrite:
        """Return the write that makes pieces durable; `end_write` follows if it does not fail."""
        self._round += 1
        parts: list[bytes] = []
        for piece in pieces:
            parts += encode_piece(piece, self._salt, self._round)
        data = b"".join(parts)
        end = self._end = self.offset + len(data)
        room = 0
        if end > self._allocated:
            room = self._step - end % self._step
            self._allocated = end + room
        return DiskWrite(self._file, data, self.offset, room)

    def end_write(self) -> None:
        """Note that the write of `encode` has ended."""
        self.offset = self._end

    def cover(self, log_: _Log, end: int) -> None:
        """Note that it has messages of a log, before the sequence ``end``."""
        self.count += log_ not in self.logs
        self.logs[log_] = end

    def is_needed(self) -> bool:
        """Return whether a log is not synced yet; forget the first ones that are."""
        while self.logs:
            log_, end = next(iter(self.logs.items()))
            if not log_.is_synced_to(end):
                return True
            del self.logs[log_]
        return False

    def close(self) -> None:
        close_quietly(self._file)


class Journals(Generic[_Log]):
    """The journals of a node, for one thread at a time.

    The methods block, except `encode`, `end_write`, `pop_unwritten` and `logs_to_sync`.
    """

    def __init__(self, disk: Disk, fsync_s: Histogram, max_bytes: int) -> None:
        """``max_bytes``: a journal that has so many is full."""
        self._disk = disk
        self._fsync_s = fsync_s
        self._max_bytes = max_bytes
        self._present: _Journal[_Log] | None = None
        self._old: list[_Journal[_Log]] = []
        self._has_spare = False
        self._began_s = 0.0
        # The journal that `encode` has used; what it alone has: about so much, of these logs.
        self._used: _Journal[_Log] | None = None
        self._unwritten_nbytes = 0
        self._unwritten: dict[_Log, None] = {}

    def __repr__(self) -> str:
        return f"<Journals {self._present and self._present.name} old={len(self._old)}>"

    def write(self, jobs: Sequence[RoundJob[_Log]], *, may_drop: bool) -> None:
        """Write rounds, and make durable those that have to be. Errors are in the jobs.

        ``may_drop``: journals that are not needed may go, as the state has all changes.
        """
        self._used = None
        shared = [job for job in jobs if job.may_be_shared]
        nbytes = sum(job.nbytes for job in shared)
        if len(shared) < _MIN_TOPICS or nbytes > _MAX_ROUND_BYTES or len(self._old) >= _MAX_OLD:
            shared = []
        alone = set(jobs).difference(shared)
        for job in jobs:
            if job in alone:
                job.write()
        if shared:
            self._share(shared)
        for job in jobs:
            job.finish()
        if may_drop:
            self._drop_old()

    def _share(self, jobs: Sequence[RoundJob[_Log]]) -> None:
        pieces: list[JournalPiece] = []
        for job in jobs:
            pieces += job.append()
        if not pieces:
            return  # no segment took anything
        try:
            journal = self._present or self._begin()
            self._began_s = time.perf_counter()
            write = journal.encode(pieces)
            write.file.write_durably(write.data, write.offset, write.room)
        except OSError as error:
            self._replace_present(jobs, error)
        else:
            self._end_write(journal, jobs)

    def _end_write(self, journal: _Journal[_Log], jobs: Sequence[RoundJob[_Log]]) -> None:
        """Note that a journal has rounds."""
        self._fsync_s.observe(time.perf_counter() - self._began_s)
        journal.end_write()
        for job in jobs:
            if job.error is None:
                journal.cover(job.log, job.end)
        if journal.offset >= self._max_bytes:
            self._end_present()

    def _replace_present(self, jobs: Sequence[RoundJob[_Log]], error: Exception) -> None:
        """Make rounds durable each for itself: the journal failed."""
        log.warning("LOG: the journal failed: %s", error_text(error))
        self._end_present()
        for job in jobs:
            job.sync()

    def encode(self, jobs: Sequence[RoundJob[_Log]]) -> DiskWrite | None:
        """Return the one write that makes rounds durable; None if it takes more than that.

        `end_write` or `rescue_write` follows. Rounds that share a journal are only there for now:
        so they cost no other write, and later one for many rounds.
        """
        self._used = None
        nbytes = batches = 0
        for job in jobs:
            nbytes += job.nbytes
            batches += len(job.entries)
            if nbytes > _MAX_DIRECT_BYTES or batches > _MAX_DIRECT_BATCHES:
                return None
            if not job.may_be_shared:
                return None
        if len(jobs) == 1 and (write := jobs[0].encode()) is not None:
            return write
        journal = self._present
        if journal is None or self._unwritten_nbytes + nbytes > _MAX_UNWRITTEN_BYTES:
            return None
        pieces: list[JournalPiece] = []
        for job in jobs:
            if (piece := job.encode_copy()) is None:
                return None
            pieces.append(piece)
        self._used = journal
        self._began_s = time.perf_counter()
        return journal.encode(pieces)

    def end_write(self, jobs: Sequence[RoundJob[_Log]]) -> None:
        """Note that the write of `encode` has ended."""
        journal = self._used
        for job in jobs:
            job.end_write(sync=journal is None)
            job.finish()
            if journal is not None:
                self._unwritten_nbytes += job.nbytes
                self._unwritten[job.log] = None
        if journal is not None:
            self._end_write(journal, jobs)

    def rescue_write(self, jobs: Sequence[RoundJob[_Log]], error: Exception) -> None:
        """Make rounds durable in another way: the write of `encode` has failed."""
        if self._used is None:
            (job,) = jobs
            job.rescue_write(error)
        else:
            for job in jobs:
                job.end_write(sync=False)
            self._replace_present(jobs, error)
        for job in jobs:
            job.finish()

    def pop_unwritten(self) -> list[_Log]:
        """Return the logs of which only a journal has some; they are to be written now."""
        logs, self._unwritten = [*self._unwritten], {}
        self._unwritten_nbytes = 0
        return logs

    def _begin(self) -> _Journal[_Log]:
        """Make a journal, whose name is durable, of the spare one if there is one."""
        disk = self._disk
        numbers = [number for name in disk.names() if (number := journal_number(name)) is not None]
        name = journal_name(max(numbers, default=0) + 1)
        salt = secrets.randbits(32)
        if self._has_spare:
            # Its old name may come back in a power cut, but not with half a header.
            disk.sync_folder()
            file = disk.open(SPARE_JOURNAL)
        else:
            with suppress(FileNotFoundError):
                disk.unlink(SPARE_JOURNAL)
            file = disk.create(SPARE_JOURNAL)
        self._has_spare = False
        try:
            file.write(encode_journal_header(salt, time.time_ns()), 0)
            file.sync()
            disk.rename(SPARE_JOURNAL, name)
            disk.sync_folder()
            self._present = _Journal(name, file, salt, min(_STEP_BYTES, self._max_bytes))
        except OSError:
            close_quietly(file)
            raise
        return self._present

    def _end_present(self) -> None:
        """Write no more to the present journal."""
        if self._present is not None:
            self._present.close()
            self._old.append(self._present)
            self._present = None

    def _drop_old(self) -> None:
        for journal in list(self._old):
            if not journal.is_needed():
                self._old.remove(journal)
                self._drop(journal)

    def _drop(self, journal: _Journal[_Log]) -> None:
        try:
            if self._has_spare or journal.offset < self._max_bytes:
                self._disk.unlink(journal.name)
            else:
                # Its blocks are there already. If a power cut brings the old name back, what it
                # has changes nothing.
                self._disk.rename(journal.name, SPARE_JOURNAL)
                self._has_spare = True
        except OSError as error:
            # The next start replays it, which changes nothing.
            log.warning("LOG: removing a journal failed: %s", error_text(error))

    def logs_to_sync(self) -> list[_Log]:
        """Return the logs that are to be synced now, so that old journals can go.

        All are before the present one is half full. Where that gets nothing it is one at a time.
        """
        if not self._old:
            return []
        present = self._present
        share = 0.0 if present is None else 2 * present.offset / self._max_bytes
        least = int(present is None or self._used is None)
        due: list[_Log] = []
        for journal in self._old:
            if journal.is_needed():
                may_wait = int(journal.count * (1 - share))
                due += islice(journal.logs, max(least, len(journal.logs) - may_wait))
        return due

    def close(self) -> None:
        """Remove the journals that are not needed any more, and release the files."""
        self._end_present()
        for journal in self._old:
            if not journal.is_needed():
                with suppress(OSError):
                    self._disk.unlink(journal.name)
        if self._has_spare:
            with suppress(OSError):
                self._disk.unlink(SPARE_JOURNAL)
