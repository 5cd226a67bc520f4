"""The lock of the data path: two brokers in one folder would destroy each other's files.

Spec: nsqd-internals, section 5 (data path lock).
"""

from __future__ import annotations

import os

from trionsq.disk import FolderLock, FolderLockError

__all__ = ["DataPathError", "lock_folder", "reason_of"]


class DataPathError(Exception):
    """The data path can't be had for ourselves alone; the text says why, in nsqd's words."""


def lock_folder(path: str) -> FolderLock:
    """Lock the data path (--data-path; empty: the current folder) without waiting.

    Raises:
        DataPathError: the path is not a folder, cannot be opened, or is locked already.
    """
    try:
        path = path or os.getcwd()
        return FolderLock(path)
    except FolderLockError as error:
        raise DataPathError(
            f"failed to lock data-path: cannot flock directory {path} - {reason_of(error)}"
            " (possibly in use by another instance of nsqd)"
        ) from error
    except OSError as error:
        raise DataPathError(f"failed to lock data-path: open {path}: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """What the system says about an error, with a small first letter, as nsqd prints it."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]
