"""The command verify of nsq_log: all CRCs, and the order of records and segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from trionsq.storage.log.format import RecordHead
from trionsq.storage.log.rows import StateContent
from trionsq.storage.log.segments import Damage, Scan
from trionsq.tools.nsq_log_folder import LogFolder, LogSegment, TopicSegments

__all__ = ["stretch", "verify"]


@dataclass(slots=True)
class _Found:
    """What verify counted."""

    segments: int = 0
    records: int = 0
    messages: int = 0
    damage: int = 0


def verify(log: LogFolder) -> None:
    """Check all, and print a line for each damage, torn end and gap, and one with the sums."""
    sums = _Found()
    for topic in log.topics:
        _verify_topic(log, topic, sums)
    log.output.document = asdict(sums)
    log.output.line(
        f"{sums.segments} segments, {sums.records} records, {sums.messages} messages:"
        f" {sums.damage} damaged"
    )


def _verify_topic(log: LogFolder, topic: TopicSegments, sums: _Found) -> None:
    known: tuple[tuple[int, int], ...] = ()
    wanted: int | None = None
    firsts = [segment.first for segment in topic.segments]
    # The sequence that should come next; None if that is not known.
    expected: int | None = None
    if log.state is not None:
        for line in _places(log.state, topic):
            log.output.finding((topic.segments or topic.others)[0].name, line)
        for row in log.state.topics:
            if row.number == topic.incarnation:
                known, wanted = row.gaps, row.first
    for other in topic.others:
        text = "not of the log: no later segment names it as the one before it"
        log.output.finding(other.name, text)
    for segment in topic.segments:
        sums.segments += 1
        faults = list(_missing(segment, firsts, wanted))
        if faults or segment.header is None:
            expected = None
        is_remainder = segment.header is not None and segment.header.is_remainder
        if segment.fault:
            faults.append(segment.fault)
        for scan, _, head in log.records(segment, check_bodies=True):
            if head is None:
                faults += _faults_of(log, segment, scan)
                expected = None if is_remainder else scan.next_sequence
                continue
            is_behind_damage = scan.damage and scan.damage[-1].end == head.offset
            if is_remainder:
                pass  # it leaves out what nobody needs
            elif expected is not None and head.sequence > expected and not is_behind_damage:
                _note_gap(log, segment, expected, head, known)
            if expected is not None and head.sequence < expected:
                faults.append(f"its first sequence {head.sequence} is below {expected}")
            sums.records += 1
            sums.messages += head.count
            expected = head.next_sequence
        for fault in faults:
            log.output.finding(segment.name, fault)
            log.note_damage()
        sums.damage += len(faults)


def _missing(segment: LogSegment, firsts: Sequence[int], wanted: int | None) -> Iterator[str]:
    """Yield whether the segment before this one is missing: nsqd removes only the oldest ones.

    ``firsts`` are the first sequences of all; ``wanted`` is the first that the state needs.
    """
    previous = None if segment.header is None else segment.header.previous_first
    if previous is None or previous in firsts:
        return
    if previous > firsts[0] or (wanted is not None and wanted < segment.first):
        yield f"the segment before it, from sequence {previous} on, is missing"


def _faults_of(log: LogFolder, segment: LogSegment, scan: Scan) -> list[str]:
    faults = [stretch("damage", one) for one in scan.damage]
    if scan.torn is not None:
        if segment.end is None:
            log.output.finding(segment.name, stretch("torn end", scan.torn))
        else:
            faults.append(stretch("damage", scan.torn))
    if segment.end is not None and scan.limit < segment.end:
        faults.append(f"ends at {scan.limit}; the next segment says at {segment.end}")
    return faults


def stretch(what: str, damage: Damage) -> str:
    """Return where damage is, and what it may have cost."""
    text = f"{what} at {damage.offset} to {damage.end}"
    if damage.sequence is None or damage.next_sequence is None:
        begin = "unknown" if damage.sequence is None else f"from {damage.sequence}"
        return f"{text}: sequences {begin}"
    if damage.next_sequence == damage.sequence:
        return f"{text}: no sequences"
    return f"{text}: sequences {damage.sequence} to {damage.next_sequence - 1}"


def _note_gap(
    log: LogFolder,
    segment: LogSegment,
    expected: int,
    head: RecordHead,
    known: Sequence[tuple[int, int]],
) -> None:
    if not any(first <= expected and head.sequence <= end for first, end in known):
        text = f"gap at {head.offset}: no sequences {expected} to {head.sequence - 1}"
        log.output.finding(segment.name, text)


def _places(state: StateContent, topic: TopicSegments) -> Iterator[str]:
    """Yield what the state says about a topic whose files are there, if that is unusual."""
    names = {row.number: row.name for row in state.topics}
    if topic.incarnation in state.tombstones:
        yield "the topic is deleted; nsqd removes its files at its next start"
    elif topic.incarnation not in names:
        yield "the state knows no such topic; nsqd keeps the files; nsq_log adopt makes it a topic"
    elif names[topic.incarnation] != topic.topic:
        yield f"the state calls the topic {names[topic.incarnation]}"
