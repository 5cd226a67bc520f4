"""Several logs as one source: the offset is a map from log to position.

``{"logs": {"receiver-1": {"lsn": 4711, "wal": "the log's id"}, ...}}``. A log that appears while a
query runs enters the offset at the position where it begins; its messages follow in the next
microbatch. So a microbatch is wholly described by its two offsets, and can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

from pipelines.errors import DataLossError
from pipelines.source.offsets import (
    Offset,
    SourceLog,
    position_of,
    report_loss,
)
from pipelines.source.times import first_position

__all__ = [
    "Positions",
    "added_logs",
    "offset_of_logs",
    "positions_of",
    "shares",
]

Positions: TypeAlias = dict[str, int]
"""Positions by the names of logs."""


def offset_of_logs(logs: Mapping[str, SourceLog], positions: Mapping[str, int]) -> Offset:
    """The offset that Spark keeps in its checkpoint; equal positions give an equal text."""
    return {
        "logs": {name: {"lsn": positions[name], "wal": logs[name].id} for name in sorted(positions)}
    }


def positions_of(
    offset: Mapping[str, Any],
    logs: Mapping[str, SourceLog],
    *,
    fail_on_data_loss: bool,
    is_end: bool = False,
) -> Positions:
    """The positions that an offset of the checkpoint refers to, in the logs that there are.

    The offset of a query that read one of these logs alone is its position in that log.
    Without ``fail_on_data_loss``, `position_of` says what becomes of an offset outside of its log,
    and a log that is gone is left out; both are logged.

    Raises:
        DataLossError: a log is gone or is another one, or the offset is outside of it.
    """
    positions = {}
    for name, entry in _entries(offset, logs).items():
        if name not in logs:
            report_loss(
                f"the log {name} is gone, and with it the messages from {entry['lsn']} on, if it "
                "had any",
                fail_on_data_loss,
            )
            continue
        positions[name] = position_of(
            entry, logs[name], fail_on_data_loss=fail_on_data_loss, is_end=is_end
        )
    return positions


def _entries(
    offset: Mapping[str, Any], logs: Mapping[str, SourceLog]
) -> Mapping[str, Mapping[str, Any]]:
    """The entry of each log; an offset of one log, as older checkpoints have, is one entry."""
    if "logs" in offset:
        entries: Mapping[str, Mapping[str, Any]] = offset["logs"]
        return entries
    for name, log in logs.items():
        if log.id == offset["wal"]:
            return {name: offset}
    raise DataLossError(
        f"the checkpoint belongs to the log {offset['wal']}, which is none of "
        f"{', '.join(sorted(logs)) or 'the logs (there are none)'}: move it among them, or use a "
        "new checkpoint"
    )


def added_logs(
    logs: Mapping[str, SourceLog],
    known: Mapping[str, int],
    starting: str = "committed",
    starting_time: datetime | None = None,
) -> Positions:
    """Where the logs begin that ``known`` lacks. ``starting``: earliest, committed or latest."""
    return {
        name: first_position(log, starting, starting_time)
        for name, log in logs.items()
        if name not in known
    }


def shares(backlogs: Mapping[str, int], count: int) -> dict[str, int]:
    """How many of ``count`` messages each log contributes: equal parts, and all of a small one.

    The parts add up to ``count``, or to all that there is.
    """
    parts = {}
    for done, name in enumerate(sorted(backlogs, key=lambda name: (backlogs[name], name))):
        parts[name] = min(backlogs[name], count // (len(backlogs) - done))
        count -= parts[name]
    return parts
