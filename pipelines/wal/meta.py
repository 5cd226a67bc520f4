"""The log's folder and the small files beside the segments.

``META.json`` names the log, ``COMMITTED.json`` has the committed position, ``LOCK`` is locked by
the process that writes, ``OWNER.json`` names it. A reader that is not the writer commits by an
empty file, ``<position>.committed``: the highest one counts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

from pipelines.errors import WalDamagedError, WalError, WalLockedError
from pipelines.wal.segments import FORMAT_VERSION, META
from trionsq.disk import Disk, FolderLock, FolderLockError, RealDisk, read_file, replace_file

__all__ = [
    "COMMITTED",
    "LOCK",
    "META",
    "OWNER",
    "committed_text",
    "create_meta",
    "lock_log",
    "meta_text",
    "newest_reader_commit",
    "open_disk",
    "parse_meta",
    "read_committed",
    "read_meta",
    "read_owner",
    "write_owner",
    "write_reader_commit",
]

COMMITTED: Final = "COMMITTED.json"
LOCK: Final = "LOCK"
OWNER: Final = "OWNER.json"

_READER_COMMIT: Final = re.compile(r"([0-9]{20})\.committed")

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


def meta_text(wal_id: str) -> bytes:
    """The content of ``META.json``."""
    return json.dumps({"version": FORMAT_VERSION, "id": wal_id}).encode()


def create_meta(disk: Disk) -> str:
    """Create ``COMMITTED.json``, then ``META.json``; return the id of the new log.

    Raises:
        OSError: there may be no log.
    """
    replace_file(disk, COMMITTED, committed_text(0), draft=f"{COMMITTED}.tmp")
    wal_id = uuid4().hex
    replace_file(disk, META, meta_text(wal_id), draft=f"{META}.tmp")
    return wal_id


def read_meta(disk: Disk) -> str:
    """Return the id of the log.

    Raises:
        WalDamagedError, WalError: the file is damaged, or of a newer version.
        OSError: the file cannot be read.
    """
    return parse_meta(read_file(disk, META), os.path.join(disk.path, META))


def parse_meta(text: bytes, path: str) -> str:
    """Return the id of the log from the content of ``META.json``. Raises as `read_meta`."""
    advice = "restore it from a copy, or use another walPath and checkpoint"
    wal_id = _parsed(text, path, advice).get("id")
    if not isinstance(wal_id, str) or not wal_id:
        raise WalDamagedError(f"{path} has no id")
    return wal_id


def read_owner(disk: Disk) -> str:
    """Return the name of the log's writer; empty without one.

    Raises as `read_meta`.
    """
    try:
        text = read_file(disk, OWNER)
    except FileNotFoundError:
        return ""
    path = os.path.join(disk.path, OWNER)
    return str(_parsed(text, path, "remove it while no process writes the log").get("owner"))


def write_owner(disk: Disk, name: str) -> None:
    """Store the name of the writer. Raises OSError."""
    text = json.dumps({"version": FORMAT_VERSION, "owner": name})
    replace_file(disk, OWNER, text.encode(), draft=f"{OWNER}.{name}.tmp")


def committed_text(lsn: int) -> bytes:
    """The content of ``COMMITTED.json``."""
    return json.dumps({"version": FORMAT_VERSION, "lsn": lsn}).encode()


def newest_reader_commit(names: Iterable[str]) -> int:
    """The highest position among the names of a folder's files, or 0."""
    return max(
        (int(match[1]) for match in map(_READER_COMMIT.fullmatch, names) if match), default=0
    )


def write_reader_commit(disk: Disk, lsn: int) -> None:
    """Store a position that a reader has committed, and remove lower ones. Raises OSError."""
    with suppress(FileExistsError):
        disk.create(f"{lsn:020}.committed").close()
    disk.sync_folder()
    for name in disk.names():
        match = _READER_COMMIT.fullmatch(name)
        if match and int(match[1]) < lsn:
            with suppress(FileNotFoundError):
                disk.unlink(name)


def read_committed(disk: Disk) -> int | None:
    """Return the committed position; None without a file. Raises as `read_meta`."""
    path = os.path.join(disk.path, COMMITTED)
    try:
        committed = _parsed(read_file(disk, COMMITTED), path, _ADVICE)
    except FileNotFoundError:
        return None
    lsn = committed.get("lsn")
    if not isinstance(lsn, int) or lsn < 0:
        raise WalDamagedError(f"{path} has no position")
    return lsn


def _parsed(text: bytes, path: str, advice: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
        version = int(content["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise WalDamagedError(f"{path} is damaged ({error!r}): {advice}") from error
    if version > FORMAT_VERSION:
        raise WalError(
            f"{path} has version {version} of the format; this trionsq knows up to "
            f"{FORMAT_VERSION}: use a newer one"
        )
    return dict(content)
