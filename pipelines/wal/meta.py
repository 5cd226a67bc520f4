"""The log's folder and the small files beside the segments.

``META.json`` names the log, ``COMMITTED.json`` has the committed position, ``LOCK`` is locked by
the process that writes.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final
from uuid import uuid4

from pipelines.errors import WalDamagedError, WalError, WalLockedError
from pipelines.wal.segments import FORMAT_VERSION, META
from trionsq.disk import Disk, FolderLock, FolderLockError, RealDisk, read_file, replace_file

__all__ = [
    "COMMITTED",
    "LOCK",
    "META",
    "create_meta",
    "lock_log",
    "open_disk",
    "read_committed",
    "read_meta",
    "write_committed",
]

COMMITTED: Final = "COMMITTED.json"
LOCK: Final = "LOCK"

_ADVICE: Final = (
    "remove it; then the whole log counts as not committed, and Spark continues at its checkpoint"
)


def open_disk(path: str | os.PathLike[str]) -> RealDisk:
    """Return the disk of the log in folder ``path``, with an absolute path: executors get it too.

    Existing files are opened for reading only: executors may lack the right to write. Others may
    read new files.
    """
    return RealDisk(os.path.abspath(path), mode=0o644, open_flags=os.O_RDONLY)


def lock_log(path: str) -> FolderLock:
    """Lock the log in folder ``path`` for writing, without waiting.

    Raises:
        WalLockedError: another process, or another object in this process, holds the lock.
        OSError: the folder is missing, or this process may not write to it.
    """
    try:
        return FolderLock(path, LOCK)
    except FolderLockError as error:
        raise WalLockedError(
            f"the log {path} is in use by another query or process; each query needs a "
            "walPath of its own"
        ) from error


def create_meta(disk: Disk) -> str:
    """Create ``COMMITTED.json``, then ``META.json``; return the id of the new log.

    Raises:
        OSError: there may be no log.
    """
    write_committed(disk, 0)
    wal_id = uuid4().hex
    text = json.dumps({"version": FORMAT_VERSION, "id": wal_id})
    replace_file(disk, META, text.encode(), draft=f"{META}.tmp")
    return wal_id


def read_meta(disk: Disk) -> str:
    """Return the id of the log.

    Raises:
        WalDamagedError, WalError: the file is damaged, or of a newer version.
        OSError: the file cannot be read.
    """
    meta = _read(disk, META, "restore it from a copy, or use another walPath and checkpoint")
    wal_id = meta.get("id")
    if not isinstance(wal_id, str) or not wal_id:
        raise WalDamagedError(f"{os.path.join(disk.path, META)} has no id")
    return wal_id


def write_committed(disk: Disk, lsn: int) -> None:
    """Store the committed position.

    Raises:
        OSError: the file may have the old position.
    """
    text = json.dumps({"version": FORMAT_VERSION, "lsn": lsn})
    replace_file(disk, COMMITTED, text.encode(), draft=f"{COMMITTED}.tmp")


def read_committed(disk: Disk) -> int | None:
    """Return the committed position; None without a file. Raises as `read_meta`."""
    try:
        committed = _read(disk, COMMITTED, _ADVICE)
    except FileNotFoundError:
        return None
    lsn = committed.get("lsn")
    if not isinstance(lsn, int) or lsn < 0:
        raise WalDamagedError(f"{os.path.join(disk.path, COMMITTED)} has no position")
    return lsn


def _read(disk: Disk, name: str, advice: str) -> dict[str, Any]:
    path = os.path.join(disk.path, name)
    try:
        content = json.loads(read_file(disk, name))
        version = int(content["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise WalDamagedError(f"{path} is damaged ({error!r}): {advice}") from error
    if version > FORMAT_VERSION:
        raise WalError(
            f"{path} has version {version} of the format; this trionsq knows up to "
            f"{FORMAT_VERSION}: use a newer one"
        )
    return dict(content)
