"""Recovery of a log when it is opened: finds its segments and removes the remains of a crash.

Removed are committed segments before a gap, which an interrupted trim leaves; and a segment beside
the one that replaced it, which earlier versions could leave. Any other inconsistency is damage, and
is left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pipelines.errors import WalDamagedError, WalMissingError, WalRangeError
from pipelines.wal import meta
from pipelines.wal.place import LogPlace, RecoveredLog, Segment
from pipelines.wal.segments import (
    ScopeIds,
    SegmentRef,
    check_segment,
    ids_of_segment,
    positions_of,
    written_ns_of,
)
from trionsq.disk import Disk, read_file

__all__ = ["check_contiguous", "recent_ids", "recover", "without_replaced"]


def recover(disk: Disk, *, create: bool, now_s: float) -> RecoveredLog:
    """Read the folder and remove the remains of a crash; create a log if ``create`` allows it.

    Raises:
        WalDamagedError: a file is missing or inconsistent.
        WalMissingError: there is no log. WalError: it is of a newer version.
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
        wal_id = meta.create_meta(disk)
    else:
        raise WalMissingError(f"{disk.path} has no log")
    committed = meta.read_committed(disk)
    if committed is None:
        committed = refs[0].first if refs else 0
    committed = max(committed, meta.newest_reader_commit(names))
    refs, replaced = without_replaced(disk, refs)
    refs, outdated = check_contiguous(disk.path, refs, committed)
    end = refs[-1].end if refs else committed
    written_ns = 0
    if refs:
        newest = read_file(disk, os.path.basename(refs[-1].path))
        check_segment(newest, refs[-1], wal_id)
        written_ns = written_ns_of(newest, refs[-1])
    # Nothing is changed before everything is checked.
    for ref in outdated + replaced:
        disk.unlink(os.path.basename(ref.path))
    segments = [Segment(ref, _nbytes(disk, ref), now_s) for ref in refs]
    return RecoveredLog(wal_id, segments, committed, end, written_ns)


def without_replaced(
    disk: Disk, refs: list[SegmentRef]
) -> tuple[list[SegmentRef], list[SegmentRef]]:
    """The segments without those that a later write replaced, and the replaced ones.

    Raises WalError, OSError.
    """
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


def check_contiguous(
    path: str, refs: list[SegmentRef], committed: int
) -> tuple[list[SegmentRef], list[SegmentRef]]:
    """The contiguous segments at the end, and those that an interrupted trim left.

    Raises WalDamagedError: segments that are not committed are missing.
    """
    start = 0
    for index in range(1, len(refs)):
        before, after = refs[index - 1], refs[index]
        if before.end == after.first:
            continue
        if before.end > after.first:
            raise WalDamagedError(f"{before.path} and {after.path} overlap: one is not of this log")
        if after.first > committed:
            raise _missing(path, before.end, after.first)
        start = index
    if refs and refs[start].first > committed:
        raise _missing(path, committed, refs[start].first)
    if refs and refs[-1].end < committed:
        raise _missing(path, refs[-1].end, committed)
    return refs[start:], refs[:start]


def _missing(path: str, first: int, end: int) -> WalDamagedError:
    return WalDamagedError(
        f"{path} lacks the segments of {first} to {end}. Nothing was changed. Bring them back "
        "from a copy; or, to continue without these messages, use another walPath and checkpoint"
    )


def _nbytes(disk: Disk, ref: SegmentRef) -> int:
    file = disk.open(os.path.basename(ref.path))
    try:
        return file.size()
    finally:
        file.close()


def recent_ids(place: LogPlace, segments: list[Segment], max_ids: int) -> Iterator[list[ScopeIds]]:
    """The ids of the newest segments, oldest first.

    Reads segments until every scope in them has ``max_ids`` ids; older segments with another scope
    may be left out. So are segments that are trimmed meanwhile. Raises WalError.
    """
    counts: dict[object, int] = {}
    segment_ids: list[list[ScopeIds]] = []
    for segment in reversed(segments):
        try:
            data = place.read_segment(segment.ref)
        except WalRangeError:
            break  # and all older ones
        parts = ids_of_segment(data, segment.ref)
        segment_ids.append(parts)
        for part in parts:
            counts[part.scope] = counts.get(part.scope, 0) + len(part.ids)
        if counts and min(counts.values()) >= max_ids:
            break
    return reversed(segment_ids)
