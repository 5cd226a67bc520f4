"""Positions in a log, by name, sequence or time; and where in the files they are.

A position is looked for by the headers of segments and the heads of records: a search in halves
reads a few blocks of one file, however large the log is. Blocks: for a thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from trionsq.disk import ReadableFile, close_quietly
from trionsq.durations import SECOND_NS
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.format import SEGMENT_HEADER_BYTES, STAMPS_IN_SECTION, RecordHead
from trionsq.storage.log.peek import LogPart
from trionsq.storage.log.reading import Place, segment_at
from trionsq.storage.log.rows import AddChannel, Change, UpdateTopic
from trionsq.storage.log.segmentfile import SegmentFile, open_segment
from trionsq.storage.log.segments import Damage, HeadReader, read_records
from trionsq.storage.log.topiclog import TopicLog

__all__ = [
    "LogPosition",
    "WantedPosition",
    "begin_cursor",
    "find_place",
    "find_position",
    "first_kept",
    "parse_position",
    "rfc3339",
]

# A search in halves ends with a walk from record to record over so many bytes.
_WALK_BYTES: Final = 64 * 1024
_BLOCK_BYTES: Final = 16 * 1024

# More digits than a sequence has.
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?"
    # In a query a plus sign is a space, unless it is written %2B.
    r"(?:[Zz]|([-+ ])(\d\d):(\d\d))",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class WantedPosition:
    """Where somebody wants to begin: at a sequence, at a time in nanoseconds since 1970, or at the
    beginning or end of the log."""

    kind: Literal["beginning", "end", "sequence", "time"]
    value: int = 0


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where that is.

    Attributes:
        sequence: of the next message.
        time_ns: when that was published, in nanoseconds since 1970; None if there is none yet.
    """

    sequence: int
    time_ns: int | None = None


def parse_position(text: str) -> WantedPosition:
    """Return the position that ``text`` names: ``beginning``, ``end``, a sequence, or a time as RFC
    3339 writes it.

    Raises:
        ValueError: it is none of these.
    """
    if text == "beginning":
        return WantedPosition("beginning")
    if text == "end":
        return WantedPosition("end")
    if _DIGITS.fullmatch(text):
        return WantedPosition("sequence", int(text))
    return WantedPosition("time", _parse_time(text))


def _parse_time(text: str) -> int:
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise ValueError(f"no time of RFC 3339: {text[:64]!r}")
    day, time, fraction, sign, hours, minutes = match.groups()
    moment = datetime.fromisoformat(f"{day}T{time}+00:00")
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            raise ValueError(f"no offset of a time zone: {text[:64]!r}")
        offset_s = int(hours) * 3600 + int(minutes) * 60
        seconds += offset_s if sign == "-" else -offset_s
    return seconds * SECOND_NS + int((fraction or "0").ljust(9, "0"))


def rfc3339(time_ns: int) -> str:
    """Return a time in nanoseconds since 1970 as RFC 3339 writes it, in UTC."""
    seconds, rest_ns = divmod(time_ns, SECOND_NS)
    moment = _EPOCH + timedelta(seconds=seconds)
    fraction = f".{rest_ns:09}".rstrip("0") if rest_ns else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def first_kept(log: TopicLog) -> int:
    """Return the lowest sequence at which a channel may begin: from there on the log is whole."""
    return max(log.first, log.whole_from)


def begin_cursor(
    log: TopicLog, number: int, name: str, begin_at: int | None
) -> tuple[Cursor, list[Change]]:
    """Return the cursor of a new channel, and what the state has to know.

    ``begin_at``: a sequence; behind the topic's frontier if no channel waits for what it passes
    over. None: the frontier.
    """
    begin_at = log.frontier if begin_at is None else begin_at
    is_behind = begin_at > log.frontier
    if is_behind:
        # What no channel has had before stays in the log, for a seek.
        depth = log.safe_end - begin_at - log.count_gaps(begin_at, log.safe_end)
        log.dropped["emptied"] += log.depth - depth
        log.frontier, log.depth = begin_at, depth
    cursor = Cursor(log, number, name, begin_at, log.frontier)
    cursor.replay_end = log.frontier
    log.cursors[number] = cursor
    changes: list[Change] = [AddChannel(cursor.row(log.number))]
    if is_behind:
        changes.append(UpdateTopic(log.row()))
    return cursor, changes


def find_position(part: LogPart, wanted: WantedPosition, first: int, end: int) -> LogPosition:
    """Return where a wanted position is among the messages from ``first`` up to ``end``.

    A time is the first message that was published then or later.

    Raises:
        FileNotFoundError: a segment is gone, and so ``first`` is a higher one now.
        OSError: the files cannot be read.
    """
    sequence = first
    match wanted.kind:
        case "end":
            return LogPosition(end)
        case "sequence":
            sequence = max(first, wanted.value)
        case "time":
            sequence = max(first, _sequence_at(part, wanted.value, end))
    while sequence < end:
        gap_end = part.gaps.end_at(sequence)
        if gap_end is not None:
            sequence = gap_end
            continue
        found = _message_from(part, sequence)
        if found is None or found.sequence >= end:
            break
        if part.gaps.end_at(found.sequence) is None:
            return found
        sequence = found.sequence
    return LogPosition(end)


def find_place(part: LogPart, segment: SegmentFile, sequence: int) -> Place:
    """Return the place of the record of a segment that has a sequence, or the next one.

    Raises:
        OSError: the file cannot be read.
    """
    if sequence <= segment.first:
        return segment, SEGMENT_HEADER_BYTES, segment.first
    with _opened(part, segment) as file:
        before, head = _search(file, segment, lambda one: one.next_sequence > sequence)
    if head is not None:
        known = segment.first if before is None else before.next_sequence
        return segment, head.offset, known
    return segment, segment.end, sequence


def _sequence_at(part: LogPart, time_ns: int, end: int) -> int:
    segments = part.segments
    # What older segments have was published when the next one was made, at the latest.
    made = [at for at, one in enumerate(segments) if one.header.created_ns < time_ns]
    for segment in segments[max(made, default=0) :]:
        with _opened(part, segment) as file:
            before, head = _search(file, segment, lambda one: one.timestamp_ns >= time_ns)
            # A record has the time of its first message; others may be later.
            if before is not None and before.flags & STAMPS_IN_SECTION:
                for place, stamp_ns in enumerate(_stamps(file, segment, before)):
                    if stamp_ns >= time_ns:
                        return before.sequence + place
        if head is not None:
            return head.sequence
    return end


def _message_from(part: LogPart, sequence: int) -> LogPosition | None:
    """Return the message with a sequence, or the next one; None if there is none."""
    for segment in part.segments[max(segment_at(part.segments, sequence), 0) :]:
        with _opened(part, segment) as file:
            _, head = _search(file, segment, lambda one: one.next_sequence > sequence)
            if head is not None:
                found = max(sequence, head.sequence)
                stamps = _stamps(file, segment, head)
                return LogPosition(found, stamps[found - head.sequence])
    return None


def _search(
    file: ReadableFile, segment: SegmentFile, is_behind: Callable[[RecordHead], bool]
) -> tuple[RecordHead | None, RecordHead | None]:
    """Return the last record that is not behind a place, and the first one that is.

    ``is_behind`` says so of each; it is true of all records behind the first one.
    """
    reader = HeadReader(file, segment.header, SEGMENT_HEADER_BYTES, segment.end, _BLOCK_BYTES)
    before: RecordHead | None = None
    found: RecordHead | None = None
    low, high = SEGMENT_HEADER_BYTES, reader.limit
    while high - low > _WALK_BYTES:
        middle = (low + high) // 2
        head = reader.find(middle, segment.first)
        if head is not None and head.offset < high and not is_behind(head):
            before, low = head, head.end
            continue
        if head is not None and head.offset < high:
            found = head
        high = middle  # no other record begins behind it
    sequence = segment.first if before is None else before.next_sequence
    while low < high:
        head = reader.head_at(low, sequence) or reader.find(low + 1, sequence)
        if head is None or head.offset >= high:
            break
        if is_behind(head):
            return before, head
        before, low, sequence = head, head.end, head.next_sequence
    return before, found


def _stamps(file: ReadableFile, segment: SegmentFile, head: RecordHead) -> Sequence[int]:
    """Return when each message of a record was published."""
    if head.flags & STAMPS_IN_SECTION:
        [entry] = read_records(file, segment.header, head.offset, 1, end=head.end)
        if not isinstance(entry, Damage):
            stamps = (entry[1].stamp(place) for place in range(head.count))
            return [int.from_bytes(stamp, signed=True) for stamp in stamps]
    return [head.timestamp_ns] * head.count


@contextmanager
def _opened(part: LogPart, segment: SegmentFile) -> Iterator[ReadableFile]:
    file = open_segment(part.disk, segment)
    try:
        yield file
    finally:
        close_quietly(file)
