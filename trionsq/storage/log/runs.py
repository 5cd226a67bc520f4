"""Reads a log for who has no channel: a stretch of its messages in order, and what is lost of it.

What is read stays nowhere: no cursor moves, no cache and no index is filled.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from trionsq.core.batch import Segment
from trionsq.storage.log.peek import LogPart
from trionsq.storage.log.ranges import Gaps
from trionsq.storage.log.reading import Block, Place, read_block, segment_at
from trionsq.storage.log.seeking import find_place
from trionsq.storage.log.segmentfile import end_of, sequences_of
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["LogRun", "LostRange", "durable_end", "read_run"]


class LostRange(NamedTuple):
    """Messages that cannot be read: from ``first`` up to ``end``; some of them may never have
    been."""

    first: int
    end: int


@dataclass(slots=True)
class LogRun:
    """What one read has found.

    Attributes:
        parts: messages and what is lost, in the order of the log.
        next: the first sequence that was not looked for.
        place: where to go on, for the next read.
    """

    parts: list[Segment | LostRange] = field(default_factory=list)
    next: int = 0
    place: Place | None = None


def durable_end(log: TopicLog) -> int:
    """Return the sequence before which all messages survive a power failure. For the loop."""
    if not log.segments:
        end = log.first
    elif log.durability == "always":
        end = log.safe_end  # some may be in a journal
    else:
        unsynced_from = log.segments[-1].unsynced_from
        end = log.safe_end if unsynced_from is None else min(log.safe_end, unsynced_from)
    return min(log.gap_end(end) or end, log.safe_end)


def read_run(
    part: LogPart,
    sequence: int,
    end: int,
    max_bytes: int,
    place: Place | None = None,
    *,
    goes_on: bool = False,
) -> LogRun:
    """Read the messages from ``sequence`` on. Blocks; for a thread.

    Args:
        part: the log.
        sequence: to begin with.
        end: sequences from there on are not wanted; a durable one.
        max_bytes: about so much is read; a record may be longer.
        place: of the last read, if that ended at ``sequence``.
        goes_on: a segment that is gone is lost.

    Raises:
        FileNotFoundError: a segment is gone.
        OSError: a file cannot be read.
    """
    while sequence < end and (gap_end := part.gaps.end_at(sequence)) is not None:
        sequence, place = gap_end, None
    if sequence >= end:
        return LogRun(next=end)
    at = segment_at(part.segments, sequence)
    if at < 0:
        behind = part.segments[0].first if part.segments else end
        return _run_of(part.gaps, sequence, end, Block(end=behind))
    segment = part.segments[at]
    try:
        if segment.index is None and (place is None or place[0] is not segment):
            place = find_place(part, segment, sequence)  # an index would take reading all heads
        block = read_block(part.disk, part.segments, sequence, max_bytes, end, place)
        if any(damage.offset == 0 for _, damage in block.damage):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), segment.name)
    except FileNotFoundError:
        if not goes_on:
            raise
        behind = part.segments[at + 1].first if at + 1 < len(part.segments) else end
        block = Block(end=behind)
    return _run_of(part.gaps, sequence, end, block)


def _run_of(gaps: Gaps, sequence: int, end: int, block: Block) -> LogRun:
    run = LogRun(next=sequence)
    for batch in block.batches:
        begin, behind = sequences_of(batch)[0], end_of(batch)
        if behind <= run.next:
            continue
        if run.next >= end:
            break
        for first, last in _outside(gaps, run.next, min(begin, end)):
            run.parts.append(LostRange(first, last))
        for first, last in _outside(gaps, max(begin, run.next), min(behind, end)):
            run.parts.append(Segment(batch, first - begin, last - begin))
        run.next = min(behind, end)
    if run.next < min(block.end, end):
        for first, last in _outside(gaps, run.next, min(block.end, end)):
            run.parts.append(LostRange(first, last))
        run.next = min(block.end, end)
    if block.next is not None and block.next[2] <= run.next:
        run.place = block.next
    return run


def _outside(gaps: Gaps, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that are in no gap."""
    while first < end:
        gap_end = gaps.end_at(first)
        if gap_end is not None:
            first = gap_end
            continue
        behind = min(gaps.begin_from(first), end)
        yield first, behind
        first = behind
