"""The disk: the few operations that nsqd and the pipelines need on the files of one folder.

`RealDisk` is the operating system's; `trionsq.testing.disk` has one that fails and crashes.
`FolderLock` keeps a second process out of a folder.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

__all__ = [
    "Disk",
    "DiskFile",
    "FolderLock",
    "FolderLockError",
    "ReadableFile",
    "RealDisk",
    "RealFile",
    "close_quietly",
    "draft_name",
    "read_file",
    "read_pieces",
    "replace_file",
]

log = logging.getLogger("trionsq")

# A file is copied in pieces of 1 MiB: the time of the system calls no longer shows.
_PIECE_BYTES: Final = 1 << 20
# The times of a file need not be durable.
_sync_content: Final = getattr(os, "fdatasync", os.fsync)


class ReadableFile(Protocol):
    """An open file. Every call may raise OSError, with the path as its ``filename``."""

    def read(self, max_bytes: int, offset: int) -> bytes:
        """Return up to ``max_bytes`` bytes; fewer only at the end of the file."""

    def size(self) -> int:
        """Return the size in bytes."""

    def close(self) -> None:
        """Release the file. It is closed even after an error."""


class DiskFile(ReadableFile, Protocol):
    """An open file that may be written to."""

    def write(self, data: bytes, offset: int) -> None:
        """Write all of ``data``. After an error the file may hold any part of it."""

    def write_durably(self, data: bytes, offset: int, room: int = 0) -> None:
        """Write all of ``data``, with ``room`` zeros behind it, and make that durable.

        What was written before may still not be durable.

        After an error the file may hold any part of it, and any part of that may be durable.
        """

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros, to ``size`` bytes."""

    def sync(self) -> None:
        """Make the content durable. After an error any part of it may be durable."""


class Disk(Protocol):
    """The files of one folder, by name. Every call may raise OSError, with ``filename`` set."""

    @property
    def path(self) -> str:
        """Path of the folder."""

    def open(self, name: str) -> DiskFile:
        """Open an existing file for reading and writing."""

    def create(self, name: str) -> DiskFile:
        """Create a file and open it for reading and writing.

        Raises:
            FileExistsError: the name is taken.
        """

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file. A file that has the new name is replaced."""

    def unlink(self, name: str) -> None:
        """Remove a file."""

    def names(self) -> list[str]:
        """Return all names in the folder, in any order."""

    def sync_folder(self) -> None:
        """Make all changes of names durable."""

    def free_bytes(self) -> int:
        """Return how many bytes can still be written."""


def close_quietly(file: ReadableFile) -> None:
    """Close a file whose content need not become durable: an error is only logged."""
    try:
        file.close()
    except OSError as error:
        log.warning("closing a file failed: %s", error)


def read_file(disk: Disk, name: str) -> bytes:
    """Return the whole content of a file.

    Raises:
        OSError: the file cannot be read.
    """
    file = disk.open(name)
    try:
        return file.read(file.size(), 0)
    finally:
        close_quietly(file)


def read_pieces(
    file: DiskFile, max_bytes: int | None = None, piece_bytes: int = _PIECE_BYTES
) -> Iterator[bytes]:
    """Yield the first ``max_bytes`` of a file (None: all of it) in pieces.

    Raises:
        OSError: the file cannot be read.
    """
    left = file.size() if max_bytes is None else max_bytes
    offset = 0
    while left > 0:
        piece = file.read(min(left, piece_bytes), offset)
        if not piece:
            return
        yield piece
        offset += len(piece)
        left -= len(piece)


def draft_name(name: str) -> str:
    """Return a name for a draft of the file ``name``. Drafts are removed at each start."""
    return f"{name}.{secrets.randbits(31)}.tmp"


def replace_file(
    disk: Disk,
    name: str,
    data: bytes | Iterable[bytes],
    *,
    draft: str | None = None,
    rename: Callable[[str, str], None] | None = None,
) -> None:
    """Replace the content of a file: after a crash it has either the old or the new content.

    ``data`` may come in pieces; only one piece at a time is in memory. ``draft`` is the name of
    the temporary file (None: a random one); an older file of that name is removed. ``rename``
    replaces the disk's own `Disk.rename`, so that the caller can decide at the last moment.

    Raises:
        OSError: the file has the old content, or the new one that may not survive a power failure.
    """
    if draft is None:
        draft = draft_name(name)
    else:
        with suppress(FileNotFoundError):
            disk.unlink(draft)
    try:
        file = disk.create(draft)
        try:
            offset = 0
            for piece in (data,) if isinstance(data, bytes) else data:
                file.write(piece, offset)
                offset += len(piece)
            file.sync()
        finally:
            file.close()
        (rename or disk.rename)(draft, name)
    except Exception as error:
        with suppress(OSError):  # the first error is the one that matters
            disk.unlink(draft)
        if not isinstance(error, OSError):
            raise
        # The draft's name differs each time: with the file's name equal faults have equal texts.
        raise OSError(error.errno, error.strerror, os.path.join(disk.path, name)) from error
    disk.sync_folder()


class RealFile:
    """A file of the operating system, unbuffered."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, flags: int, mode: int = 0o600) -> None:
        self.path = path
        self._fd = os.open(path, flags | os.O_CLOEXEC, mode)

    def __repr__(self) -> str:
        return f"<RealFile {self.path}>"

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def write(self, data: bytes, offset: int) -> None:
        try:
            written = os.pwrite(self._fd, data, offset)
            while written < len(data):
                count = os.pwrite(self._fd, memoryview(data)[written:], offset + written)
                if not count:
                    raise OSError(errno.EIO, "nothing was written")
                written += count
        except OSError as error:
            raise self._named(error) from None

    def write_durably(self, data: bytes, offset: int, room: int = 0) -> None:
        self.write(data + bytes(room) if room else data, offset)
        self.sync()

    def read(self, max_bytes: int, offset: int) -> bytes:
        try:
            data = os.pread(self._fd, max_bytes, offset)
            if len(data) == max_bytes or not data:
                return data
            # Linux reads at most 2,147,479,552 bytes in one call, and may always read fewer.
            parts, count = [data], len(data)
            while count < max_bytes and (
                data := os.pread(self._fd, max_bytes - count, offset + count)
            ):
                parts.append(data)
                count += len(data)
            return b"".join(parts)
        except OSError as error:
            raise self._named(error) from None

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise self._named(error) from None

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._named(error) from None

    def sync(self) -> None:
        try:
            _sync_content(self._fd)
        except OSError as error:
            raise self._named(error) from None

    def close(self) -> None:
        # After this the number may belong to another file.
        fd, self._fd = self._fd, -1
        try:
            os.close(fd)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, self.path)


class RealDisk:
    """A folder of the operating system.

    Attributes:
        path: of the folder.
    """

    def __init__(self, path: str | Path, *, mode: int = 0o600, open_flags: int = os.O_RDWR) -> None:
        """``mode`` is for new files; ``open_flags`` for existing ones (O_RDWR or O_RDONLY)."""
        self.path = os.fspath(path)
        self._mode = mode
        self._open_flags = open_flags

    def __repr__(self) -> str:
        return f"<RealDisk {self.path}>"

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

    def open(self, name: str) -> RealFile:
        return RealFile(self._at(name), self._open_flags)

    def create(self, name: str) -> RealFile:
        return RealFile(self._at(name), os.O_RDWR | os.O_CREAT | os.O_EXCL, self._mode)

    def rename(self, name: str, new_name: str) -> None:
        os.replace(self._at(name), self._at(new_name))

    def unlink(self, name: str) -> None:
        os.unlink(self._at(name))

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def sync_folder(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        file_system = os.statvfs(self.path)
        return file_system.f_bavail * file_system.f_frsize


class FolderLockError(OSError):
    """Another process or object holds the lock, or the file system has no locks."""


class FolderLock:
    """Holds a folder until `release`, the end of a ``with`` block, or the end of the process.

    Child processes do not inherit the lock.

    Attributes:
        path: of the folder.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, file_name: str = "") -> None:
        """Lock a folder without waiting; with ``file_name`` by a file in it, created if missing.

        Raises:
            FolderLockError: the lock was refused.
            OSError: the folder or the file cannot be opened.
        """
        self.path = path
        if file_name:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(os.path.join(path, file_name), flags, 0o644)
        else:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise FolderLockError(error.errno, error.strerror) from error

    def __repr__(self) -> str:
        return f"<FolderLock {self.path} {'released' if self._fd < 0 else 'held'}>"

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the folder up. A second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                # To close the file is not enough: a forked child may have it open, too.
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)
