"""Recovery of a log when it is opened: finds its segments and removes the remains of a crash.

Removed are drafts; committed segments before a gap, which an interrupted trim leaves; and a failed
append that could not be undone and has reappeared beside the segment that replaced it. Any other
inconsistency is damage, and is left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from pipelines.errors import WalDamagedError, WalError
from pipelines.wal import meta
from pipelines.wal.segments import (
    ScopeIds,
    SegmentRef,
    check_segment,
    ids_of_segment,
    positions_of,
    written_ns_of,
)
from trionsq.disk import Disk, read_file

__all__ = ["RecoveredLog", "Segment", "recent_ids", "recover"]


@dataclass(slots=True)
class Segment:
    """A segment in the folder.

    Attributes:
        ref: its path and positions.
        nbytes: size of the file.
        since_s: when this process first saw it (monotonic clock); retention counts from then.
    """

    ref: SegmentRef
    nbytes: int
    since_s: float

    @property
    def name(self) -> str:
        return os.path.basename(self.ref.path)


@dataclass(slots=True)
class RecoveredLog:
    """A recovered log: contiguous segments, oldest first; ``written_ns`` is the last one's."""

    wal_id: str
    segments: list[Segment]
    committed: int
    end: int
    written_ns: int


def recover(disk: Disk, *, create: bool, now_s: float) -> RecoveredLog:
    """Read the folder and remove the remains of a crash; create a log if ``create`` allows it.

    Raises:
        WalDamagedError: a file is missing or inconsistent.
        WalError: there is no log, or one of a newer version.
        OSError: the disk failed.
    """
    names = disk.names()
    refs = sorted(
        (
            SegmentRef(os.path.join(disk.path, name), *positions)
            for name in names
            if (positions := positions_of(name)) is not None
        ),
        key=lambda ref: (ref.first, ref.end),
    )
    if meta.META in names:
        wal_id = meta.read_meta(disk)
    elif refs:
        raise WalDamagedError(
            f"{disk.path} has a log without {meta.META}: bring it back from a copy, or use another "
            "walPath and checkpoint"
        )
    elif create:
        _remove_drafts(disk, names)
        wal_id = meta.create_meta(disk)
    else:
        raise WalError(f"{disk.path} has no log")
    committed = meta.read_committed(disk)
    if committed is None:
        committed = refs[0].first if refs else 0
    refs, replaced = _without_replaced(disk, refs)
    refs, outdated = _contiguous(disk, refs, committed)
    end = refs[-1].end if refs else committed
    written_ns = 0
    if refs:
        newest = read_file(disk, os.path.basename(refs[-1].path))
        check_segment(newest, refs[-1], wal_id)
        written_ns = written_ns_of(newest, refs[-1])
    # Nothing is changed before everything is checked.
    _remove_drafts(disk, names)
    for ref in outdated + replaced:
        disk.unlink(os.path.basename(ref.path))
    segments = [Segment(ref, _nbytes(disk, ref), now_s) for ref in refs]
    return RecoveredLog(wal_id, segments, committed, end, written_ns)


def _remove_drafts(disk: Disk, names: list[str]) -> None:
    for name in names:
        if name.endswith(".tmp"):
            with suppress(FileNotFoundError):
                disk.unlink(name)


def _without_replaced(
    disk: Disk, refs: list[SegmentRef]
) -> tuple[list[SegmentRef], list[SegmentRef]]:
    """The segments without those that a later write replaced, and the replaced ones."""
    valid: list[SegmentRef] = []
    replaced: list[SegmentRef] = []

    def written_ns(ref: SegmentRef) -> int:
        return written_ns_of(read_file(disk, os.path.basename(ref.path)), ref)

    for ref in refs:
        if valid and valid[-1].first == ref.first:
            other = valid.pop()
            older, newer = sorted((other, ref), key=written_ns)
            replaced.append(older)
            valid.append(newer)
        else:
            valid.append(ref)
    return valid, replaced


def _contiguous(
    disk: Disk, refs: list[SegmentRef], committed: int
) -> tuple[list[SegmentRef], list[SegmentRef]]:
    """The contiguous segments at the end, and those that an interrupted trim left."""
    start = 0
    for index in range(1, len(refs)):
        before, after = refs[index - 1], refs[index]
        if before.end == after.first:
            continue
        if before.end > after.first:
            raise WalDamagedError(f"{before.path} and {after.path} overlap: one is not of this log")
        if after.first > committed:
            raise _missing(disk, before.end, after.first)
        start = index
    if refs and refs[start].first > committed:
        raise _missing(disk, committed, refs[start].first)
    if refs and refs[-1].end < committed:
        raise _missing(disk, refs[-1].end, committed)
    return refs[start:], refs[:start]


def _missing(disk: Disk, first: int, end: int) -> WalDamagedError:
    return WalDamagedError(
        f"{disk.path} lacks the segments of {first} to {end}. Nothing was changed. Bring them back "
        "from a copy; or, to continue without these messages, use another walPath and checkpoint"
    )


def _nbytes(disk: Disk, ref: SegmentRef) -> int:
    file = disk.open(os.path.basename(ref.path))
    try:
        return file.size()
    finally:
        file.close()


def recent_ids(
    disk: Disk, segments: list[Segment], max_ids: int
) -> Iterator[tuple[int, list[ScopeIds]]]:
    """The ids of the newest segments with their ends, oldest first.

    Reads segments until every scope in them has ``max_ids`` ids; older segments with another scope
    may be left out. Raises WalError, OSError.
    """
    counts: dict[object, int] = {}
    segment_ids: list[tuple[int, list[ScopeIds]]] = []
    for segment in reversed(segments):
        parts = ids_of_segment(read_file(disk, segment.name), segment.ref)
        segment_ids.append((segment.ref.end, parts))
        for part in parts:
            counts[part.scope] = counts.get(part.scope, 0) + len(part.ids)
        if min(counts.values()) >= max_ids:
            break
    return reversed(segment_ids)
