"""The few operations that the log needs on the files of its folder.

`RealDisk` is the operating system's; `trionsq.testing.disk.SimulatedDisk` is one, too.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Protocol

__all__ = ["Disk", "DiskFile", "RealDisk", "read_whole", "write_durably"]


class DiskFile(Protocol):
    """An open file. Every call may raise OSError."""

    def write(self, data: bytes, offset: int) -> None:
        """Write all of ``data``. After an error any part of it may stand in the file."""

    def read(self, nbytes: int, offset: int) -> bytes:
        """Up to ``nbytes``; fewer only at the end of the file."""

    def size(self) -> int:
        """In bytes."""

    def sync(self) -> None:
        """Make the content durable. After an error it is unknown what is."""

    def close(self) -> None:
        """Let go of the file."""


class Disk(Protocol):
    """The files of one folder, by name. Every call may raise OSError."""

    path: str

    def open(self, name: str) -> DiskFile:
        """Open a file that exists."""

    def create(self, name: str) -> DiskFile:
        """Make a file; FileExistsError if there is one."""

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file; one that has the new name is replaced."""

    def unlink(self, name: str) -> None:
        """Remove a file."""

    def names(self) -> list[str]:
        """All names in the folder, in any order."""

    def sync_folder(self) -> None:
        """Make durable which names there are."""


def read_whole(disk: Disk, name: str) -> bytes:
    """The content of a file. Raises OSError."""
    file = disk.open(name)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def write_durably(disk: Disk, draft: str, name: str, data: bytes) -> None:
    """Write ``draft``, fsync it, rename it to ``name``, fsync the folder.

    Raises:
        OSError: either name may be there; ``name``, if so, with all of ``data``.
    """
    # Left over from a failure before, when the disk took no unlink.
    with suppress(FileNotFoundError):
        disk.unlink(draft)
    file = disk.create(draft)
    try:
        file.write(data, 0)
        file.sync()
    finally:
        file.close()
    disk.rename(draft, name)
    disk.sync_folder()


class RealFile:
    """A file of the operating system, unbuffered."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, flags: int) -> None:
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def write(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            count = os.pwrite(self._fd, view, offset)
            if not count:
                raise OSError(errno.EIO, "nothing was written")
            offset += count
            view = view[count:]

    def read(self, nbytes: int, offset: int) -> bytes:
        return os.pread(self._fd, nbytes, offset)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        # A number used after this would be another file's.
        fd, self._fd = self._fd, -1
        os.close(fd)


class RealDisk:
    """A folder of the operating system. ``path`` is absolute, for executors get it too."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)

    def __repr__(self) -> str:
        return f"<RealDisk {self.path}>"

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

    def open(self, name: str) -> RealFile:
        return RealFile(self._at(name), os.O_RDONLY)

    def create(self, name: str) -> RealFile:
        return RealFile(self._at(name), os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def rename(self, name: str, new_name: str) -> None:
        os.replace(self._at(name), self._at(new_name))

    def unlink(self, name: str) -> None:
        os.unlink(self._at(name))

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def sync_folder(self) -> None:
        sync_folder(self.path)


def sync_folder(path: str) -> None:
    """Make durable which names a folder has. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
