"""The logs below one folder, each in a folder of its own."""

from __future__ import annotations

import os

from pipelines.errors import WalError
from pipelines.wal.segments import META

__all__ = ["find_logs"]


def find_logs(root: str) -> list[str]:
    """The names of the logs below a folder, in order. Raises WalError."""
    try:
        return sorted(
            entry.name
            for entry in os.scandir(root)
            if os.path.exists(os.path.join(entry.path, META))
        )
    except OSError as error:
        raise WalError(f"{root} has no logs that can be read: {error}") from error
