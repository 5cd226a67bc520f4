"""Files of a `trionsq.disk.Disk`, as Arrow reads and writes them."""

from __future__ import annotations

import os

from trionsq.disk import DiskFile

__all__ = ["DiskReader", "DiskWriter"]


class DiskWriter:
    """Appends; closing it leaves the file open."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._at = 0
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        """All of it. Raises OSError."""
        written = bytes(data)
        self._file.write(written, self._at)
        self._at += len(written)
        return len(written)

    def tell(self) -> int:
        """How much was written, in bytes."""
        return self._at

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """No more is written."""
        self.closed = True


class DiskReader:
    """Reads anywhere; closing it leaves the file open."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._at = 0
        self.closed = False

    def read(self, nbytes: int = -1) -> bytes:
        """Up to so many bytes. Raises OSError."""
        data = self._file.read(self._file.size() if nbytes < 0 else nbytes, self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go elsewhere; where that is."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size()}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seekable(self) -> bool:
        """Yes."""
        return True

    def readable(self) -> bool:
        """Yes."""
        return True

    def close(self) -> None:
        """No more is read."""
        self.closed = True
