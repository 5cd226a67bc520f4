"""The segments of a log, oldest first: what is added behind, and what is left before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trionsq.storage.log.segmentfile import SegmentFile

__all__ = ["add_begun", "leave_segments", "replace_segments", "scan_place", "whole_from"]


def add_begun(segments: list[SegmentFile], begun: Iterable[SegmentFile]) -> None:
    """Add the segments that a round began."""
    for segment in begun:
        while segments and segments[-1].first >= segment.first:
            segments.pop()  # nothing in it counted: its file has the new one's name
        segments.append(segment)


def leave_segments(segments: list[SegmentFile], low: int) -> list[str]:
    """Take out those that have no message from ``low`` on, and return their names; one stays."""
    count = 0
    while count + 1 < len(segments) and segments[count + 1].first <= low:
        count += 1
    names = [segment.name for segment in segments[:count]]
    del segments[:count]
    return names


def replace_segments(
    segments: list[SegmentFile], old: Sequence[SegmentFile], new: SegmentFile
) -> bool:
    """Put a segment in the place of those that it was made of; False if they were left meanwhile.

    Of several the first ones may have been left.
    """
    if old[-1] not in segments:
        return False
    end = segments.index(old[-1]) + 1
    count = sum(one in old for one in segments)
    segments[end - count : end] = [new]
    return True


def whole_from(segments: Sequence[SegmentFile], end: int) -> int:
    """Return the sequence behind the last remainder; that of the first segment if there is none."""
    found = end
    for segment in reversed(segments):
        if segment.header.is_remainder:
            break
        found = segment.first
    return found


def scan_place(segments: list[SegmentFile], sequence: int) -> tuple[int, int, int] | None:
    """Return a place at which a scan has to begin to find all from ``sequence`` on.

    That is the first sequence of a segment, and the offset and the sequence of a record in it; None
    if it is not known.
    """
    if not segments:
        return None
    newest = segments[-1]
    if newest.last is not None and newest.last[0] <= sequence:
        known, offset = newest.last
    elif newest.index is not None and newest.first <= sequence:
        known, offset = newest.index.find(sequence)
    else:
        return None
    return newest.first, offset, known
