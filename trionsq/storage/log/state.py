"""The log engine's state, in a SQLite file.

One connection, used by one thread at a time, is the only one to the file: SQLite before 3.51.3 can
damage a WAL that two connections use.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Final, TypeVar

from trionsq.disk import Disk, close_quietly, replace_file
from trionsq.storage.log.reserve import DiskReserve
from trionsq.storage.log.rows import Change, StateContent, StateError
from trionsq.storage.log.tables import StateConnection, StateTables, empty_state

__all__ = ["RESERVE_BYTES", "STATE_FILE", "WAL_FILE", "SqliteState"]

STATE_FILE: Final = "trionsq.state.db"
RESERVE_BYTES: Final = 64 << 20

WAL_FILE: Final = f"{STATE_FILE}-wal"
_MIN_SQLITE: Final = (3, 36, 0)  # the first that always has serialize
# A disk with less room than this is full, whatever the error says.
_MIN_FREE_BYTES: Final = 1 << 20

_SQLITE_IOERR: Final = 10
_SQLITE_FULL: Final = 13

_PRAGMAS: Final = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "wal_autocheckpoint = 0",
    "temp_store = MEMORY",
    "journal_size_limit = 67108864",
    "cache_size = -8192",
)

_T = TypeVar("_T")


class SqliteState:
    """The state in the file `STATE_FILE` of a folder. All methods block.

    Attributes:
        path: of the file.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        connect: Callable[[str], StateConnection] | None = None,
        errors: tuple[type[Exception], ...] = (sqlite3.Error,),
    ) -> None:
        """Open the file, or create it. ``connect`` gets its path; ``errors`` are those of SQLite.

        Raises:
            StateError: the file is damaged, of a later version, or cannot be opened or created.
        """
        self.path = os.path.join(disk.path, STATE_FILE)
        self._disk = disk
        self._errors = errors
        self._lock = Lock()
        self._reserve = DiskReserve(disk, reserve_bytes)
        if sqlite3.sqlite_version_info < _MIN_SQLITE:
            raise StateError(f"{self.path}: SQLite {sqlite3.sqlite_version} is older than 3.36")
        self._reserve.make()
        try:
            self._create()
            self._connection = self._call(lambda: (connect or _connect)(self.path))
            self._tables = StateTables(self._connection)
            try:
                self._call(self._configure)
                # The name of the WAL has to last as long as what is committed to it.
                disk.sync_folder()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise StateError(f"{self.path}: {error.strerror}") from error

    def __repr__(self) -> str:
        return f"<SqliteState {self.path}>"

    @property
    def reserve_given_up(self) -> bool:
        return self._reserve.given_up

    def load(self) -> StateContent:
        return self._call(self._tables.load)

    def apply(self, changes: Sequence[Change]) -> None:
        if changes:
            self._call(lambda: self._again_if_full(lambda: self._commit(changes)))

    def checkpoint(self) -> None:
        self._call(lambda: self._again_if_full(lambda: self._run("PRAGMA wal_checkpoint")))
        self._reserve.make()

    def copy_to(self, disk: Disk) -> None:
        path = os.path.join(disk.path, STATE_FILE)

        def copy() -> None:
            for _ in self._connection.execute("VACUUM INTO ?1", (path,)):
                pass

        self._call(copy)
        file = disk.open(STATE_FILE)
        try:
            file.sync()
        finally:
            close_quietly(file)
        disk.sync_folder()

    def close(self) -> None:
        with suppress(*self._errors):
            self._connection.close()

    # Opening

    def _create(self) -> None:
        """Make a file with empty tables, complete and durable, unless there is one."""
        names = self._disk.names()
        if STATE_FILE in names:
            return
        if WAL_FILE in names:
            raise StateError(
                f"{self.path} is missing, but there is {WAL_FILE}: restore the one or remove both"
            )
        image = bytearray(empty_state())
        image[18:20] = b"\2\2"  # the file format's versions: with WAL
        try:
            replace_file(self._disk, STATE_FILE, bytes(image), draft=f"{STATE_FILE}.tmp")
        except OSError:
            # The folder may not be synced, and a later sync need not make up for it.
            with suppress(OSError):
                self._disk.unlink(STATE_FILE)
            raise

    def _configure(self) -> None:
        # Before any access: without it WAL uses shared memory.
        self._run("PRAGMA locking_mode = EXCLUSIVE")
        if fault := self._tables.fault():
            raise StateError(f"{self.path} {fault}")
        for pragma in _PRAGMAS:
            self._run(f"PRAGMA {pragma}")
        # If a sync failed before the last process ended, what it wrote may be in the page cache
        # alone, and no sync makes it durable: it has to be written again.
        self._again_if_full(lambda: self._run("PRAGMA wal_checkpoint(TRUNCATE)"))

    # Transactions

    def _commit(self, changes: Sequence[Change]) -> None:
        if self._connection.in_transaction:  # its rollback failed
            self._run("ROLLBACK")
        self._run("BEGIN IMMEDIATE")
        try:
            self._tables.write(changes)
            self._run("COMMIT")
        except Exception:
            with suppress(*self._errors):
                if self._connection.in_transaction:
                    self._run("ROLLBACK")
            raise

    def _again_if_full(self, act: Callable[[], None]) -> None:
        try:
            act()
        except self._errors as error:
            if not self._is_full(error) or not self._reserve.give_up():
                raise
            act()

    def _is_full(self, error: Exception) -> bool:
        code = getattr(error, "sqlite_errorcode", getattr(error, "result", 0)) & 0xFF
        if code != _SQLITE_IOERR:
            return bool(code == _SQLITE_FULL)
        with suppress(OSError):
            return self._disk.free_bytes() < _MIN_FREE_BYTES
        return False

    def _run(self, sql: str) -> None:
        for _ in self._connection.execute(sql):
            pass

    def _call(self, function: Callable[[], _T]) -> _T:
        """Call, with an error of SQLite as `StateError`."""
        try:
            with self._lock:
                return function()
        except self._errors as error:
            raise StateError(f"{self.path}: {error}") from error


def _connect(path: str) -> StateConnection:
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
