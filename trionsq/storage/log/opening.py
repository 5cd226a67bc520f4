"""What a start finds: the state, and the segments that it knows nothing of yet.

Blocks: for a job, before the broker serves.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from trionsq.core.keys import PublishKey, StoredKey
from trionsq.disk import Disk, DiskFile, close_quietly, read_pieces, replace_file
from trionsq.storage.log.aims import aimed_channel
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.damage import DamagedPlace
from trionsq.storage.log.format import (
    SEGMENT_HEADER_BYTES,
    FormatError,
    RecordHead,
    SegmentHeader,
    UnsupportedError,
)
from trionsq.storage.log.names import draft_name, is_draft_name, parse_segment_name, segment_name
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.origins import is_void
from trionsq.storage.log.ranges import (
    Gaps,
    HeldRange,
    SequenceSet,
    pack_open,
    unpack_open,
    unpack_replay,
)
from trionsq.storage.log.replay import replay_journals
from trionsq.storage.log.rows import (
    Change,
    ForgetTopic,
    StateContent,
    StateError,
    StoredChannel,
    StoredHeld,
    StoredTopic,
    UpdateChannel,
    UpdateTopic,
)
from trionsq.storage.log.segmentfile import SegmentFile, write_again
from trionsq.storage.log.segments import read_header, scan_segment
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["FoundLog", "open_logs"]

log = logging.getLogger("trionsq")

_MS_NS: Final = 1_000_000


@dataclass(slots=True)
class FoundLog:
    """A topic that the state names.

    Attributes:
        log: of the topic.
        channels: the cursors of its channels.
        last_id: of the last message; 0 if there is none.
    """

    log: TopicLog
    channels: list[Cursor] = field(default_factory=list)
    last_id: int = 0


@dataclass(slots=True)
class _Tail:
    """What a scan found behind the positions of the state.

    Attributes:
        end: the sequence behind the last record.
        void: sequences of copies from disk queues that do not count, and of rounds that failed.
        deferred: heads of deferred records.
        keyed: sequences and keys of the newest idempotent publishes; so many as are kept.
        aimed: heads of records that are for one channel alone.
        last_id: of the last message.
        last: sequence and offset of the last record.
    """

    max_keys: int
    stored_end: int
    end: int = 0
    void: Gaps = field(default_factory=Gaps)
    deferred: list[RecordHead] = field(default_factory=list)
    keyed: list[tuple[int, StoredKey]] = field(default_factory=list)
    aimed: list[RecordHead] = field(default_factory=list)
    last_id: int = 0
    last: tuple[int, int] | None = None

    def note_segment(self, heads: Iterable[RecordHead], scan_from: int) -> None:
        """Note the records of a segment; those of newer ones are noted already."""
        keyed = deque[tuple[int, StoredKey]](maxlen=max(0, self.max_keys - len(self.keyed)))
        for head in heads:
            self._note_record(head, scan_from)
            if is_void(head, self.stored_end):
                self.void.add(head.sequence, head.next_sequence)
            elif aimed_channel(head.key) is not None:
                self.aimed.append(head)
            elif head.key is not None:
                key = PublishKey(head.key, head.digest or b"")
                keyed.append((head.sequence, StoredKey(key, head.timestamp_ns)))
        self.keyed += keyed

    def _note_record(self, head: RecordHead, scan_from: int) -> None:
        """Note a record; those that were deferred before ``scan_from`` are in the state."""
        self.end = max(self.end, head.next_sequence)
        if self.last is None or self.last[0] < head.sequence:
            self.last = head.sequence, head.offset
        if head.defer_ms and head.next_sequence > scan_from:
            self.deferred.append(head)
        if head.ids:
            first, count = head.ids[-1]
            self.last_id = max(self.last_id, first + count - 1)


def open_logs(node: LogNode, content: StateContent) -> list[FoundLog]:
    """Make the logs that the state names, and remove what it has deleted.

    Raises:
        StateError: a later release wrote a segment, or a journal.
        OSError: a file cannot be read, or a journal cannot be replayed.
    """
    disk = node.disk
    # What the journals have belongs to the segments, before anything is read of these.
    for place in replay_journals(disk):
        node.damaged.report_place(place)
    files = _list_segments(disk)
    node.next_number = max(
        [
            content.next_number,
            *(number + 1 for number in files),
            *(n + 1 for n in content.tombstones),
        ]
    )
    node.keys.load(content.meta)
    channels: dict[int, list[StoredChannel]] = defaultdict(list)
    for channel in content.channels:
        channels[channel.topic].append(channel)
    held: dict[int, list[StoredHeld]] = defaultdict(list)
    for row in content.held:
        held[row.channel].append(row)
    found = [
        _open_log(node, row, files.pop(row.number, []), channels[row.number], held)
        for row in content.topics
    ]
    for number in content.tombstones:
        _remove(disk, [name for _, name in files.pop(number, [])])
    if found or content.tombstones:
        # A kill may have come between the naming of a segment, or the removal of one, and the fsync
        # of that.
        disk.sync_folder()
    if content.tombstones:
        node.commit([ForgetTopic(number) for number in content.tombstones])
    for number, names in files.items():
        log.warning(
            "LOG: %d files of log %d belong to no topic of the state, and stay (nsq_log adopt): %s",
            len(names),
            number,
            names[0][1],
        )
    return found


def _list_segments(disk: Disk) -> dict[int, list[tuple[int, str]]]:
    """Return first sequences and names of the segments by incarnation; remove drafts."""
    files: dict[int, list[tuple[int, str]]] = defaultdict(list)
    names = disk.names()
    _remove(disk, [name for name in names if is_draft_name(name)])
    for name in names:
        parsed = parse_segment_name(name)
        if parsed is not None:
            _, number, first = parsed
            files[number].append((first, name))
    for segments in files.values():
        segments.sort()
    return files


def _remove(disk: Disk, names: Sequence[str]) -> None:
    """Remove files. The fsync at the end of `open_logs` makes that last."""
    for name in names:
        with suppress(FileNotFoundError):
            disk.unlink(name)


def _open_log(
    node: LogNode,
    row: StoredTopic,
    files: list[tuple[int, str]],
    channels: list[StoredChannel],
    held: dict[int, list[StoredHeld]],
) -> FoundLog:
    segments = _chain(node, row, files)
    frontiers = [channel.frontier for channel in channels]
    scan_from = min([row.end if row.frontier is None else row.frontier, *frontiers])
    tail = _Tail(node.keys.max_keys, row.end)
    _scan_tail(node, tail, segments, scan_from, row.scan)
    # An unreadable file keeps its name, too.
    known = {segment.first for segment in segments}
    unreadable = [first + 1 for first, _ in files if first not in known]
    nexts = [channel.next for channel in channels]
    end = max([tail.end, row.end, *frontiers, *nexts, *unreadable])
    while segments and segments[-1].first == end:
        segments.pop()  # it has no message, and the next segment takes its name
    last = segments[-1] if segments else None
    topic_log = TopicLog(
        node,
        row.number,
        row.name,
        row.durability,
        node.new_writer(row.name, row.number, last),
        segments,
        end,
    )
    known_gaps, topic_log.gaps = Gaps(row.gaps), Gaps(row.gaps)
    topic_log.first = row.first
    topic_log.gaps.add(max(tail.end, row.first), end)
    for first, behind in tail.void:
        topic_log.gaps.add(first, behind)
    is_standing = row.frontier is not None and (row.paused or not channels)
    topic_log.frontier = min(row.frontier, end) if is_standing and row.frontier is not None else end
    topic_log.depth = end - topic_log.frontier - topic_log.count_gaps(topic_log.frontier, end)
    node.add_log(topic_log)
    for head in tail.aimed:
        if (aimed := aimed_channel(head.key)) is not None:
            topic_log.aims.add(head.sequence, head.next_sequence, aimed)
    found = FoundLog(topic_log, last_id=tail.last_id)
    changes: list[Change] = []
    for channel in channels:
        stored = held[channel.number]
        cursor = _open_cursor(topic_log, channel, stored, tail, known_gaps, changes)
        cursor.is_paused = channel.paused
        topic_log.cursors[channel.number] = cursor
        found.channels.append(cursor)
    topic_log.is_paused = row.paused
    for _, key in sorted(tail.keyed):
        node.keys.add_found(row.number, key)
    # Channels have their old positions in the state until the next snapshot.
    changes.append(UpdateTopic(replace(topic_log.row(), scan=row.scan)))
    node.commit(changes)
    return found


def _open_cursor(
    topic_log: TopicLog,
    row: StoredChannel,
    held: list[StoredHeld],
    tail: _Tail,
    known_gaps: Gaps,
    changes: list[Change],
) -> Cursor:
    """Make the cursor of a channel; ``changes`` gets what the state has to know."""
    frontier = max(topic_log.frontier, row.frontier)
    cursor = Cursor(topic_log, row.number, row.name, min(row.next, frontier), frontier)
    opened, skipped = unpack_open(row.open)
    lost = topic_log.count_gaps(row.next, row.frontier) - known_gaps.count(row.next, row.frontier)
    if lost and skipped:
        # They are gaps now, at the end, or before what was published behind them since: then an
        # earlier start has not committed that. The topic's row will have them.
        skipped = max(0, skipped - lost)
        packed = pack_open(opened, skipped, unpack_replay(row.open))
        changes.append(UpdateChannel(replace(row, open=packed)))
    cursor.held.load(held, row.fired_ns, SequenceSet(opened))
    for head in tail.deferred:
        first, end = max(head.sequence, row.frontier), min(head.next_sequence, frontier)
        if first < end and topic_log.gap_end(first) is None:
            due_ns = head.timestamp_ns + head.defer_ms * _MS_NS
            if topic_log.is_for(first, row.name):
                cursor.held.add_range(HeldRange(due_ns, first, end - first, 0))
            skipped += end - first
    cursor.load(opened, skipped)
    cursor.replay_end = unpack_replay(row.open)
    return cursor


def _chain(node: LogNode, row: StoredTopic, files: list[tuple[int, str]]) -> list[SegmentFile]:
    """Return the segments that count, in order: each names the one before it, and its end."""
    headers, unreadable = _read_headers(node.disk, files)
    segments: list[SegmentFile] = []
    wanted, end = max(headers, default=None), None
    while wanted is not None:
        if wanted in headers:
            name, header, size = headers.pop(wanted)
            size = size if end is None else min(end, size)
            segments.append(SegmentFile(name, header, size, None))
            wanted, end = header.previous_first, header.previous_end
        elif wanted < row.first:
            break  # it was finished
        else:
            text = f"the log of {row.name} lacks the segment that begins at {wanted}"
            text = unreadable.get(wanted, text)
            name = segment_name(row.name, row.number, wanted)
            node.damaged.report_place(DamagedPlace(row.name, name, 0, text))
            # What is older is read all the same.
            wanted, end = max([first for first in headers if first < wanted], default=None), None
    segments.reverse()
    # Of rounds that were refused, and what was left before the last stop.
    unneeded = [name for name, _, _ in headers.values()]
    while len(segments) > 1 and segments[1].first <= row.first:
        unneeded.append(segments.pop(0).name)
    _name_again(node.disk, segments, headers)
    _remove(node.disk, unneeded)
    return segments


def _name_again(disk: Disk, segments: list[SegmentFile], unneeded: Iterable[int]) -> None:
    """Make sure that remainders keep their names before what they were made of goes.

    An fsync of the folder may have failed before a kill, and then no later one proves anything.
    """
    for segment in segments:
        if any(segment.first <= first < segment.named_first for first in unneeded):
            file = disk.open(segment.name)
            try:
                pieces = read_pieces(file)
                replace_file(disk, segment.name, pieces, draft=draft_name(segment.name))
            finally:
                close_quietly(file)


def _read_headers(
    disk: Disk, files: list[tuple[int, str]]
) -> tuple[dict[int, tuple[str, SegmentHeader, int]], dict[int, str]]:
    """Return name, header and size of segments, and what is wrong with others."""
    headers: dict[int, tuple[str, SegmentHeader, int]] = {}
    unreadable: dict[int, str] = {}
    for first, name in files:
        file = disk.open(name)
        try:
            headers[first] = (name, _read_header(file, name), file.size())
        except FormatError as error:
            # Perhaps a crash left it; if not, the next segment names it.
            unreadable[first] = f"{name}: {error}"
        finally:
            close_quietly(file)
    return headers, unreadable


def _read_header(file: DiskFile, name: str) -> SegmentHeader:
    try:
        return read_header(file)
    except UnsupportedError as error:
        raise StateError(f"{name}: {error}") from error


def _scan_tail(
    node: LogNode,
    tail: _Tail,
    segments: list[SegmentFile],
    scan_from: int,
    place: tuple[int, int, int] | None,
) -> None:
    """Scan what was written since the state was saved, and cut what is torn."""
    for at in reversed(range(len(segments))):
        is_needed = at + 1 == len(segments) or segments[at + 1].first > scan_from
        # A key that was not durable yet may be in the segment that was the newest then.
        is_needed |= place is not None and place[0] == segments[at].first
        if not is_needed and tail.last_id:
            break
        segment = segments[at]
        tail.end = max(tail.end, segment.first)
        start, known = SEGMENT_HEADER_BYTES, segment.first
        if place is not None and place[0] == segment.first and place[2] <= scan_from:
            start, known = min(place[1], segment.end), place[2]
            tail.end = max(tail.end, known)
        file = node.disk.open(segment.name)
        try:
            scan = scan_segment(file, segment.header, start, end=segment.end, check_bodies=True)
            tail.note_segment(scan.records, scan_from)
            if at + 1 == len(segments):
                # Of the others the next one says where they end: what is bad there is damage.
                segment.end, segment.last = scan.end, tail.last
                if not write_again(file, start, scan.end):
                    log.warning("LOG: %s: no space to write its end again", segment.name)
            elif (
                not (scan.damage or scan.torn)
                and segments[at + 1].header.previous_end == segment.end
                and segment.first == segment.named_first  # of a remainder others know the gaps
            ):
                behind = scan.next_sequence
                # Nobody was told of what is missing up to the next one.
                tail.void.add(known if behind is None else behind, segments[at + 1].first)
        except UnsupportedError as error:
            raise StateError(f"{segment.name}: {error}") from error
        finally:
            close_quietly(file)
    tail.deferred.sort(key=lambda head: head.sequence)
