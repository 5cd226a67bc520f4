"""Where data folders go: a real file system, since one in memory would make disk rows lie."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.build import BUILD

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def _unescaped(text: str) -> str:
    return text.encode().decode("unicode_escape")


def file_system(folder: Path, mounts: str | None = None) -> tuple[str, str]:
    """Type and device of the file system that holds an existing folder.

    `mounts` is the text of /proc/self/mounts.
    """
    text = Path("/proc/self/mounts").read_text() if mounts is None else mounts
    best, found = -1, ("unknown", "unknown")
    for line in text.splitlines():
        device, point, kind = line.split(" ")[:3]
        mount = Path(_unescaped(point))
        # The last of equals hides those before it.
        if folder.resolve().is_relative_to(mount) and len(mount.parts) >= best:
            best, found = len(mount.parts), (kind, device)
    return found


def on_disk(folder: Path) -> bool:
    """Whether a folder is on a file system that is not memory."""
    return file_system(folder)[0] not in IN_MEMORY


def data_base(chosen: Path | None) -> Path:
    """The folder below which data folders are made: the chosen one, or one that is on a disk."""
    if chosen is not None:
        return chosen
    BUILD.mkdir(exist_ok=True)
    candidates = [Path(tempfile.gettempdir()), Path("/var/tmp"), BUILD]
    usable = [folder for folder in candidates if folder.is_dir() and on_disk(folder)]
    return usable[0] if usable else candidates[0]
