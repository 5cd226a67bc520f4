"""The files that a disk queue finds: after an unclean stop, or undeleted ones of a former queue.

A deleted queue leaves files that are deleted in the background. A new queue of the same name takes
the remaining ones over and begins behind them.

Spec: nsqd-internals, section 7 (recovery).
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from trionsq.disk import Disk, close_quietly, draft_name
from trionsq.storage.folder import DataFolder, error_text
from trionsq.storage.positions import (
    MAX_DELETED_AT_ONCE,
    FileNumbers,
    Positions,
    QueueFiles,
    QueueStart,
    delete_files,
    read_positions,
)

__all__ = ["UndeletedFiles", "find_start", "resume_deletions"]

log = logging.getLogger("trionsq")


def find_start(folder: DataFolder, files: QueueFiles) -> QueueStart:
    """Return where the files say the queue stands; without usable files, the very beginning.

    Without a positions file, record files are set aside unread, as in the original: later they
    could not be told from files begun before an unclean stop. If the disk fails to read the
    positions file, the queue reads all record files, some perhaps again: the original skips them.
    """
    try:
        text, positions = read_positions(folder.disk, files)
    except FileNotFoundError:
        _set_aside(folder, files)
        return QueueStart(is_bare=True)
    except OSError as error:
        log.error("DISKQUEUE(%s): all files are read from the first on: %s", files.queue, error)
        return QueueStart(_all_files(folder, files), moved=True)
    except ValueError as error:
        log.error("DISKQUEUE(%s): starts empty: %s: %s", files.queue, files.positions, error)
        _set_aside(folder, files)
        return QueueStart()
    moved = _skip_to_new_file(folder, files, positions)
    finished = FileNumbers(
        number
        for number in map(files.number, folder.record_files(files.queue))
        if number < positions.read_file
    )
    return QueueStart(positions, text, has_file=True, moved=moved, finished=finished)


def _all_files(folder: DataFolder, files: QueueFiles) -> Positions:
    numbers = [files.number(name) for name in folder.record_files(files.queue, refresh=True)]
    if not numbers:
        return Positions()
    return Positions(read_file=min(numbers), write_file=max(numbers) + 1)


def _set_aside(folder: DataFolder, files: QueueFiles) -> None:
    for name in folder.record_files(files.queue):
        try:
            folder.disk.rename(name, name + ".bad")
        except FileNotFoundError:
            continue  # the queue was opened and deleted since the folder was listed
        except OSError as error:
            log.error("DISKQUEUE(%s): %s", files.queue, error)
        else:
            log.error(
                "DISKQUEUE(%s): renamed %s to .bad: there is no positions file for it",
                files.queue,
                name,
            )


def _skip_to_new_file(folder: DataFolder, files: QueueFiles, positions: Positions) -> bool:
    """After an unclean stop, move the write position to a new file; return whether it moved.

    The last file is then longer than the positions say, or there are later files. The queue reads
    all of them to their ends. A shorter file is damaged: nothing may be written behind a hole.
    """
    last = positions.write_file
    try:
        size = _size(folder.disk, files.records(last))
    except FileNotFoundError:
        size = positions.write_pos  # no error yet: the reader notices missing records
    except OSError as error:
        log.error("DISKQUEUE(%s): %s", files.queue, error)
        size = -1
    later = [
        files.number(name)
        for name in folder.record_files(files.queue)
        if files.number(name) > last and _exists(folder.disk, name)
    ]
    if size == positions.write_pos and not later:
        return False
    end = max([last, *later]) + 1
    log.warning(
        "DISKQUEUE(%s): unclean stop: the positions file ends at %s, offset %d, the files do not; "
        "writing continues in file %d",
        files.queue,
        files.records(last),
        positions.write_pos,
        end,
    )
    positions.write_file, positions.write_pos = end, 0
    return True


def _size(disk: Disk, name: str) -> int:
    file = disk.open(name)
    try:
        return file.size()
    finally:
        close_quietly(file)


def _exists(disk: Disk, name: str) -> bool:
    try:
        close_quietly(disk.open(name))
    except FileNotFoundError:
        return False
    except OSError:
        pass  # it may hold messages: nothing may be written there
    return True


class UndeletedFiles:
    """The files of a deleted queue. Deletes them in jobs, and again after errors.

    The record files go first. The positions file stays until then: it says that all of them were
    read, and a crash does not change that. Then the event loop gives the positions file and the
    deferral file names that no queue uses, so that no job can delete those of a new queue.

    Attributes:
        queue: name of the deleted queue.
    """

    def __init__(
        self,
        folder: DataFolder,
        files: QueueFiles,
        end: int,
        numbers: FileNumbers,
        *,
        is_void: bool,
    ) -> None:
        """``numbers`` are those of the record files, all of them below ``end``.

        ``is_void``: the positions file says that nothing before ``end`` is unread.
        """
        self.queue = files.queue
        self._folder = folder
        self._files = files
        self._end = end
        self._numbers = numbers
        self._is_void = is_void
        self._has_job = False
        self._is_taken_over = False
        self._is_renamed = False
        # New names of the positions file and the deferral file.
        self._drafts: list[str] = []

    def __repr__(self) -> str:
        return f"<UndeletedFiles {self.queue} {self._numbers} {self._drafts}>"

    def begin(self) -> None:
        """Register with the folder and begin to delete."""
        self._folder.undeleted[self.queue] = self
        self.retry()

    def sync(self) -> None:
        """Do nothing: nothing here needs to become durable."""

    def retry(self) -> None:
        """Begin a job that deletes some more files, unless one is under way."""
        if self._has_job:
            return
        self._has_job = True
        count = len(self._numbers)
        # No new queue uses the drafts: its jobs need not wait for theirs.
        owner = self if self._is_renamed else self.queue
        self._folder.submit(owner, self._delete_some, lambda error: self._job_done(count, error))

    def _delete_some(self) -> None:
        disk = self._folder.disk
        failure = delete_files(disk, self._files, self._numbers, MAX_DELETED_AT_ONCE)
        for name in self._drafts.copy():
            try:
                disk.unlink(name)
            except FileNotFoundError:
                pass
            except OSError as error:
                failure = failure or error
                continue
            self._drafts.remove(name)
        if failure is not None:
            raise failure

    def _job_done(self, count: int, error: Exception | None) -> None:
        """Continue; if none of the ``count`` files was deleted, leave that to `retry`."""
        self._has_job = False
        if self._is_taken_over:
            return
        if error is not None:
            self._note_failure(error)
        if self._numbers:
            if len(self._numbers) < count and not self._folder.stopping:
                self.retry()
        elif not self._is_renamed:
            self._rename_others()
        elif not self._drafts:
            self._note_success()

    def _rename_others(self) -> None:
        for name in (self._files.positions, self._files.deferrals):
            draft = draft_name(name)
            try:
                self._folder.disk.rename(name, draft)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._note_failure(error)
                return
            self._drafts.append(draft)
            self._is_void = False
        self._is_renamed = True
        self._folder.undeleted.pop(self.queue)
        if self._drafts:
            self.retry()
        else:
            self._note_success()

    def _note_success(self) -> None:
        if self._folder.faults.pop(self, None) is not None:
            log.info("DISKQUEUE(%s): deleted the remaining files", self.queue)

    def _note_failure(self, error: Exception) -> None:
        faults = self._folder.faults
        if self not in faults:
            log.error(
                "DISKQUEUE(%s): the queue is deleted, but %d files remain; deleting them is "
                "retried: %s",
                self.queue,
                len(self._numbers) + len(self._drafts),
                error_text(error),
            )
        faults[self] = error_text(error)

    def take_over(self) -> QueueStart:
        """Return where a new queue of the same name starts. It owns the remaining files now."""
        self._is_taken_over = True
        self._folder.undeleted.pop(self.queue)
        if self._folder.faults.pop(self, None) is not None:
            log.warning(
                "DISKQUEUE(%s): starts with file %d, behind undeleted files of a former queue",
                self.queue,
                self._end,
            )
        finished = FileNumbers()
        finished.add_all(self._numbers)
        return QueueStart(
            Positions(read_file=self._end, write_file=self._end),
            has_file=self._is_void,
            moved=True,
            finished=finished,
        )


def resume_deletions(folder: DataFolder, known: Collection[str]) -> list[str]:
    """Delete the files of queues without a message and without a topic or channel.

    A crash interrupted their deletion. ``known`` names the queues of all topics and channels.
    Returns the names of the other queues that have files and are not known.
    """
    others = []
    for queue in folder.queues_with_files():
        if queue in known:
            continue
        files = QueueFiles(queue)
        numbers = FileNumbers(map(files.number, folder.record_files(queue)))
        try:
            positions = read_positions(folder.disk, files)[1]
        except (OSError, ValueError):
            positions = Positions()
        if numbers.end <= positions.read_file and positions.all_read:
            log.info("DISKQUEUE(%s): deleting its files: it holds no message", queue)
            UndeletedFiles(folder, files, positions.write_file, numbers, is_void=True).begin()
        else:
            others.append(queue)
    return others
