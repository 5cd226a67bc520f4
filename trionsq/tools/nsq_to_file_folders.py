"""Folders and the files in them: made, made durable, moved, and those that a crash left.

A file in progress in a work dir is held (`hold`), so that another process of the tool can tell it
from one whose process is gone.

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

__all__ = ["Fsync", "finish_line", "hold", "make_folder", "move", "move_leftovers", "sync_folder"]

Fsync: TypeAlias = Callable[[int], None]

log = logging.getLogger("trionsq.tools.nsq_to_file")

_FOLDER_MODE: Final = 0o770
_READ_NBYTES: Final = 1024 * 1024
_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS


def make_folder(folder: str, fsync: Fsync) -> None:
    """Make a folder and those above it, durably; nothing if it is there. Raises OSError."""
    missing = []
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, _FOLDER_MODE)
        except FileExistsError:
            # Another process may make it at the same time.
            if not os.path.isdir(folder):
                raise
        sync_folder(os.path.dirname(folder), fsync)


def sync_folder(folder: str, fsync: Fsync) -> None:
    """Make the names in a folder durable, where that is allowed. Raises OSError."""
    try:
        fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # one may be allowed to write in it and not to read it
    try:
        fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that can't do it for folders
            raise
    finally:
        os.close(fd)


def move(path: str, folder: str, name: str, revision: int, fsync: Fsync) -> None:
    """Give a file its name in a folder, never over another file: the revision goes up instead.

    Args:
        path: where it is now, on the folder's file system.
        name: with ``<REV>`` in it.

    Raises:
        OSError
    """
    while True:
        done = names.path_of(folder, names.with_revision(name, revision))
        make_folder(os.path.dirname(done), fsync)  # which the revision may be a part of
        try:
            os.link(path, done)
            break
        except FileExistsError:
            revision += 1
    sync_folder(os.path.dirname(done), fsync)
    os.unlink(path)
    log.info("moved %s to %s", path, done)


def hold(fd: int, path: str) -> bool:
    """Show others that the file is in progress; False if it was taken away meanwhile."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks; there, none moves what others left either
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def finish_line(path: str) -> bytes:
    """What has to be written before the next record: a newline after one that a crash cut off."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return b""
            file.seek(size - 1)
            return b"" if file.read(1) == b"\n" else b"\n"
    except (PermissionError, ValueError):
        return b""  # one may be allowed to write to it and not to read it


# What a crash left in a work dir


def move_leftovers(
    work_dir: str, output_dir: str, pattern: re.Pattern[str], *, gzip: bool, fsync: Fsync
) -> None:
    """Move files in progress whose process is gone to where finished files are.

    What follows the last sync may be cut off within a record: a plain file gets a newline there, a
    gzip file ends with its last whole member. No finished message is in what goes.

    Args:
        pattern: matches their whole names, relative to the work dir, with the group ``rev``.

    Raises:
        OSError
    """
    for name in list(_files_below(work_dir)):
        found = pattern.fullmatch(name)
        if found is None:
            continue
        path = os.path.join(work_dir, name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            continue  # another process was faster, or it is another user's
        try:
            if not _is_left(fd, path):
                continue
            _repair(fd, path, gzip=gzip)
            fsync(fd)
            begin, end = found.span("rev")
            revised = f"{name[:begin]}{names.REV}{name[end:]}"
            move(path, output_dir, revised, int(found["rev"][1:]), fsync)
        finally:
            os.close(fd)


def _files_below(folder: str) -> Iterator[str]:
    """Names of all files, relative to the folder."""
    for path, _, files in os.walk(folder):
        for file in sorted(files):
            yield os.path.relpath(os.path.join(path, file), folder)


def _is_left(fd: int, path: str) -> bool:
    """Whether nobody else holds it; then we do, until it is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.warning("%s may be left by a crash or in use: %s", path, error)
        return False
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _repair(fd: int, path: str, *, gzip: bool) -> None:
    if not gzip:
        os.write(fd, finish_line(path))
        return
    size, whole = os.fstat(fd).st_size, _whole_members_nbytes(fd)
    if whole < size:
        log.warning("%s: cut off the last %d bytes, which were never synced", path, size - whole)
        os.ftruncate(fd, whole)
    if not whole:
        os.write(fd, zlib.compressobj(wbits=_GZIP_WBITS).flush())


def _whole_members_nbytes(fd: int) -> int:
    """Size of the gzip members at a file's begin that are there to their end."""
    whole = at = 0
    member = zlib.decompressobj(wbits=_GZIP_WBITS)
    while data := os.pread(fd, _READ_NBYTES, at):
        at += len(data)
        while data:
            try:
                # Bounded, for a member may be far larger than its bytes.
                while data and not member.eof:
                    member.decompress(data, _READ_NBYTES)
                    data = member.unconsumed_tail
            except zlib.error:
                return whole
            if member.eof:
                data = member.unused_data
                whole = at - len(data)
                member = zlib.decompressobj(wbits=_GZIP_WBITS)
    return whole
