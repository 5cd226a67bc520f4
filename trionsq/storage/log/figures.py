"""What a log has done since the start, and how large it is, for operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trionsq.histogram import Histogram
from trionsq.storage.folder import FSYNC_BOUNDS_S
from trionsq.storage.log.segmentfile import SegmentFile

__all__ = ["LogFigures", "StateFigures"]


@dataclass(slots=True)
class StateFigures:
    """Of a node.

    Attributes:
        commits: transactions of the state.
        failed_commits: those that failed.
        fsync_s: durations of the fsyncs of segments, in seconds. For the thread that writes.
    """

    commits: int = 0
    failed_commits: int = 0
    fsync_s: Histogram = field(default_factory=lambda: Histogram(FSYNC_BOUNDS_S))


class LogFigures:
    """Of a topic's log.

    Attributes:
        rounds: that were written.
        failed_rounds: that were refused.
        refused_count: messages that were refused: their round failed, or the disk was full.
    """

    __slots__ = ("_older", "_older_nbytes", "failed_rounds", "refused_count", "rounds")

    def __init__(self) -> None:
        self.rounds = self.failed_rounds = self.refused_count = 0
        # The segments but for the newest: how many, the first of them, the newest; and their size.
        self._older: tuple[int, int, int] | None = None
        self._older_nbytes = 0

    def __repr__(self) -> str:
        return f"<LogFigures rounds={self.rounds} failed={self.failed_rounds}>"

    def forget_sizes(self) -> None:
        """Older segments have other sizes than before."""
        self._older = None

    def disk_nbytes(self, segments: Sequence[SegmentFile]) -> int:
        """Return the size of the segments of a log. All but the newest have their final size."""
        if not segments:
            return 0
        older = len(segments), segments[0].first, segments[-1].first
        if older != self._older:
            self._older = older
            self._older_nbytes = sum(segment.end for segment in segments[:-1])
        return self._older_nbytes + segments[-1].end
