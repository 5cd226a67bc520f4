"""The log engine's state on a disk in memory: real SQL, and a crash in an eighth of a millisecond.

`MemoryState` keeps its database on a `SimulatedDisk`. Each commit is one operation of that disk, a
sync of `WAL_FILE`: `crash_at` and `fail` see it, in one order with those of all other files. What
was committed is durable; the commit in which the disk crashes is done or not done. So it assumes
that SQLite keeps its promises, and shows whether the users of the state rely on more than these.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, TypeVar

from trionsq.disk import Disk, read_file, replace_file
from trionsq.storage.log.reserve import DiskReserve
from trionsq.storage.log.rows import Change, State, StateContent, StateError
from trionsq.storage.log.state import STATE_FILE, WAL_FILE, SqliteState
from trionsq.storage.log.tables import StateTables, empty_state
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.pagecache import FileContent

__all__ = ["MemoryState", "open_state"]

# As with a real file, the disk is full if there is no room for a page.
_PAGE_BYTES: Final = 4096

_T = TypeVar("_T")


class _DatabaseContent(FileContent):
    """The content of the state's file: what its connection committed, made only when asked for.

    Attributes:
        uncertain: the content with a commit that failed, which a crash may bring back until the
            next commit.
    """

    def __init__(self, connection: sqlite3.Connection, random: Random) -> None:
        self._connection = connection
        self._random = random
        self._final: bytes | None = None
        self.uncertain: bytes | None = None
        super().__init__()

    @property
    def data(self) -> bytearray:
        return bytearray(self._final or self._connection.serialize())

    @data.setter
    def data(self, data: bytearray) -> None:
        """Only the connection changes the content."""

    def __deepcopy__(self, memo: object) -> FileContent:
        return FileContent(self.after_power_loss(self._random))

    def close(self) -> bytes:
        """Close the connection; the content stays as it is. Return it."""
        self._final = bytes(self.data)
        self._connection.close()
        return self._final

    def after_power_loss(self, random: Random) -> bytes:
        if self.uncertain is not None and random.random() < 0.5:
            return self.uncertain
        return bytes(self.data)


def _open(image: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(image)
    return connection


class MemoryState:
    """A `trionsq.storage.log.rows.State` on a simulated disk.

    Attributes:
        path: of the file, as errors show it.
    """

    def __init__(self, disk: SimulatedDisk, *, reserve_bytes: int = 0) -> None:
        """Open the state, or create it.

        Raises:
            StateError: the file is damaged, or an operation of the disk failed.
        """
        self.path = os.path.join(disk.path, STATE_FILE)
        self._disk = disk
        self._reserve = DiskReserve(disk, reserve_bytes)
        try:
            if STATE_FILE not in disk.names():
                replace_file(disk, STATE_FILE, empty_state(), draft=f"{STATE_FILE}.tmp")
            image = bytearray(read_file(disk, STATE_FILE))
        except OSError as error:
            raise StateError(f"{self.path}: {error.strerror}") from error
        image[18:20] = b"\1\1"  # a real file may have been used with WAL
        self._connection = _open(bytes(image))
        self._tables = StateTables(self._connection)
        try:
            fault = self._tables.fault(quick=True)
        except sqlite3.Error as error:
            fault = f"is damaged: {error}"
        if fault:
            self._connection.close()
            raise StateError(f"{self.path} {fault}")
        self._content = _DatabaseContent(self._connection, disk._random)
        self._place(self._content)
        self._reserve.make()

    def __repr__(self) -> str:
        return f"<MemoryState {self.path}>"

    @property
    def reserve_given_up(self) -> bool:
        return self._reserve.given_up

    def load(self) -> StateContent:
        return self._perform("read", STATE_FILE, self._tables.load)

    def apply(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        try:
            self._commit(changes)
        except StateError as error:
            cause = error.__cause__
            is_full = isinstance(cause, OSError) and cause.errno == errno.ENOSPC
            if not is_full or not self._reserve.give_up():
                raise
            self._commit(changes)

    def checkpoint(self) -> None:
        self._perform("sync", STATE_FILE, lambda: None)
        self._reserve.make()

    def copy_to(self, disk: Disk) -> None:
        replace_file(disk, STATE_FILE, self._connection.serialize())

    def close(self) -> None:
        """Leave the content as an ordinary file. The disk must not have crashed in between."""
        self._place(FileContent(self._content.close()))

    def _commit(self, changes: Sequence[Change]) -> None:
        def commit() -> None:
            is_limited = self._disk.capacity is not None
            pages = self._pages() if is_limited else 0
            self._change(changes)
            if is_limited:
                grown = max(self._pages() - pages, 1) * _PAGE_BYTES
                if self._disk._free_bytes() < grown:
                    self._connection.execute("ROLLBACK")
                    raise self._disk._error(errno.ENOSPC, WAL_FILE)
            self._connection.execute("COMMIT")
            self._content.uncertain = None

        def fail() -> None:
            # In another database: SQLite serializes only what is committed.
            copy = _open(self._connection.serialize())
            with suppress(sqlite3.Error):
                StateTables(copy).write(changes)
                self._content.uncertain = copy.serialize()
            copy.close()

        self._perform("sync", WAL_FILE, commit, fail)

    def _change(self, changes: Sequence[Change]) -> None:
        self._connection.execute("BEGIN")
        try:
            self._tables.write(changes)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise

    def _pages(self) -> int:
        [(count,)] = self._connection.execute("PRAGMA page_count")
        return int(count)

    def _perform(
        self,
        operation: str,
        name: str,
        act: Callable[[], _T],
        failing: Callable[[], None] = lambda: None,
    ) -> _T:
        try:
            return self._disk._perform(operation, (name,), act, failing=failing)
        except OSError as error:
            raise StateError(f"{self.path}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise StateError(f"{self.path}: {error}") from error

    def _place(self, content: FileContent) -> None:
        with self._disk._lock:
            self._disk._folder.change_durably(((STATE_FILE, content),))


def open_state(disk: Disk) -> State:
    """Open the state of the logs on any disk, or create it.

    Raises:
        StateError: it is damaged, or an operation of the disk failed.
    """
    return MemoryState(disk) if isinstance(disk, SimulatedDisk) else SqliteState(disk)
