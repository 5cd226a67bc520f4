"""The lock of the data path: two brokers in one folder would destroy each other's files.

Spec: nsqd-internals, section 5 (data path lock).
"""

from __future__ import annotations

import fcntl
import os
from types import TracebackType

__all__ = ["DataPathError", "FolderLock", "lock_folder", "reason_of"]


class DataPathError(Exception):
    """The data path can't be had for ourselves alone; the text says why, in nsqd's words."""


class FolderLock:
    """Holds a folder until `release`, the end of a ``with`` block, or the end of the process.

    Attributes:
        path: of the folder.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

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
        """Let others have the folder. A second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                # Said aloud: a forked child may still have the same open file.
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)


def lock_folder(path: str) -> FolderLock:
    """Lock a folder (--data-path; empty: the current one) for this process, without waiting.

    Programs that the process starts do not inherit the lock.

    Raises:
        DataPathError: it is no folder, can't be opened, or is locked already.
    """
    try:
        path = path or os.getcwd()
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise DataPathError(f"failed to lock data-path: open {path}: {reason_of(error)}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise DataPathError(
            f"failed to lock data-path: cannot flock directory {path} - {reason_of(error)}"
            " (possibly in use by another instance of nsqd)"
        ) from error
    return FolderLock(path, fd)


def reason_of(error: OSError) -> str:
    """What the system says about an error, with a small first letter, as nsqd prints it."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]
