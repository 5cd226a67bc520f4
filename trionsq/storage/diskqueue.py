"""The disk queue: the overflow of a topic or channel, in the very files of the original nsqd.

Records are written and read here and now: that is a copy to or from the page cache. What may
block for long (fsync, renames, removals) is done by a background job, one at a time.

Spec: nsqd-internals, section 7.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from trionsq.core.backend import BackendError
from trionsq.core.batch import Batch, Segment
from trionsq.storage.deferrals import DeferralFile
from trionsq.storage.folder import DataFolder
from trionsq.storage.positions import Positions, QueueFiles
from trionsq.storage.reader import QueueReader
from trionsq.storage.records import encode
from trionsq.storage.sync import Generation, SyncJob
from trionsq.storage.writer import SEALED_MAX, QueueWriter

__all__ = ["DiskQueue"]

log = logging.getLogger("trionsq")

# While a sync is under way, so many times --sync-every may follow before publishers must wait.
_BEHIND_SYNCS: Final = 2
# A file that can't be read is tried so often (once a second) before it is given up.
_READ_ATTEMPTS: Final = 5
_POSITIONS_NBYTES_MAX: Final = 128
_MS_NS: Final = 1_000_000


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
        self._positions = Positions()
        self._durable: bytes | None = None
        self._generation = Generation()
        self._job: SyncJob | None = None
        self._sync_again = False
        self._sync_error: str | None = None
        self._operations = 0
        self._read_failures = 0
        self._can_read = True
        self._refused_nbytes = 0
        self._deleted = False
        self._load_positions()
        self._writer = QueueWriter(
            folder.disk, self._files, self._positions, folder.file_nbytes_max
        )
        self._reader = QueueReader(
            folder.disk, self._files, self._positions, self._writer, folder.body_nbytes_max
        )
        self._sidecar = DeferralFile(folder.disk, name)
        self._due_ns = self._load_deferrals()
        self._new_deferrals: list[tuple[bytes, int]] = []
        self._had_deferrals = bool(self._due_ns)

    def __repr__(self) -> str:
        return f"<DiskQueue {self.name} {self._positions}>"

    @property
    def depth(self) -> int:
        # After an unclean stop there may be more than was counted.
        positions = self._positions
        return 0 if positions.all_read else max(1, positions.depth)

    @property
    def behind(self) -> bool:
        if self._job is None:
            return False
        limit = _BEHIND_SYNCS * max(1, self._folder.sync_every)
        return self._operations >= limit or len(self._writer.sealed) >= SEALED_MAX // 2

    # Start

    def _load_positions(self) -> None:
        name = self._files.positions
        try:
            file = self._disk.open(name)
        except FileNotFoundError:
            return
        except OSError as error:
            log.error("DISKQUEUE(%s): begins anew: %s", self.name, error)
            return
        try:
            text = file.read(_POSITIONS_NBYTES_MAX, 0)
            self._positions = Positions.parse(text)
            self._durable = text
        except (OSError, ValueError) as error:
            log.error("DISKQUEUE(%s): begins anew: %s: %s", self.name, name, error)
        finally:
            file.close()
        self._check_last_file()

    def _check_last_file(self) -> None:
        """Write to the next file if the last one does not end where it should.

        It is longer after an unclean stop, and then read to its end; shorter, it is damaged.
        """
        positions = self._positions
        try:
            file = self._disk.open(self._files.records(positions.write_file))
        except OSError:
            return  # there may be none yet; whoever needs it will say what is wrong
        try:
            size = file.size()
        finally:
            file.close()
        if size != positions.write_pos:
            log.warning(
                "DISKQUEUE(%s): %s has %d bytes, not %d; writing goes on in the next file",
                self.name,
                self._files.records(positions.write_file),
                size,
                positions.write_pos,
            )
            positions.write_file += 1
            positions.write_pos = 0
            self._folder.changed[self] = None

    def _load_deferrals(self) -> dict[bytes, int]:
        try:
            return self._sidecar.load()
        except OSError as error:
            log.error("DISKQUEUE(%s): deferred messages lose their delay: %s", self.name, error)
            return {}

    # Messages

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        if self._sync_error is not None:
            raise BackendError(self._sync_error)
        records = encode(segment)
        try:
            began_file = self._writer.append(records)
        except OSError as error:
            self._refused_nbytes = records.nbytes
            self._failed(error)
            raise BackendError(_text(error)) from error
        if self._folder.faults:
            self._refused_nbytes = 0
            self._folder.faults.pop(self, None)
        self._positions.depth += records.count
        if due_ns is not None:
            entries = list(zip(segment.ids(), due_ns, strict=True))
            self._due_ns.update(entries)
            self._new_deferrals += entries
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
            self._read_failures += 1
            self._failed(error)
            return None
        self._read_failures = 0
        if segment is None:
            self._ended()
            return None
        if self._due_ns:
            segment = self._with_due_time(segment)
        count = segment.last - segment.first
        self._reader.advance(count)
        self._positions.depth -= count
        if self._positions.all_read:
            self._ended()
        self._operated(count, self._reader.moved)
        return segment

    def _with_due_time(self, segment: Segment) -> Segment:
        """The first record alone if it is deferred, else those before the next deferred one."""
        ids = segment.ids()
        due_ns = self._due_ns.pop(ids[0], None)
        if due_ns is None:
            for place, id_ in enumerate(ids):
                if id_ in self._due_ns:
                    segment.last = segment.first + place
                    break
            return segment
        alone = segment.batch.extract([segment.first], ids[:1])
        delay_ms = max(1, -((alone.timestamp_ns - due_ns) // _MS_NS))
        batch = Batch(alone.bodies, alone.ids, alone.timestamp_ns, delay_ms)
        return Segment(batch, 0, 1, segment.attempts)

    def _ended(self) -> None:
        """All is read."""
        self._due_ns.clear()
        if self._positions.depth:
            log.warning(
                "DISKQUEUE(%s): depth was %d at the end of the data",
                self.name,
                self._positions.depth,
            )
            self._positions.depth = 0

    def empty(self) -> int:
        dropped = self.depth
        positions = self._positions
        names = [
            self._files.records(number)
            for number in range(positions.read_file, positions.write_file + 1)
        ]
        self._remove([*names, *self._reader.finished, self._files.positions])
        positions.depth = 0
        positions.write_file += 1
        positions.write_pos = 0
        positions.read_file, positions.read_pos = positions.write_file, 0
        # So that the numbering goes on after a crash, too.
        self._operated(0, True)
        return dropped

    def delete(self) -> None:
        positions = self._positions
        numbers = range(positions.read_file, positions.write_file + 1)
        names = map(self._files.records, numbers)
        self._remove([*names, *self._reader.finished, self._files.positions])
        self._deleted = True
        self._folder.changed.pop(self, None)
        self._folder.faults.pop(self, None)

    def _remove(self, names: list[str]) -> None:
        self._reader.release()
        self._writer.release()
        self._reader.finished.clear()
        self._due_ns.clear()
        self._new_deferrals.clear()
        self._durable = None
        self._sync_error = None
        self._can_read = True
        self._refused_nbytes = 0
        self._folder.faults.pop(self, None)
        with self._generation.lock:
            self._generation.number += 1
            if self._job is not None:
                names += self._job.finished
            for name in names:
                try:
                    self._disk.unlink(name)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    self._failed(error)
            with suppress(OSError):
                self._sidecar.remove()
        self._had_deferrals = False

    # Durability

    def _operated(self, count: int, moved: bool) -> None:
        self._operations += count
        self._folder.changed[self] = None
        if self._operations >= self._folder.sync_every or moved:
            self.sync()

    def sync(self) -> None:
        """Begin to make durable what is not. If that is under way, it is done once more."""
        if self._job is not None:
            self._sync_again = True
            return
        if self._sync_error is None:
            self._begin_sync()

    def _begin_sync(self) -> None:
        self._sync_again = False
        self._operations = 0
        self._folder.changed.pop(self, None)
        try:
            self._writer.settle()
        except OSError as error:
            self._failed(error)
            return
        job = self._job = self._make_job()
        self._writer.lent = job.current
        self._folder.background.submit(job.run, self._synced)

    def _make_job(self) -> SyncJob:
        writer, reader = self._writer, self._reader
        positions = self._positions.text()
        deferrals: list[tuple[bytes, int]] | None = self._new_deferrals
        if self._had_deferrals and not self._due_ns:
            deferrals = None
        self._had_deferrals = bool(self._due_ns)
        job = SyncJob(
            disk=self._disk,
            generation=self._generation,
            number=self._generation.number,
            sealed=writer.sealed,
            current=writer.file if writer.unsynced else None,
            sidecar=self._sidecar,
            deferrals=deferrals,
            positions_file=self._files.positions,
            positions=positions if positions != self._durable else None,
            finished=reader.finished,
        )
        writer.sealed, writer.unsynced = [], False
        reader.finished, reader.moved = [], False
        self._new_deferrals = []
        return job

    def _synced(self, error: OSError | None) -> None:
        job, self._job = self._job, None
        assert job is not None
        self._writer.take_back()
        if job.number != self._generation.number:
            for _, file in job.sealed:
                file.close()
        elif error is not None:
            self._sync_failed(job, error)
            return
        else:
            if job.positions is not None:
                self._durable = job.positions
            self._sync_error = None
            if not self._refused_nbytes:
                self._folder.faults.pop(self, None)
        if self._deleted:
            return
        if self._sync_again or self._operations >= self._folder.sync_every:
            self._begin_sync()
        self.caught_up()

    def _sync_failed(self, job: SyncJob, error: OSError) -> None:
        """What the failed sync was for may be lost with the power: never go on in that file."""
        self._failed(error)
        self._sync_error = _text(error)
        for _, file in job.sealed:
            file.close()
        self._reader.finished[:0] = job.finished
        if job.deferrals:
            self._new_deferrals[:0] = job.deferrals
        self._had_deferrals = self._had_deferrals or job.deferrals is None
        if job.current is not None:
            log.error(
                "DISKQUEUE(%s): %s may not survive a power failure; it is read, but not written on",
                self.name,
                self._files.records(self._positions.write_file),
            )
            with suppress(OSError):
                self._writer.seal()
            self._reader.leave_finished_file()

    def try_again(self) -> None:
        """See whether the disk takes something now; if so, go on."""
        if self._read_failures >= _READ_ATTEMPTS:
            self._read_failures = 0
            self._reader.give_up_file("tried in vain for some time")
        self._reader.release()
        self._can_read = True
        if self._refused_nbytes:
            try:
                if self._disk.free_nbytes() < self._refused_nbytes:
                    return
            except OSError as error:
                self._failed(error)
                return
            self._refused_nbytes = 0
        if self._job is None:
            self._durable = None
            self._begin_sync()

    def _failed(self, error: OSError) -> None:
        text = _text(error)
        if self._folder.faults.get(self) != text:
            log.error("DISKQUEUE(%s): %s", self.name, text)
        self._folder.faults[self] = text

    def close(self) -> None:
        """Raises BackendError as the interface says. No job may be under way."""
        assert self._job is None, "a sync is under way"
        try:
            self._writer.settle()
            self._make_job().run()
            if self._sync_error is not None:
                raise BackendError(self._sync_error)
        except OSError as error:
            raise BackendError(_text(error)) from error
        finally:
            self._reader.release()
            self._writer.release()
            self._folder.changed.pop(self, None)


def _text(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
