"""What the tests of disks share: writing and reading a file at once."""

from __future__ import annotations

from trionsq.disk import Disk, DiskFile

__all__ = ["content", "put"]


def put(disk: Disk, name: str, data: bytes, *, synced: bool = True) -> DiskFile:
    """Make a file, or open it, and write it anew from its start."""
    file = disk.open(name) if name in disk.names() else disk.create(name)
    file.write(data, 0)
    if synced:
        file.sync()
        disk.sync_folder()
    return file


def content(disk: Disk, name: str) -> bytes:
    file = disk.open(name)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()
