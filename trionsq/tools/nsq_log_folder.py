"""The segments and the state in a data path, for nsq_log to read."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby
from tempfile import TemporaryDirectory
from typing import Final

from trionsq.disk import DiskFile, FolderLock, FolderLockError, RealDisk, close_quietly
from trionsq.storage.log.format import (
    SEGMENT_HEADER_BYTES,
    FormatError,
    RecordHead,
    SegmentHeader,
    UnsupportedError,
)
from trionsq.storage.log.names import parse_segment_name
from trionsq.storage.log.ranges import held_from_bytes, unpack_held
from trionsq.storage.log.rows import StateContent, StateError, StoredChannel
from trionsq.storage.log.segments import Scan, read_header, scan_segment
from trionsq.storage.log.state import STATE_FILE, WAL_FILE
from trionsq.storage.log.tables import StateTables
from trionsq.tools.nsq_log_journal import Journaled
from trionsq.tools.nsq_log_output import LogOutput

__all__ = [
    "DAMAGED",
    "GOOD",
    "UNREADABLE",
    "LogFolder",
    "LogSegment",
    "TopicSegments",
    "held_count",
]

# Exit codes.
GOOD: Final = 0
DAMAGED: Final = 1
UNREADABLE: Final = 2


@dataclass(slots=True)
class LogSegment:
    """A segment file, and what its header says.

    Attributes:
        name: of the file.
        topic, incarnation, first: as the name says.
        nbytes: size of the file.
        header: None if it cannot be read.
        fault: why the segment, or a copy of its header, cannot be read; empty if all is right.
        end: where the next segment says that this one ends; None: it does not.
    """

    name: str
    topic: str
    incarnation: int
    first: int
    nbytes: int = 0
    header: SegmentHeader | None = None
    fault: str = ""
    end: int | None = None


@dataclass(frozen=True, slots=True)
class TopicSegments:
    """The segments of one incarnation of a topic.

    Attributes:
        topic, incarnation: as the names of the files say.
        segments: the log, in order, and unreadable files that may belong to it.
        others: files that do not: no later segment names them as the one before it.
    """

    topic: str
    incarnation: int
    segments: list[LogSegment]
    others: list[LogSegment]


class LogFolder:
    """A data path, for one command.

    Attributes:
        path: of the folder.
        output: what is printed.
        topics: the segments that can be read.
        state: None if there is none, or it cannot be read now.
        in_use: whether an nsqd had it, so that not all was read.
        code: the exit code so far.
    """

    def __init__(self, path: str, topic: str, output: LogOutput) -> None:
        """``topic``: read no other one; empty: read all.

        Raises:
            UnsupportedError, OSError: see `topics_in`.
        """
        self.path = path
        self.output = output
        self.code = GOOD
        self.state: StateContent | None = None
        self._journals: Journaled | None = None
        in_use = self.in_use = is_in_use(path)
        self.topics = [
            one for one in topics_in(path, closed_only=in_use) if topic in ("", one.topic)
        ]
        if in_use:
            self.remark("nsqd runs: the last segment of each topic and the state are not read")
            return
        self._journals = Journaled(path)
        for line in self._journals.damaged:
            self.damaged(line)
        for line in self._journals.remarks:
            self.remark(line)
        try:
            self.state = read_state(path)
        except StateError as error:
            self.remark(str(error))
            self.code = UNREADABLE

    def remark(self, text: str) -> None:
        """Write a line to stderr."""
        self.output.remark(text)

    def damaged(self, text: str) -> None:
        """Write a line about damage to stderr, and note it for the exit code."""
        self.remark(text)
        self.note_damage()

    def note_damage(self) -> None:
        """End with the exit code for damage, if not with a worse one."""
        self.code = max(self.code, DAMAGED)

    def records(
        self, segment: LogSegment, *, check_bodies: bool
    ) -> Iterator[tuple[Scan, DiskFile, RecordHead | None]]:
        """Yield each good head of a segment, and None at the end; with the scan and the file.

        Yields nothing if the segment's header cannot be read.

        Raises:
            UnsupportedError: a later release wrote one of the records; the text names the file.
            OSError: the file cannot be read.
        """
        if segment.header is None:
            return
        file: DiskFile = RealDisk(self.path, open_flags=os.O_RDONLY).open(segment.name)
        if self._journals is not None:
            salt = segment.header.salt
            file = self._journals.open(file, segment.incarnation, segment.first, salt)
        try:
            scan = scan_segment(file, segment.header, end=segment.end, check_bodies=check_bodies)
            for head in scan.records:
                yield scan, file, head
            yield scan, file, None
        except UnsupportedError as error:
            raise UnsupportedError(f"{segment.name}: {error}") from error
        finally:
            close_quietly(file)


def is_in_use(path: str) -> bool:
    """Return whether an nsqd has the data path. It is not kept from starting after this.

    Raises:
        OSError: the folder cannot be opened.
    """
    try:
        FolderLock(path).release()
    except FolderLockError:
        return True
    return False


def topics_in(path: str, *, closed_only: bool) -> list[TopicSegments]:
    """Return the segments in a data path, by topic and incarnation.

    ``closed_only`` leaves out the last one of each, which an nsqd may be writing, and files that
    are removed meanwhile.

    Raises:
        UnsupportedError: a later release wrote one of them; the text names it.
        OSError: the folder or a file cannot be read.
    """
    places = [(name, parse_segment_name(name)) for name in os.listdir(path)]
    found = [LogSegment(name, *place) for name, place in places if place]
    found.sort(key=_order)
    topics = []
    for (topic, incarnation), group in groupby(found, key=lambda it: (it.topic, it.incarnation)):
        one = _chained(topic, incarnation, list(_with_headers(path, group, closed_only)))
        if closed_only:
            del one.segments[-1:]
            one.others.clear()
        if one.segments or one.others:
            topics.append(one)
    return topics


def _chained(topic: str, incarnation: int, segments: list[LogSegment]) -> TopicSegments:
    """Follow the segments as nsqd does, from the last one back: each names the one before it."""
    readable = {it.first: it for it in segments if it.header is not None}
    chain = []
    # The first sequences of segments that are named, and are not readable.
    lacking = set()
    wanted, end = max(readable, default=None), None
    while wanted is not None:
        segment = readable.pop(wanted, None)
        if segment is None:
            # Missing or unreadable: those before it are read all the same.
            lacking.add(wanted)
            wanted = max((first for first in readable if first < wanted), default=None)
            end = None
            continue
        assert segment.header is not None
        segment.end = None if segment.header.is_remainder else end
        chain.append(segment)
        wanted, end = segment.header.previous_first, segment.header.previous_end
    others = list(readable.values())
    for segment in segments:
        if segment.header is None:
            is_empty = segment.nbytes <= SEGMENT_HEADER_BYTES and segment.first not in lacking
            (others if is_empty else chain).append(segment)
    return TopicSegments(topic, incarnation, sorted(chain, key=_order), sorted(others, key=_order))


def _order(segment: LogSegment) -> tuple[str, int, int]:
    return segment.topic, segment.incarnation, segment.first


def _with_headers(
    path: str, segments: Iterable[LogSegment], closed_only: bool
) -> Iterator[LogSegment]:
    disk = RealDisk(path, open_flags=os.O_RDONLY)
    for segment in segments:
        try:
            file = disk.open(segment.name)
        except FileNotFoundError:
            if closed_only:
                continue
            raise
        try:
            _read_header(segment, file)
        finally:
            close_quietly(file)
        yield segment


def _read_header(segment: LogSegment, file: DiskFile) -> None:
    segment.nbytes = file.size()
    try:
        header = read_header(file)
    except UnsupportedError as error:
        raise UnsupportedError(f"{segment.name}: {error}") from error
    except FormatError as error:
        segment.fault = f"unreadable: {error}"
        return
    # A remainder has the name of the last segment that it was made of, and begins as the first.
    is_named = header.first_sequence == segment.first or (
        header.is_remainder and header.first_sequence < segment.first
    )
    if header.incarnation != segment.incarnation or not is_named:
        segment.fault = (
            f"unreadable: the header is that of incarnation {header.incarnation},"
            f" first sequence {header.first_sequence}"
        )
        return
    segment.header = header
    if len(SegmentHeader.good_copies(file.read(SEGMENT_HEADER_BYTES, 0))) < 2:
        segment.fault = "damage at 0 to 128: one of the two copies of the header; the other is good"


# A copy: the file belongs to nsqd, and what it committed last may be in the WAL.
_STATE_FILES: Final = (STATE_FILE, WAL_FILE)


def read_state(path: str) -> StateContent | None:
    """Return the state in a data path that no nsqd has; None if there is none.

    Raises:
        StateError: it cannot be read.
    """
    if not os.path.exists(os.path.join(path, STATE_FILE)):
        return None
    try:
        with TemporaryDirectory(prefix="nsq_log.") as copies:
            for name in _STATE_FILES:
                with suppress(FileNotFoundError):
                    shutil.copyfile(os.path.join(path, name), os.path.join(copies, name))
            with closing(sqlite3.connect(os.path.join(copies, STATE_FILE))) as connection:
                tables = StateTables(connection)
                if fault := tables.fault():
                    raise StateError(f"{STATE_FILE} {fault}")
                return tables.load()
    except (OSError, sqlite3.Error) as error:
        raise StateError(f"{STATE_FILE}: {error}") from error


def held_count(state: StateContent, channel: StoredChannel) -> int:
    """Return how many deferred messages a channel has."""
    count = 0
    for row in state.held:
        if row.channel == channel.number:
            packed = held_from_bytes(row.data)
            held = (unpack_held(packed, at) for at in range(len(packed) // 3))
            count += sum(one.count for one in held if one.due_ns > channel.fired_ns)
    return count
