"""Where a log lives: what a folder and an object store have to do for it.

`FolderPlace` and `StorePlace` are the two kinds. A place has one writer at a time. Whoever opens
the log changes the place so that the next write of the former writer raises WalFencedError,
whenever that comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipelines.wal.segments import SegmentRef

__all__ = ["LogPlace", "LogSource", "RecoveredLog", "Segment"]


@dataclass(slots=True)
class Segment:
    """A segment of an open log.

    Attributes:
        ref: its path and positions.
        nbytes: its size.
        since_s: when this process first saw it (the log's clock); retention counts from then.
    """

    ref: SegmentRef
    nbytes: int
    since_s: float


@dataclass(slots=True)
class RecoveredLog:
    """A recovered log: contiguous segments, oldest first; ``written_ns`` is the last one's."""

    wal_id: str
    segments: list[Segment]
    committed: int
    end: int
    written_ns: int


class LogPlace(Protocol):
    """A log as its writer sees it. Every method waits for the disk or the network."""

    @property
    def path(self) -> str:
        """A folder's absolute path, or a URL without secrets; executors get it, too."""

    @property
    def owner(self) -> str:
        """Differs for each writer where segments have to tell it; else empty."""

    @property
    def poll_s(self) -> float:
        """How often to look for positions that readers have committed."""

    def recover(self, *, create: bool, now_s: float) -> RecoveredLog:
        """Read the log and remove the remains of a crash; with ``create`` make a missing one.

        A former writer is fenced off first, whether it lives or not.

        Raises:
            WalDamagedError: something is missing or inconsistent.
            WalError: there is no log, it is of a newer version, or the place failed.
        """

    def write_segment(self, first: int, end: int, data: bytes) -> str:
        """Store a segment durably and return its path. `recover` comes before it.

        Raises:
            WalFullError: there is no room; nothing of it is in the log.
            WalFencedError: another process has taken the log over; nothing of it is in the log.
            WalError: the place failed; after the next `recover` the log has all of it or nothing.
        """

    def read_segment(self, ref: SegmentRef) -> bytes:
        """Return the content of a segment. Raises WalError; WalRangeError if it was removed."""

    def remove_segments(self, refs: Sequence[SegmentRef]) -> None:
        """Remove segments, oldest first; one that is gone already is no error. Raises WalError."""

    def write_committed(self, lsn: int) -> None:
        """Store the committed position. Raises as `write_segment`; the old one may be left."""

    def committed_by_readers(self) -> int:
        """Return the newest position that a reader has committed, or 0. Raises WalError."""

    def probe(self, nbytes: int) -> None:
        """Try whether a segment of this size could be written. Raises as `write_segment`."""

    def close(self) -> None:
        """Let another process open the log. A second call does nothing."""


class LogSource(Protocol):
    """A log as a reader sees it, without a lock. Every method waits for the disk or the network."""

    @property
    def path(self) -> str:
        """As of `LogPlace`."""

    def read_id(self) -> str:
        """Return the log's id. Raises WalError; WalMissingError if there is no log."""

    def list_segments(self, known: Sequence[SegmentRef]) -> list[SegmentRef] | None:
        """Return durable segments: those after the last one of ``known``, or all without any.

        None: nothing has changed since the last call. Empty segments are left out.

        Raises:
            WalDamagedError: segments in the middle are missing.
            WalError: the place failed.
        """

    def read_committed(self) -> int:
        """Return the newest committed position, the writer's or a reader's. Raises WalError."""

    def commit(self, lsn: int) -> None:
        """Store a position for the writer, which trims; a lower one has no effect.

        Raises WalError.
        """
