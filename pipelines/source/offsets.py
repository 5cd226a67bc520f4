"""Where a microbatch begins and ends: positions in the log as Spark's offsets, and its limits.

An offset is ``{"lsn": 4711, "wal": "the log's id"}``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
)

from pipelines.errors import DataLossError
from pipelines.wal import SegmentRef

__all__ = [
    "AvailableNow",
    "BatchLimits",
    "Offset",
    "SourceLog",
    "initial_position",
    "offset_of",
    "position_of",
    "report_loss",
]

log = logging.getLogger("pipelines.source")

Offset: TypeAlias = dict[str, Any]


class SourceLog(Protocol):
    """What a query needs of a log, whoever writes it."""

    @property
    def id(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def committed(self) -> int: ...
    def segments(self, start: int, end: int) -> Sequence[SegmentRef]: ...


def offset_of(wal: SourceLog, lsn: int) -> Offset:
    """The offset that Spark keeps in its checkpoint."""
    return {"lsn": lsn, "wal": wal.id}


def position_of(
    offset: Mapping[str, Any], wal: SourceLog, *, fail_on_data_loss: bool, is_end: bool = False
) -> int:
    """The position in this log that an offset of the checkpoint refers to.

    Without ``fail_on_data_loss`` the offset of another log means the start of this one, and an
    offset that was trimmed means the first position left; both are logged.

    Raises:
        DataLossError: the offset is of another log, or outside of this one.
    """
    if "logs" in offset:
        raise DataLossError(
            f"the checkpoint belongs to {len(offset['logs'])} logs, but walPath is {wal.path} "
            "alone: end walPath with /*, as before"
        )
    lsn, wal_id = int(offset["lsn"]), offset["wal"]
    if wal_id != wal.id:
        report_loss(
            f"the checkpoint belongs to the log {wal_id}, but {wal.path} is {wal.id}: use the "
            "walPath and the checkpointLocation that belong together, or a new checkpoint",
            fail_on_data_loss,
        )
        return wal.first
    if lsn > wal.end:
        # Even without fail_on_data_loss: the log will reuse these positions for other messages.
        raise DataLossError(
            f"the checkpoint is at {lsn}, but {wal.path} ends at {wal.end}: the log was reset "
            "to an older state; use a new checkpoint"
        )
    if lsn < wal.first and not is_end:
        report_loss(
            f"{wal.path} begins at {wal.first}: the messages from {lsn} on are gone",
            fail_on_data_loss,
        )
    return max(lsn, wal.first)


def report_loss(reason: str, fail_on_data_loss: bool) -> None:
    """Raise DataLossError; or only log the reason, if the user allows that."""
    if fail_on_data_loss:
        raise DataLossError(f"{reason} (or set failOnDataLoss to false to continue with the rest)")
    log.warning("%s; continuing, because failOnDataLoss is false", reason)


def initial_position(option: str | int, first: int, committed: int, end: int) -> int:
    """The position that ``startingOffsets`` or ``endingOffsets`` refers to.

    Raises:
        DataLossError: a position outside of the log.
    """
    if isinstance(option, int):
        if not first <= option <= end:
            raise DataLossError(f"the log has the positions {first} to {end}, not {option}")
        return option
    return {"earliest": first, "committed": max(first, committed), "latest": end}[option]


# The end of a microbatch: decisions without a clock or a log of their own


@dataclass(slots=True)
class BatchLimits:
    """The limits of a microbatch.

    Attributes:
        max_messages, min_messages, max_bytes: None for no limit.
        max_delay_s: ``min_messages`` has no effect after so long without a microbatch.
    """

    max_messages: int | None
    min_messages: int | None
    max_delay_s: float
    max_bytes: int | None = None
    _waiting_since_s: float | None = None

    def read_limit(self) -> ReadLimit:
        """The limit for Spark's API, which has room for one."""
        if self.max_messages is not None:
            return ReadMaxRows(self.max_messages)
        if self.min_messages is not None:
            return ReadMinRows(self.min_messages)
        return ReadAllAvailable()

    def batch_end(
        self,
        start: int,
        available: int,
        now_s: float,
        *,
        may_wait: bool,
        message_bytes: float = 0.0,
    ) -> int:
        """The end of the microbatch from ``start``; ``start`` itself if none is due.

        ``message_bytes``: the mean size of a message, from which ``max_bytes`` becomes a number of
        messages: at least one.
        """
        backlog = available - start
        if backlog <= 0:
            self._waiting_since_s = None
            return start
        if may_wait and self.min_messages is not None and backlog < self.min_messages:
            if self._waiting_since_s is None:
                self._waiting_since_s = now_s
            if now_s - self._waiting_since_s < self.max_delay_s:
                return start
        self._waiting_since_s = None
        count = backlog if self.max_messages is None else min(backlog, self.max_messages)
        if self.max_bytes is not None and message_bytes > 0:
            count = min(count, max(1, int(self.max_bytes / message_bytes)))
        return start + count


@dataclass(slots=True)
class AvailableNow:
    """Finds the end of the available messages, which nsqd does not announce.

    The end is reached when no message has arrived for ``idle_s`` seconds, or when a segment's
    messages were all published after the query began (by nsqd's clock).

    Attributes:
        began_ns: start of the query, nanoseconds since the epoch.
        target: the end, once it is known.
    """

    idle_s: float
    began_ns: int
    target: int | None = None
    _end: int = -1
    _idle_since_s: float = 0.0

    def add_segment(self, end: int, oldest_ns: int) -> None:
        """Note the newest segment: its end, and when its oldest message was published."""
        if self.target is None and oldest_ns > self.began_ns:
            self.target = end

    def is_complete(self, end: int, now_s: float, *, is_quiet: bool) -> bool:
        """Whether the end is known; to be called repeatedly while the log has nothing new.

        Args:
            end: of the log.
            now_s: monotonic clock.
            is_quiet: connected, and no message is on its way to the log.
        """
        if end != self._end or not is_quiet:
            self._end, self._idle_since_s = end, now_s
        if self.target is None and now_s - self._idle_since_s >= self.idle_s:
            self.target = end
        return self.target is not None
