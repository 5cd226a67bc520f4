"""The command adopt of nsq_log: logs that the state does not name become topics of a data path.

For a state that was lost, or restored from before a topic was made. All messages of such a log are
to come, since nobody knows what was finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from trionsq.disk import FolderLock, FolderLockError, RealDisk
from trionsq.storage.log.metadata_mark import distrust_metadata
from trionsq.storage.log.ranges import Gaps
from trionsq.storage.log.rows import AddTopic, StateError, StoredTopic
from trionsq.storage.log.state import SqliteState
from trionsq.tools.nsq_log_folder import UNREADABLE, LogFolder, TopicSegments
from trionsq.tools.nsq_log_verify import stretch

__all__ = ["adopt"]


@dataclass(slots=True)
class _Adopted:
    """A log that becomes a topic: what is in it."""

    topic: str
    incarnation: int
    segments: int
    messages: int
    first: int
    last: int


def adopt(log: LogFolder) -> None:
    """Enter the logs that nobody knows into the state, which is made if there is none."""
    if log.code == UNREADABLE:  # of the state, which is there
        log.remark("move the state away to have it made again; that forgets all positions")
        return
    try:
        with FolderLock(log.path):
            if not log.in_use:
                _adopt_all(log)
                return
    except FolderLockError:
        pass
    log.remark("nothing was adopted: stop nsqd before")
    log.code = UNREADABLE


def _adopt_all(log: LogFolder) -> None:
    rows: dict[int, StoredTopic] = {}
    adopted = log.output.document["adopted"] = list[dict[str, object]]()
    known = {row.number: row.name for row in log.state.topics} if log.state else {}
    tombstones = log.state.tombstones if log.state else {}
    # The newest incarnation of each name first.
    for topic in sorted(log.topics, key=lambda one: -one.incarnation):
        if topic.incarnation in known or topic.incarnation in tombstones:
            continue
        taken = known | {number: row.name for number, row in rows.items()}
        found = _look_at(log, topic, taken, rows)
        if found is not None:
            adopted.append(asdict(found))
            log.output.line(
                f"{found.topic} incarnation {found.incarnation}: {found.segments} segments,"
                f" {found.messages} messages, sequences {found.first} to {found.last}"
            )
    if rows:
        _write(log, list(rows.values()))
    else:
        log.output.line("all logs are known")


def _look_at(
    log: LogFolder, topic: TopicSegments, taken: Mapping[int, str], rows: dict[int, StoredTopic]
) -> _Adopted | None:
    """Make the row of a log; None if it cannot become a topic."""
    name, number = topic.topic, topic.incarnation
    what = f"{name} incarnation {number}"
    for other, used in taken.items():
        if used == name:
            log.damaged(
                f"{what} stays: incarnation {other} is the topic of this name; adopt it in an"
                " empty folder"
            )
            return None
    found, gaps = _Adopted(name, number, len(topic.segments), 0, -1, -1), Gaps()
    for segment in topic.segments:
        if segment.fault:
            log.damaged(f"{segment.name}: {segment.fault}")
        for scan, _, head in log.records(segment, check_bodies=True):
            if head is None:
                for one in scan.damage:
                    log.damaged(f"{segment.name}: {stretch('damage', one)}")
                continue
            if found.first < 0:
                found.first = head.sequence
            else:
                gaps.add(found.last + 1, head.sequence)
            found.messages += head.count
            found.last = head.next_sequence - 1
    if not found.messages:
        log.remark(f"{what} has no message")
        return None
    rows[number] = StoredTopic(
        number=number,
        name=name,
        durability="always",
        paused=False,
        frontier=found.first,
        first=found.first,
        end=found.last + 1,
        gaps=tuple(gaps),
    )
    return found


def _write(log: LogFolder, rows: list[StoredTopic]) -> None:
    try:
        state = SqliteState(RealDisk(log.path))
        try:
            # The channels of the topics are in nsqd.dat, if anywhere.
            state.apply([*map(AddTopic, rows), distrust_metadata()])
        finally:
            state.close()
    except StateError as error:
        log.remark(str(error))
        log.code = UNREADABLE
