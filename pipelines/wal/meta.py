"""The small files beside the segments: ``META.json``, ``COMMITTED.json`` and ``LOCK``."""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any, Final
from uuid import uuid4

from pipelines.errors import WalDamagedError, WalError, WalLockedError
from pipelines.wal.disk import Disk, read_whole, write_durably
from pipelines.wal.segments import FORMAT_VERSION, META

__all__ = [
    "COMMITTED",
    "LOCK",
    "META",
    "FolderLock",
    "create_meta",
    "read_committed",
    "read_meta",
    "write_committed",
]

COMMITTED: Final = "COMMITTED.json"
LOCK: Final = "LOCK"

_ADVICE: Final = (
    "remove it; all that the log still has then counts as not committed, and Spark's checkpoint "
    "knows where to go on"
)


class FolderLock:
    """The right to write, until `release` or the end of the process."""

    def __init__(self, path: str) -> None:
        """Lock the log in folder ``path``, without waiting.

        Raises:
            WalLockedError: another process, or another object in this one, has it.
            OSError: there is no such folder, or no right to write.
        """
        self._fd = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise WalLockedError(
                f"the log {path} is in use by another query or process; each query needs a "
                "walPath of its own"
            ) from error

    def release(self) -> None:
        """Let others have it. A second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                # Said aloud: a forked child may still have the same open file.
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)


def create_meta(disk: Disk) -> str:
    """Make ``META.json``, ``COMMITTED.json`` before it; the new log's id. Raises OSError."""
    write_committed(disk, 0)
    wal_id = uuid4().hex
    text = json.dumps({"version": FORMAT_VERSION, "id": wal_id})
    write_durably(disk, f"{META}.tmp", META, text.encode())
    return wal_id


def read_meta(disk: Disk) -> str:
    """The log's id.

    Raises:
        WalDamagedError, WalError: it makes no sense, or is of a newer version.
        OSError: it can't be read.
    """
    found = _read(disk, META, "bring it back from a copy, or use another walPath and checkpoint")
    wal_id = found.get("id")
    if not isinstance(wal_id, str) or not wal_id:
        raise WalDamagedError(f"{os.path.join(disk.path, META)} has no id")
    return wal_id


def write_committed(disk: Disk, lsn: int) -> None:
    """Note the position. Raises OSError: the old one stands, or the new one."""
    text = json.dumps({"version": FORMAT_VERSION, "lsn": lsn})
    write_durably(disk, f"{COMMITTED}.tmp", COMMITTED, text.encode())


def read_committed(disk: Disk) -> int | None:
    """The position noted last; None: no such file. Raises as `read_meta`."""
    try:
        found = _read(disk, COMMITTED, _ADVICE)
    except FileNotFoundError:
        return None
    lsn = found.get("lsn")
    if not isinstance(lsn, int) or lsn < 0:
        raise WalDamagedError(f"{os.path.join(disk.path, COMMITTED)} has no position")
    return lsn


def _read(disk: Disk, name: str, advice: str) -> dict[str, Any]:
    path = os.path.join(disk.path, name)
    try:
        found = json.loads(read_whole(disk, name))
        version = int(found["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise WalDamagedError(f"{path} is damaged ({error!r}): {advice}") from error
    if version > FORMAT_VERSION:
        raise WalError(
            f"{path} has version {version} of the format; this trionsq knows up to "
            f"{FORMAT_VERSION}: use a newer one"
        )
    return dict(found)
