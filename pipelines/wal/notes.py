"""Small files beside a log that are not part of it."""

from __future__ import annotations

import os
from uuid import uuid4

from pipelines.errors import WalError
from pipelines.wal.meta import open_disk
from pipelines.wal.objects import Objects, is_store_url
from trionsq.disk import read_file, replace_file

__all__ = ["read_note", "write_note"]


def write_note(path: str, name: str, content: bytes) -> None:
    """Replace the file or object ``name`` of the log at ``path``, at once. Raises WalError."""
    if is_store_url(path):
        Objects(path).replace(name, content)
        return
    disk = open_disk(path)
    try:
        replace_file(disk, name, content, draft=f"{name}.{uuid4().hex}.draft")
    except OSError as error:
        raise WalError(f"{os.path.join(path, name)} can't be written: {error}") from error


def read_note(path: str, name: str) -> bytes | None:
    """The content of the file or object; None if there is none. Raises WalError."""
    try:
        if is_store_url(path):
            return Objects(path).read(name)
        return read_file(open_disk(path), name)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WalError(f"{os.path.join(path, name)} can't be read: {error}") from error
