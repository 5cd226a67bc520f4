"""What the log's folder holds at start: the segments that count, and nothing half-made.

A crash leaves drafts, which go; or a trim half done: old segments with a gap behind them, all of
them committed, which go too. An append that failed and could not be undone for good may come back
beside the one that took its place; it goes. Anything else that does not fit is damage, and is left
as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from pipelines.wal import meta
from pipelines.wal.errors import WalDamagedError, WalError
from pipelines.wal.segments import (
    SegmentRef,
    StreamIds,
    check_segment,
    ids_of_segment,
    positions_of,
    written_ns_of,
)
from trionsq.disk import Disk, read_file

__all__ = ["Found", "Segment", "recent_ids", "recover"]


@dataclass(slots=True)
class Segment:
    """A segment in the folder.

    Attributes:
        ref: its path and positions.
        nbytes: of the file.
        since_s: monotonic clock: since when this process knows it; retention counts from there.
    """

    ref: SegmentRef
    nbytes: int
    since_s: float

    @property
    def name(self) -> str:
        return os.path.basename(self.ref.path)


@dataclass(slots=True)
class Found:
    """A recovered log. ``segments`` are contiguous, oldest first; the last was ``written_ns``."""

    wal_id: str
    segments: list[Segment]
    committed: int
    end: int
    written_ns: int


def recover(disk: Disk, *, create: bool, now_s: float) -> Found:
    """Read the folder, remove leftovers; make a new log if there is none and ``create`` says so.

    Raises:
        WalDamagedError: something is missing or makes no sense.
        WalError: there is no log, or one of a newer version.
        OSError: from the disk.
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
    # Only now, when all is known to be well, is anything changed.
    _remove_drafts(disk, names)
    for ref in outdated + replaced:
        disk.unlink(os.path.basename(ref.path))
    segments = [Segment(ref, _nbytes(disk, ref), now_s) for ref in refs]
    return Found(wal_id, segments, committed, end, written_ns)


def _remove_drafts(disk: Disk, names: list[str]) -> None:
    for name in names:
        if name.endswith(".tmp"):
            with suppress(FileNotFoundError):
                disk.unlink(name)


def _without_replaced(
    disk: Disk, refs: list[SegmentRef]
) -> tuple[list[SegmentRef], list[SegmentRef]]:
    """Of segments that begin at the same position, the one written last; and the others."""
    counts: list[SegmentRef] = []
    replaced: list[SegmentRef] = []

    def written_ns(ref: SegmentRef) -> int:
        return written_ns_of(read_file(disk, os.path.basename(ref.path)), ref)

    for ref in refs:
        if counts and counts[-1].first == ref.first:
            other = counts.pop()
            older, newer = sorted((other, ref), key=written_ns)
            replaced.append(older)
            counts.append(newer)
        else:
            counts.append(ref)
    return counts, replaced


def _contiguous(
    disk: Disk, refs: list[SegmentRef], committed: int
) -> tuple[list[SegmentRef], list[SegmentRef]]:
    """The segments that count, and those that a trim left over."""
    start = 0
    for index in range(1, len(refs)):
        before, after = refs[index - 1], refs[index]
        if before.end == after.first:
            continue
        if before.end > after.first:
            raise WalDamagedError(f"{before.path} and {after.path} overlap: one does not belong")
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
        "from a copy; or, to go on without these messages, use another walPath and checkpoint"
    )


def _nbytes(disk: Disk, ref: SegmentRef) -> int:
    file = disk.open(os.path.basename(ref.path))
    try:
        return file.size()
    finally:
        file.close()


def recent_ids(
    disk: Disk, segments: list[Segment], ids_max: int
) -> Iterator[tuple[int, list[StreamIds]]]:
    """The ids of the newest segments with their ends, oldest first.

    As many as it takes to have ``ids_max`` of every stream that they have; older segments that
    have yet another stream may be left out. Raises WalError, OSError.
    """
    counts: dict[object, int] = {}
    found: list[tuple[int, list[StreamIds]]] = []
    for segment in reversed(segments):
        parts = ids_of_segment(read_file(disk, segment.name), segment.ref)
        found.append((segment.ref.end, parts))
        for part in parts:
            counts[part.stream] = counts.get(part.stream, 0) + len(part.ids)
        if min(counts.values()) >= ids_max:
            break
    return reversed(found)
