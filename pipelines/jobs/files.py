"""Files that survive a power cut: whole, or not there."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["FolderError", "local_folder", "replace_file", "sync"]


class FolderError(Exception):
    """A folder can't be used. One line."""


def local_folder(told: str, flag: str) -> Path:
    """The folder of a flag, made if it is not there.

    Raises:
        FolderError: it can't be made, or it is the URL of something that knows no rename.
    """
    told = told.removeprefix("file://")
    if "://" in told:
        raise FolderError(f"{flag}: {told} is a URL; a mounted folder is needed")
    path = Path(told).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{flag}: {path} can't be made: {error.strerror}") from error
    return path


def sync(path: Path) -> None:
    """fsync of a file or a folder. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file, in place of what is there; durable when it returns. Raises OSError."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_bytes(data)
    sync(draft)
    draft.replace(path)
    sync(path.parent)
