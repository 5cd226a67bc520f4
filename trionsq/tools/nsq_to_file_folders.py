"""Folders and files: creating and syncing folders, moving finished files and those of a crash.

A process locks its file in progress in a work dir (`lock_file`), so that another process of the
tool can tell it from a file whose process has ended.

Spec: tools, nsq_to_file (work-dir).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from trionsq.tools import nsq_to_file_options as names

__all__ = [
    "Fsync",
    "finish_line",
    "lock_file",
    "make_folder",
    "move",
    "move_unfinished_files",
    "sync_folder",
]

Fsync: TypeAlias = Callable[[int], None]

log = logging.getLogger("trionsq.tools.nsq_to_file")

_FOLDER_MODE: Final = 0o770
_READ_BYTES: Final = 1024 * 1024
_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS


def make_folder(folder: str, fsync: Fsync) -> None:
    """Create a folder and those above it, durably, unless it exists. Raises OSError."""
    missing = []
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, _FOLDER_MODE)
        except FileExistsError:
            # Another process may create it at the same time.
            if not os.path.isdir(folder):
                raise
        sync_folder(os.path.dirname(folder), fsync)


def sync_folder(folder: str, fsync: Fsync) -> None:
    """Make the names in a folder durable, as far as permissions allow. Raises OSError."""
    try:
        fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # the process may write to the folder but not read it
    try:
        fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system cannot sync folders
            raise
    finally:
        os.close(fd)


def move(path: str, folder: str, name: str, revision: int, fsync: Fsync) -> None:
    """Move a file into a folder. If the name exists there, use the next revision.

    Args:
        path: the file, on the same file system as the folder.
        name: its name there, with ``<REV>``.

    Raises:
        OSError
    """
    while True:
        target = names.path_of(folder, names.with_revision(name, revision))
        make_folder(os.path.dirname(target), fsync)  # the revision may be part of the folder
        try:
            os.link(path, target)
            break
        except FileExistsError:
            revision += 1
    sync_folder(os.path.dirname(target), fsync)
    os.unlink(path)
    log.info("moved %s to %s", path, target)


def lock_file(fd: int, path: str) -> bool:
    """Lock a file in progress. False if another process has moved it meanwhile."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # without locks, no process moves the unfinished files of others either
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def finish_line(path: str) -> bytes:
    """A newline if the last record in the file is incomplete, otherwise nothing."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return b""
            file.seek(size - 1)
            return b"" if file.read(1) == b"\n" else b"\n"
    except (PermissionError, ValueError):
        return b""  # the process may write to the file but not read it


# Files that a crash left in a work dir


def move_unfinished_files(
    work_dir: str, output_dir: str, pattern: re.Pattern[str], *, gzip: bool, fsync: Fsync
) -> None:
    """Move files in progress whose process has ended to the output dir.

    The bytes after the last sync may end within a record: a plain file gets a newline there, a gzip
    file is truncated after its last whole member. The truncated part has no finished message.

    Args:
        pattern: matches the whole names, relative to the work dir, with the group ``rev``.

    Raises:
        OSError
    """
    for name in list(_files_below(work_dir)):
        match = pattern.fullmatch(name)
        if match is None:
            continue
        path = os.path.join(work_dir, name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            continue  # another process has moved it, or it belongs to another user
        try:
            if not _lock_unfinished(fd, path):
                continue
            _repair(fd, path, gzip=gzip)
            fsync(fd)
            begin, end = match.span("rev")
            revised = f"{name[:begin]}{names.REV}{name[end:]}"
            move(path, output_dir, revised, int(match["rev"][1:]), fsync)
        finally:
            os.close(fd)


def _files_below(folder: str) -> Iterator[str]:
    """Yield the names of all files, relative to the folder."""
    for path, _, files in os.walk(folder):
        for file in sorted(files):
            yield os.path.relpath(os.path.join(path, file), folder)


def _lock_unfinished(fd: int, path: str) -> bool:
    """Lock the file until it is closed. False if another process has it locked or moved."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.warning("%s: cannot tell whether another process writes it: %s", path, error)
        return False
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _repair(fd: int, path: str, *, gzip: bool) -> None:
    if not gzip:
        os.write(fd, finish_line(path))
        return
    size, whole = os.fstat(fd).st_size, _whole_members_bytes(fd)
    if whole < size:
        log.warning("%s: removed the last %d bytes, which were never synced", path, size - whole)
        os.ftruncate(fd, whole)
    if not whole:
        os.write(fd, zlib.compressobj(wbits=_GZIP_WBITS).flush())


def _whole_members_bytes(fd: int) -> int:
    """Size of the complete gzip members at the beginning of a file."""
    whole = at = 0
    member = zlib.decompressobj(wbits=_GZIP_WBITS)
    while data := os.pread(fd, _READ_BYTES, at):
        at += len(data)
        while data:
            try:
                # In pieces, because a member may be far larger than its compressed bytes.
                while data and not member.eof:
                    member.decompress(data, _READ_BYTES)
                    data = member.unconsumed_tail
            except zlib.error:
                return whole
            if member.eof:
                data = member.unused_data
                whole = at - len(data)
                member = zlib.decompressobj(wbits=_GZIP_WBITS)
    return whole
