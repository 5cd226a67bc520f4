"""A small disk for the log that can be filled up, if mounting is permitted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["SmallDisk", "small_disk"]

_PART: Final = bytes(1 << 16)
_FILLER: Final = "filler"


class SmallDisk:
    """A mounted file system."""

    def __init__(self, path: Path) -> None:
        self._filler = path / _FILLER

    def fill(self) -> None:
        """Write until the disk has no byte left; again if something was removed meanwhile."""
        with self._filler.open("ab", buffering=0) as file:
            for part in (_PART, b"\0"):
                try:
                    while file.write(part):
                        pass
                except OSError:
                    continue

    def clear(self) -> None:
        """Remove what `fill` wrote."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, size: str = "96m") -> Iterator[SmallDisk | None]:
    """Mount a small disk at a new folder; None, and a plain folder, if that is not permitted."""
    path.mkdir(parents=True)
    try:
        mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
        subprocess.run(mounting, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: of a failed drill somebody may still be there.
        subprocess.run(["umount", "--lazy", str(path)], check=True)
