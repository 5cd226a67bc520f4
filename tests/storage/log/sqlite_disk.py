"""SQLite's own files on the simulated disk, by a VFS of apsw: torn WALs, lost names, EIO, ENOSPC.

apsw brings a SQLite of its own, later than the one of the module `sqlite3`.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import count
from typing import Any

import apsw

from trionsq.disk import DiskFile
from trionsq.storage.log.state import SqliteState
from trionsq.testing.disk import Crashed, SimulatedDisk

__all__ = ["SqliteDisk", "open_state"]

_numbers = count()


def open_state(disk: SimulatedDisk, *, reserve_bytes: int = 0) -> SqliteState:
    """Open the state in SQLite on this disk.

    Raises:
        StateError: as `SqliteState` does.
        Crashed: the disk crashed.
    """
    vfs = SqliteDisk(disk)
    return SqliteState(disk, reserve_bytes=reserve_bytes, connect=vfs.connect, errors=(apsw.Error,))


def _error(kind: int, error: OSError) -> Exception:
    """The error of SQLite that its own VFS for Unix would have."""
    if error.errno == errno.ENOSPC and kind == apsw.SQLITE_IOERR_WRITE:
        kind = apsw.SQLITE_FULL
    result = apsw.exception_for(kind)
    result.args = (str(error),)
    return result


class _Connection(apsw.Connection):
    def __del__(self) -> None:
        with suppress(apsw.Error, Crashed):
            self.close()  # checkpoints, which fails after a crash


class SqliteDisk(apsw.VFS):
    """A VFS for one connection. It never syncs the folder, as SQLite's own does now and then."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self._name = f"simulated-{next(_numbers)}"
        super().__init__(self._name, base="")

    def connect(self, path: str) -> apsw.Connection:
        return _Connection(path, vfs=self._name)

    def xFullPathname(self, name: str) -> str:
        return name

    def xAccess(self, pathname: str, flags: int) -> bool:
        return os.path.basename(pathname) in self._names()

    def _names(self) -> list[str]:
        try:
            return [] if self.disk.crashed else self.disk.names()
        except OSError as error:
            raise _error(apsw.SQLITE_IOERR_ACCESS, error) from None

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self.disk.crashed:
            return
        try:
            self.disk.unlink(os.path.basename(filename))
        except FileNotFoundError as error:
            raise _error(apsw.SQLITE_IOERR_DELETE_NOENT, error) from None
        except OSError as error:
            raise _error(apsw.SQLITE_IOERR_DELETE, error) from None

    def xOpen(  # type: ignore[override]  # the file need not be a VFSFile
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> SqliteFile:
        assert name is not None, "a temporary file: temp_store is MEMORY"
        path = name if isinstance(name, str) else name.filename()
        base = os.path.basename(path)
        try:
            if flags[0] & apsw.SQLITE_OPEN_CREATE and base not in self.disk.names():
                return SqliteFile(self.disk, self.disk.create(base))
            return SqliteFile(self.disk, self.disk.open(base))
        except OSError as error:
            raise apsw.CantOpenError(str(error)) from None


class SqliteFile:
    """An open file of SQLite. After a crash it fails without a sound: SQLite only cleans up."""

    def __init__(self, disk: SimulatedDisk, file: DiskFile) -> None:
        self._disk = disk
        self._file = file

    def xRead(self, amount: int, offset: int) -> bytes:
        data: bytes = self._call(apsw.SQLITE_IOERR_READ, "read", amount, offset)
        return data

    def xWrite(self, data: bytes, offset: int) -> None:
        self._call(apsw.SQLITE_IOERR_WRITE, "write", bytes(data), offset)

    def xTruncate(self, newsize: int) -> None:
        self._call(apsw.SQLITE_IOERR_TRUNCATE, "truncate", newsize)

    def xSync(self, flags: int) -> None:
        self._call(apsw.SQLITE_IOERR_FSYNC, "sync")

    def xFileSize(self) -> int:
        size: int = self._call(apsw.SQLITE_IOERR_FSTAT, "size")
        return size

    def xClose(self) -> None:
        if not self._disk.crashed:
            self._call(apsw.SQLITE_IOERR_CLOSE, "close")

    def _call(self, kind: int, method: str, *args: object) -> Any:
        crashed = self._disk.crashed
        try:
            return getattr(self._file, method)(*args)
        except OSError as error:
            raise _error(kind, error) from None
        except Crashed as error:
            if crashed:
                raise _error(kind, OSError(errno.EIO, str(error))) from None
            raise

    # One connection, so no locks.

    def xLock(self, level: int) -> None: ...
    def xUnlock(self, level: int) -> None: ...
    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return 512

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE  # as on Unix
