"""Where a time is in a log, and how far a query is behind it.

Messages are in the order in which they arrived. That is nearly the order of publishing, so a
position of a time is that of the first message which is not older.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import WalError
from pipelines.source.offsets import SourceLog, initial_position
from pipelines.wal import oldest_ns, read_segment

__all__ = ["first_position", "mean_bytes", "measure_backlog", "measure_lag"]


def first_position(log: SourceLog, option: str | int, moment: datetime | None) -> int:
    """The position that ``startingTimestamp`` refers to, without it ``startingOffsets``.

    Raises:
        DataLossError: a position outside of the log.
        WalError: a segment can't be read.
    """
    if moment is None:
        return initial_position(option, log.first, log.committed, log.end)
    scalar = pa.scalar(moment, pa.timestamp("us", tz="UTC"))
    for ref in log.segments(log.first, log.end):
        position = ref.first
        for batch in read_segment(ref, ref.first, ref.end):
            is_late = pc.greater_equal(batch["timestamp"], scalar)
            index: int = pc.index(is_late, True).as_py()
            if index >= 0:
                return max(log.first, position + index)
            position += batch.num_rows
    return log.end


def mean_bytes(log: SourceLog, log_bytes: int) -> float:
    """The mean size of a message; 0 if the log is empty."""
    return log_bytes / max(1, log.end - log.first)


def measure_lag(starts: Iterable[tuple[SourceLog, int]], now_s: float) -> dict[str, float]:
    """The age of the oldest message from these positions on, by the first segment of each log.

    Of a segment in an object store only the head is read, which has its oldest message's time,
    though that may be in a microbatch already.
    """
    oldest_s = now_s
    for log, position in starts:
        position = max(position, log.first)
        if position >= log.end:
            continue
        try:
            ref = log.segments(position, position + 1)[0]
            if "://" in ref.path:
                oldest_s = min(oldest_s, oldest_ns(ref) / 1e9)
                continue
            for batch in read_segment(ref, position, ref.end):
                oldest_s = min(oldest_s, pc.min(batch["timestamp"]).value / 1e6)
        except WalError:  # the next microbatch says what is wrong
            return {}
    return {"lagSeconds": round(now_s - oldest_s, 3)}


def measure_backlog(log: SourceLog, position: int, log_bytes: int, now_s: float) -> dict[str, Any]:
    """What a log has from a position on: messages, bytes (from their mean size), and age."""
    backlog = max(0, log.end - position)
    return {
        "backlog": backlog,
        "backlogBytes": round(backlog * mean_bytes(log, log_bytes)),
        **measure_lag([(log, position)], now_s),
    }
