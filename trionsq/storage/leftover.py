"""What is left of a deleted queue until its files are gone: they are removed in the background.

A queue of the same name may be made meanwhile. It takes over what is left, and begins behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from trionsq.disk import draft_name
from trionsq.storage.deferrals import sidecar_name
from trionsq.storage.folder import DataFolder, error_text
from trionsq.storage.positions import (
    FileNumbers,
    Positions,
    QueueFiles,
    Start,
    read_positions,
    remove_files,
)
from trionsq.storage.sync import REMOVED_AT_ONCE

__all__ = ["Removal", "finish_removals", "removal_of"]

log = logging.getLogger("trionsq")


class Removal:
    """Removes the files of one queue, and tries again as queues do that failed.

    First those with records go. Until then the positions file stays: it says that all of them were
    read, and a crash changes nothing of that. Then it and the sidecar get names that no queue
    looks for, in the event loop, so that no job can remove those of a new queue; and go.

    Attributes:
        queue: its name.
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
        """``numbers`` are those of the files with records, all of them below ``end``.

        ``is_void``: the positions file says that there is nothing to be read before ``end``.
        """
        self.queue = files.queue
        self._folder = folder
        self._files = files
        self._end = end
        self._numbers = numbers
        self._is_void = is_void
        self._is_under_way = False
        self._is_taken_over = False
        self._is_renamed = False
        # What the other files are called since then.
        self._drafts: list[str] = []

    def __repr__(self) -> str:
        return f"<Removal {self.queue} {self._numbers} {self._drafts}>"

    def begin(self) -> None:
        """Have the files removed."""
        self._folder.removals[self.queue] = self
        self.try_again()

    def sync(self) -> None:
        """Nothing here has to be durable."""

    def try_again(self) -> None:
        """Remove some more files, unless that is under way."""
        if self._is_under_way:
            return
        self._is_under_way = True
        left = len(self._numbers)
        # The drafts are no queue's: a new one need not wait for them.
        owner = self if self._is_renamed else self.queue
        self._folder.submit(owner, self._remove_some, lambda error: self._removed(left, error))

    def _remove_some(self) -> None:
        if self._is_taken_over:
            return
        disk = self._folder.disk
        failure = remove_files(disk, self._files, self._numbers, REMOVED_AT_ONCE)
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

    def _removed(self, left: int, error: Exception | None) -> None:
        """Go on; or, if ``error`` and none of the ``left`` files went, let `try_again` do that."""
        self._is_under_way = False
        if self._is_taken_over:
            return
        if error is not None:
            self._failed(error)
        if self._numbers:
            if len(self._numbers) < left and not self._folder.stopping:
                self.try_again()
        elif not self._is_renamed:
            self._rename_others()
        elif not self._drafts:
            self._gone()

    def _rename_others(self) -> None:
        for name in (self._files.positions, sidecar_name(self.queue)):
            draft = draft_name(name)
            try:
                self._folder.disk.rename(name, draft)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._failed(error)
                return
            self._drafts.append(draft)
            self._is_void = False
        self._is_renamed = True
        self._folder.removals.pop(self.queue)
        if self._drafts:
            self.try_again()
        else:
            self._gone()

    def _gone(self) -> None:
        if self._folder.faults.pop(self, None) is not None:
            log.info("DISKQUEUE(%s): what was left of it is removed", self.queue)

    def _failed(self, error: Exception) -> None:
        faults = self._folder.faults
        if self not in faults:
            log.error(
                "DISKQUEUE(%s): deleted, but %d files stay, and are tried again: %s",
                self.queue,
                len(self._numbers) + len(self._drafts),
                error_text(error),
            )
        faults[self] = error_text(error)

    def hand_over(self) -> Start:
        """Where a new queue of that name begins. What is left is its own from now on."""
        self._is_taken_over = True
        self._folder.removals.pop(self.queue)
        if self._folder.faults.pop(self, None) is not None:
            log.warning(
                "DISKQUEUE(%s): begins with file %d, behind what is left of a deleted one",
                self.queue,
                self._end,
            )
        finished = FileNumbers()
        finished.add_all(self._numbers)
        return Start(
            Positions(read_file=self._end, write_file=self._end),
            has_file=self._is_void,
            moved=True,
            finished=finished,
        )


def removal_of(folder: DataFolder, queue: str) -> Removal | None:
    """What is left of the last queue of that name, if anything."""
    found = folder.removals.get(queue)
    assert found is None or isinstance(found, Removal)
    return found


def finish_removals(folder: DataFolder, queues: Iterable[str]) -> list[str]:
    """Remove the files of queues that hold no message: they were being deleted at a crash.

    ``queues`` are those that have files, and belong to no topic or channel; the others of them are
    returned.
    """
    others = []
    for queue in queues:
        files = QueueFiles(queue)
        numbers = FileNumbers(map(files.number, folder.found(queue)))
        try:
            positions = read_positions(folder.disk, files)[1]
        except (OSError, ValueError):
            positions = Positions()
        if numbers.end <= positions.read_file and positions.all_read:
            log.info("DISKQUEUE(%s): no message is left of it, its files are removed", queue)
            Removal(folder, files, positions.write_file, numbers, is_void=True).begin()
        else:
            others.append(queue)
    return others
