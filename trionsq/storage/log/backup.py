"""A backup of the logs while nsqd runs, and its way back into an empty data path.

The state is copied first. Segments that it needs are not removed meanwhile; they only grow, so they
become hard links, and the manifest says up to where each counts. What was written to them after the
state was copied is found as after a crash. The dead letters are copied in between: a message that
became a letter meanwhile is in both, and what became of a letter is in the segments.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from trionsq.disk import Disk, FolderLock, RealDisk, close_quietly, read_pieces, replace_file
from trionsq.storage.letters import LETTERS_FILE
from trionsq.storage.log.names import parse_segment_name
from trionsq.storage.log.rows import State
from trionsq.storage.log.state import STATE_FILE

__all__ = ["MANIFEST_FILE", "BackupError", "backup_path", "restore_backup", "write_backup"]

MANIFEST_FILE: Final = "backup.json"
_FORMAT: Final = 1
_DRAFT: Final = ".tmp"


class BackupError(Exception):
    """A folder is no backup, or cannot take one; the text says why."""


def backup_path(disk: Disk, name: str) -> str:
    """Return where the backup of that name is: in the data path, for it has hard links."""
    return os.path.join(disk.path, f"backup.{name}")


def write_backup(
    disk: Disk,
    state: State,
    copy_letters: Callable[[Disk], None],
    name: str,
    ends: Callable[[], Mapping[str, int]],
) -> dict[str, int]:
    """Make a backup; return the names and sizes of its segments. Blocks.

    No segment may be removed meanwhile. The folder gets its name when all is durable.
    ``copy_letters`` copies the dead letters, if there are any; ``ends`` returns up to where
    segments count now that may have room behind that.

    Raises:
        FileExistsError: there is a backup of that name.
        OSError, StateError, LetterError: there is none now.
    """
    path = backup_path(disk, name)
    if os.path.lexists(path):
        raise FileExistsError(path)
    draft = path + _DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    os.mkdir(draft, 0o700)
    try:
        folder = RealDisk(draft)
        state.copy_to(folder)
        copy_letters(folder)
        sizes: dict[str, int] = {}
        counting = ends()
        for segment in filter(parse_segment_name, sorted(disk.names())):
            with suppress(FileNotFoundError):  # it was left before the state was copied
                os.link(os.path.join(disk.path, segment), os.path.join(draft, segment))
                size = _synced_size(folder, segment)
                sizes[segment] = min(size, counting.get(segment, size))
        manifest = {
            "format": _FORMAT,
            "made_ns": time.time_ns(),
            "segments": sizes,
            "letters": LETTERS_FILE in folder.names(),
        }
        replace_file(folder, MANIFEST_FILE, json.dumps(manifest).encode())
        os.rename(draft, path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    disk.sync_folder()
    return sizes


def _synced_size(folder: RealDisk, segment: str) -> int:
    file = folder.open(segment)
    try:
        size = file.size()
        file.sync()
        return size
    finally:
        close_quietly(file)


def restore_backup(path: str, data_path: str) -> dict[str, int]:
    """Copy a backup to a data path; return the names and sizes of its segments. Blocks.

    The state comes last: without it nsqd would find a log that is not complete.

    Raises:
        BackupError: the folder is no backup, or the data path is not empty.
        OSError: the data path has a part of it, or is in use.
    """
    source = RealDisk(path, open_flags=os.O_RDONLY)
    try:
        with open(os.path.join(path, MANIFEST_FILE), "rb") as file:
            manifest = json.load(file)
        if manifest["format"] != _FORMAT:
            raise BackupError(f"{path}: format {manifest['format']} is of a later release")
        sizes: dict[str, int] = manifest["segments"]
        has_letters = bool(manifest.get("letters"))  # an older release does not say
    except FileNotFoundError as error:
        raise BackupError(f"{path} is no complete backup: it has no {MANIFEST_FILE}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise BackupError(f"{path}: {MANIFEST_FILE} is damaged") from error
    os.makedirs(data_path, mode=0o700, exist_ok=True)
    with FolderLock(data_path):
        target = RealDisk(data_path)
        if target.names():
            raise BackupError(f"{data_path} is not empty")
        for name, size in sizes.items():
            _copy_file(source, target, name, size)
        if has_letters:
            _copy_file(source, target, LETTERS_FILE, None)
        _copy_file(source, target, STATE_FILE, None)
    return sizes


def _copy_file(source: Disk, target: Disk, name: str, size: int | None) -> None:
    file = source.open(name)
    try:
        if size is not None and file.size() < size:
            raise BackupError(f"{source.path}/{name} is shorter than {size} bytes")
        replace_file(target, name, read_pieces(file, size))
    finally:
        close_quietly(file)
