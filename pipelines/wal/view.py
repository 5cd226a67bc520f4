"""A log as its readers see it: what is in it, and how far they are."""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping

from pipelines.errors import WalError, WalMissingError, WalRangeError
from pipelines.wal.folder import FolderSource
from pipelines.wal.objects import is_store_url
from pipelines.wal.place import LogSource
from pipelines.wal.segments import SegmentRef
from pipelines.wal.store import StoreSource

__all__ = ["LogView", "open_logs"]

log = logging.getLogger("pipelines.source")


class LogView:
    """A log that another process may be writing; it takes no lock, and needs no close.

    It shows the log as it was at the last `refresh`, which the constructor calls. All its segments
    are durable: a writer that dies or is fenced off takes none of them back. Not thread-safe; each
    method that raises WalError waits for the disk or the network.

    Attributes:
        id: identifies the log; never changes.
        path: of its folder, or its URL without secrets.
        committed: the newest position that the writer or any reader had committed at first, or
            that this view has.
    """

    def __init__(self, source: LogSource) -> None:
        """Raises as `open`."""
        self.id = source.read_id()
        self.path = source.path
        self.committed = 0
        self._source = source
        self._refs: list[SegmentRef] = []
        self.refresh()

    def __repr__(self) -> str:
        return f"<LogView {self.path} {self.first} to {self.end}, committed {self.committed}>"

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LogView:
        """The log in a folder, or at the URL of an object store.

        Raises:
            WalMissingError: there is no log yet.
            WalDamagedError: a file is damaged, or segments are missing.
            WalError: the log is of a newer version, or can't be read.
        """
        return cls(StoreSource(str(path)) if is_store_url(path) else FolderSource.open(path))

    @property
    def first(self) -> int:
        """The first position that it knows of; the writer may have removed it meanwhile."""
        return self._refs[0].first if self._refs else self.end

    @property
    def end(self) -> int:
        """The position after the last message."""
        return self._refs[-1].end if self._refs else self.committed

    def refresh(self) -> bool:
        """Find what was appended since; whether there is anything. Cheap if there is not.

        One listing of the folder; for a store, one of the names after the last known one. If
        another reader is ahead, and the writer has removed what this view had yet to find, the
        view begins anew behind the gap.

        Raises:
            WalDamagedError, WalError: as `open`. The view stays as it was.
        """
        found = self._source.list_segments(self._refs)
        if not self._refs:
            self.committed = max(self.committed, self._source.read_committed())
        if not found:
            return False
        if found[0].first > self.end:
            self._refs.clear()
        self._refs += found
        return True

    def segments(self, start: int, end: int) -> list[SegmentRef]:
        """The segments with the positions from ``start`` to before ``end``.

        Raises:
            WalRangeError: the view does not have some of them.
        """
        if start < self.first or end > self.end:
            raise WalRangeError(
                f"{self.path} has the positions {self.first} to {self.end}, not {start} to {end}"
            )
        if start >= end:
            return []
        low = bisect_right(self._refs, start, key=lambda ref: ref.end)
        return self._refs[low : bisect_left(self._refs, end, key=lambda ref: ref.first)]

    def commit(self, lsn: int) -> None:
        """Let the writer remove what is before ``lsn``; a lower position has no effect.

        The position is kept beside the log, so the writer need not run; it looks every few
        seconds. Of several readers the one that is ahead counts. The view forgets the segments
        before the position, except the newest one.

        Raises:
            WalRangeError: ``lsn`` is after the end of the log.
            WalFullError: the disk has no room for it; commit again later.
            WalError: the disk or the store failed; the old position is in effect, or the new one.
        """
        if lsn > self.end:
            raise WalRangeError(f"{self.path} ends at {self.end}: {lsn} can't be committed")
        if lsn <= self.committed:
            return
        self._source.commit(lsn)
        self.committed = lsn
        done = bisect_right(self._refs, lsn, key=lambda ref: ref.end)
        del self._refs[: min(done, len(self._refs) - 1)]


def open_logs(
    root: str | os.PathLike[str], known: Mapping[str, LogView] | None = None
) -> dict[str, LogView]:
    """The logs directly below a folder or a URL, by name, in order.

    A root that is not there has no logs; other folders below it do not matter. A name is the last
    part of the path. The views among ``known`` are refreshed, the others are new.

    Raises:
        WalDamagedError, WalError: as `LogView.open`, or the root can't be read.
    """
    views = {}
    for name, path in _children(root).items():
        view = known.get(name) if known is not None else None
        if view is not None:
            view.refresh()
        else:
            try:
                view = LogView.open(path)
            except WalMissingError:
                continue
            log.info("found the log %s", path)
        views[name] = view
    return views


def _children(root: str | os.PathLike[str]) -> dict[str, str]:
    """The folders below a root that may be logs: their names and paths. Raises WalError."""
    if is_store_url(root):
        store = StoreSource(str(root))
        return {name: f"{store.url}/{name}" for name in store.list_children()}
    path = os.path.abspath(root)
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise WalError(f"{path} can't be read: {error}") from error
    return {name: os.path.join(path, name) for name in names}
