"""Files of a deleted queue that the disk would not remove.

With them its messages would come back, were a topic or channel of that name made again. So they
are an error that shows until they are gone, and a new queue begins behind them, as an emptied one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from trionsq.storage.disk import Disk
from trionsq.storage.folder import DataFolder, error_text
from trionsq.storage.positions import Positions, QueueFiles, Start

__all__ = ["Leftover", "Remains", "leftover_of", "remove_files"]

log = logging.getLogger("trionsq")


@dataclass(frozen=True, slots=True)
class Remains:
    """Names of files that stay.

    Attributes:
        records: with records.
        others: positions and due times, which a new queue writes anew under the same names.
    """

    records: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.records or self.others)


def remove_files(disk: Disk, names: Iterable[str], failed: Callable[[OSError], None]) -> list[str]:
    """Remove files, as many as can be; the names of the others. ``failed`` hears why."""
    left = []
    for name in names:
        try:
            disk.unlink(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            failed(error)
            left.append(name)
    return left


class Leftover:
    """What is left of one queue; it is tried again as queues are that failed.

    Attributes:
        queue: its name.
    """

    def __init__(
        self,
        folder: DataFolder,
        files: QueueFiles,
        left: Remains,
        number: int,
    ) -> None:
        """``number`` is that of the first file that another queue of this name may write."""
        self.queue = files.queue
        self._folder = folder
        # Without positions nobody reads the records, so these go first.
        self._names = list(dict.fromkeys([*left.others, *left.records]))
        self._left = left
        self._number = number

    def __repr__(self) -> str:
        return f"<Leftover {self.queue} {self._names}>"

    def tell(self, reason: str) -> None:
        """Let it show in the log and in the health of the broker, until it is gone."""
        log.error(
            "DISKQUEUE(%s): deleted, but %d files stay, and are tried again: %s",
            self.queue,
            len(self._names),
            reason,
        )
        self._folder.faults[self] = reason

    def _forget(self) -> None:
        self._folder.faults.pop(self, None)

    def sync(self) -> None:
        """Nothing here has to be durable."""

    def try_again(self) -> None:
        """Remove what can be removed now."""
        self._names = remove_files(self._folder.disk, self._names, self._failed)
        if self._names:
            return
        log.info("DISKQUEUE(%s): what was left of it is removed", self.queue)
        self._forget()

    def _failed(self, error: OSError) -> None:
        self._folder.faults[self] = error_text(error)

    def start(self) -> Start:
        """Where a new queue of that name begins, whose these files are from now on."""
        self._forget()
        log.warning(
            "DISKQUEUE(%s): begins with file %d, behind what is left of a deleted one",
            self.queue,
            self._number,
        )
        positions = Positions(read_file=self._number, write_file=self._number)
        records = [name for name in self._left.records if name in self._names]
        return Start(positions, moved=True, finished=records)


def leftover_of(folder: DataFolder, queue: str) -> Leftover | None:
    """What is left of the last queue of that name, if anything."""
    faulty = (each for each in folder.faults if isinstance(each, Leftover))
    return next((left for left in faulty if left.queue == queue), None)
