"""The disk as storage sees it: the few operations it needs on the files of one folder.

`RealDisk` is the operating system's; `trionsq.testing.disk` has one that fails and crashes.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

__all__ = ["Disk", "DiskFile", "RealDisk", "pieces_of", "replace_file"]

_MODE: Final = 0o600
# A file is copied in pieces of this size: large enough that the system calls do not count.
_PIECE_NBYTES: Final = 1 << 20


class DiskFile(Protocol):
    """An open file. Every call may raise OSError, with the path as its ``filename``."""

    def write(self, data: bytes, offset: int) -> None:
        """Write all of ``data``. After an error any part of it may stand in the file."""

    def read(self, nbytes: int, offset: int) -> bytes:
        """Up to ``nbytes``; fewer only at the end of the file."""

    def size(self) -> int:
        """In bytes."""

    def truncate(self, size: int) -> None:
        """Make the file end after ``size`` bytes."""

    def sync(self) -> None:
        """Make the content durable. After an error it is unknown what is."""

    def close(self) -> None:
        """Let go of the file."""


class Disk(Protocol):
    """The files of one folder, by name. Every call may raise OSError, with ``filename`` set."""

    @property
    def path(self) -> str:
        """Of the folder."""

    def open(self, name: str) -> DiskFile:
        """Open a file that exists, for reading and writing."""

    def create(self, name: str) -> DiskFile:
        """Make a file, and open it for reading and writing.

        Raises:
            FileExistsError: there is one of that name.
        """

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file; one that has the new name is replaced."""

    def unlink(self, name: str) -> None:
        """Remove a file."""

    def names(self) -> list[str]:
        """All names in the folder."""

    def sync_folder(self) -> None:
        """Make durable which names there are."""

    def free_nbytes(self) -> int:
        """Bytes that may still be written."""


def pieces_of(
    file: DiskFile, nbytes: int | None = None, piece_nbytes: int = _PIECE_NBYTES
) -> Iterator[bytes]:
    """The first ``nbytes`` of a file, or all of it (None), piece by piece; less if it is shorter.

    Raises:
        OSError: it can't be read.
    """
    left = file.size() if nbytes is None else nbytes
    offset = 0
    while left > 0:
        piece = file.read(min(left, piece_nbytes), offset)
        if not piece:
            return
        yield piece
        offset += len(piece)
        left -= len(piece)


def replace_file(
    disk: Disk,
    name: str,
    data: bytes | Iterable[bytes],
    rename: Callable[[str, str], None] | None = None,
) -> None:
    """Give a file a new content so that a crash leaves either the old or the new one.

    ``data`` may come in pieces, of which one at a time is in memory. ``rename`` may stand in for
    the disk's, to decide at the last moment.

    Raises:
        OSError: the old content stands; or the new one, but it may not survive a power failure.
    """
    draft = f"{name}.{secrets.randbits(31)}.tmp"
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
        # By the name that means something; it also makes the same fault read the same.
        raise OSError(error.errno, error.strerror, os.path.join(disk.path, name)) from error
    disk.sync_folder()


class RealFile:
    """A file of the operating system, without any buffer of ours."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, flags: int) -> None:
        self.path = path
        self._fd = os.open(path, flags | os.O_CLOEXEC, _MODE)

    def __repr__(self) -> str:
        return f"<RealFile {self.path}>"

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

    def read(self, nbytes: int, offset: int) -> bytes:
        try:
            data = os.pread(self._fd, nbytes, offset)
            if len(data) == nbytes or not data:
                return data
            # One call gives 2,147,479,552 bytes at most, and may give fewer for other reasons.
            parts, count = [data], len(data)
            while count < nbytes and (data := os.pread(self._fd, nbytes - count, offset + count)):
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
            os.fsync(self._fd)
        except OSError as error:
            raise self._named(error) from None

    def close(self) -> None:
        # A number used after this would be another file's.
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

    def __init__(self, path: str | Path) -> None:
        self.path = os.fspath(path)

    def __repr__(self) -> str:
        return f"<RealDisk {self.path}>"

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

    def open(self, name: str) -> RealFile:
        return RealFile(self._at(name), os.O_RDWR)

    def create(self, name: str) -> RealFile:
        return RealFile(self._at(name), os.O_RDWR | os.O_CREAT | os.O_EXCL)

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

    def free_nbytes(self) -> int:
        figures = os.statvfs(self.path)
        return figures.f_bavail * figures.f_frsize
