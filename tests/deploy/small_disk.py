"""A node whose volume is a small file system of its own, that messages fill up.

For root: a tmpfs is mounted at the volume's folder, before the daemon starts. It is named after
the process that mounted it; what a killed one left behind is unmounted when the next one mounts.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.deploy.cluster import Cluster
from tests.deploy.netns import runs

__all__ = ["SmallDisk", "clean_up", "small_disk"]

SIZE_NBYTES: Final = 8 * 1024 * 1024

_NAME: Final = re.compile(r"tqdisk([0-9]+)-")
_MOUNTS: Final = Path("/proc/self/mounts")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_BLOCK: Final = bytes(1 << 16)
_FILLER: Final = "filler"
_LIMIT_S: Final = 20.0


class SmallDisk:
    """A mounted file system.

    Attributes:
        path: where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def free_nbytes(self) -> int:
        """What still fits."""
        told = os.statvfs(self.path)
        return told.f_bavail * told.f_frsize

    def fill(self) -> None:
        """With a file of ours, until not one byte more fits: the work of another program."""
        with (self.path / _FILLER).open("ab", buffering=0) as file:
            for part in (_BLOCK, b"\0"):
                try:
                    while file.write(part):
                        pass
                except OSError:
                    continue

    def clear(self) -> None:
        """Remove what `fill` made."""
        (self.path / _FILLER).unlink(missing_ok=True)


@contextmanager
def small_disk(made: Cluster, node: str, size_nbytes: int = SIZE_NBYTES) -> Iterator[SmallDisk]:
    """Mount one at the volume of a node, which does not run yet; unmounted in the end.

    Raises:
        subprocess.CalledProcessError: it is not allowed.
    """
    clean_up()
    path = made.mounted(node)
    name = f"tqdisk{os.getpid()}-{node}"
    _run("mount", "-t", "tmpfs", "-o", f"size={size_nbytes}", name, str(path))
    try:
        yield SmallDisk(path)
    finally:
        _unmount(path)


def clean_up() -> list[Path]:
    """Unmount those of processes that are gone; where they were."""
    orphans = []
    for line in _MOUNTS.read_text(encoding="utf-8").splitlines():
        name, where, *_ = line.split(" ")
        if (found := _NAME.match(name)) and not runs(int(found[1])):
            path = Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), where))
            _unmount(path)
            orphans.append(path)
    return orphans


def _unmount(path: Path) -> None:
    # Lazily: of a failed test somebody may still be there.
    _run("umount", "--lazy", str(path))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=_LIMIT_S)
