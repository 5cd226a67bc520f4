"""Positions in the log as Spark's offsets: ``{"lsn": 4711, "wal": "the log's id"}``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeAlias

from pipelines.wal import Wal, WalError

__all__ = ["DataLossError", "Offset", "initial_position", "offset_of", "position_of"]

log = logging.getLogger("pipelines.source")

Offset: TypeAlias = dict[str, Any]


class DataLossError(WalError):
    """The log does not have (any more) what Spark's checkpoint asks for."""


def offset_of(wal: Wal, lsn: int) -> Offset:
    """As Spark keeps it in its checkpoint."""
    return {"lsn": lsn, "wal": wal.id}


def position_of(
    offset: Mapping[str, Any], wal: Wal, *, fail_on_data_loss: bool, is_end: bool = False
) -> int:
    """The position that an offset of the checkpoint means in this log.

    Without ``fail_on_data_loss`` an offset of another log means this one's begin, and one that was
    trimmed means what is left; both are logged.

    Raises:
        DataLossError: the offset is of another log, or out of this one's range.
    """
    lsn, wal_id = int(offset["lsn"]), offset["wal"]
    if wal_id != wal.id:
        told = (
            f"the checkpoint belongs to the log {wal_id}, but {wal.path} is {wal.id}: use the "
            "walPath and the checkpointLocation that belong together, or a new checkpoint"
        )
        _lost(told, fail_on_data_loss)
        return wal.first
    if lsn > wal.end:
        # Nothing is known of what was there; a new log would use the same positions anew.
        raise DataLossError(
            f"the checkpoint is at {lsn}, but {wal.path} ends at {wal.end}: the log was put back "
            "to an older state; use a new checkpoint"
        )
    if lsn < wal.first and not is_end:
        told = f"{wal.path} begins at {wal.first}: the messages from {lsn} on are gone"
        _lost(told, fail_on_data_loss)
    return max(lsn, wal.first)


def _lost(told: str, fail_on_data_loss: bool) -> None:
    if fail_on_data_loss:
        raise DataLossError(f"{told} (or set failOnDataLoss to false to go on with what there is)")
    log.warning("%s; going on, as failOnDataLoss is false", told)


def initial_position(wanted: str | int, first: int, committed: int, end: int) -> int:
    """Where ``startingOffsets`` (or ``endingOffsets``) points to.

    Raises:
        DataLossError: a position that the log has not.
    """
    if isinstance(wanted, int):
        if not first <= wanted <= end:
            raise DataLossError(f"the log has the positions {first} to {end}, not {wanted}")
        return wanted
    return {"earliest": first, "committed": max(first, committed), "latest": end}[wanted]
