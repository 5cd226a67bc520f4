"""The tool nsq_log: checks, counts, prints, adopts, backs up and restores the logs of a data path.

`docs/log-format.md` has the bytes that it reads.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

from trionsq import durations
from trionsq.core.batch import MessageBatch
from trionsq.storage.log.batches import parse_batch
from trionsq.storage.log.format import FormatError, RecordHead, UnsupportedError
from trionsq.storage.log.ranges import unpack_open
from trionsq.storage.log.rows import StateContent
from trionsq.tools.common import exit_with_usage, read_options
from trionsq.tools.nsq_log_adopt import adopt
from trionsq.tools.nsq_log_backup import backup, restore
from trionsq.tools.nsq_log_folder import (
    GOOD,
    UNREADABLE,
    LogFolder,
    LogSegment,
    TopicSegments,
    held_count,
)
from trionsq.tools.nsq_log_output import LogOutput, NsqLogOptions
from trionsq.tools.nsq_log_verify import stretch, verify

_TOOL: Final = "nsq_log"
_COMMANDS: Final = ("verify", "stat", "cat", "adopt")
_USAGE: Final = (
    f"{_TOOL} verify|stat|cat|adopt [flags] DATA_PATH\n"
    f"       {_TOOL} backup --nsqd-http-address=HOST:PORT NAME\n"
    f"       {_TOOL} restore BACKUP DATA_PATH"
)


# stat


@dataclass(slots=True)
class _Counts:
    """What stat counted for a topic."""

    nbytes: int = 0
    messages: int = 0
    first: RecordHead | None = None
    last: RecordHead | None = None


def _stat(log: LogFolder) -> None:
    """Print a row for each topic, and one for each of its channels if the state is there."""
    rows = {row.number: row for row in log.state.topics} if log.state else {}
    topics = log.output.document["topics"] = list[dict[str, Any]]()
    for topic in log.topics:
        counts = _count(log, topic)
        text = f"{topic.topic} incarnation {topic.incarnation}:"
        text += f" {len(topic.segments)} segments, {counts.nbytes} bytes"
        text += f", {counts.messages} messages"
        document: dict[str, Any] = {
            "topic": topic.topic,
            "incarnation": topic.incarnation,
            "segments": len(topic.segments),
            "bytes": counts.nbytes,
            "messages": counts.messages,
        }
        if counts.first is not None and counts.last is not None:
            first, last = counts.first.sequence, counts.last.next_sequence - 1
            begin, end = _time(counts.first.timestamp_ns), _time(counts.last.timestamp_ns)
            text += f", sequences {first} to {last}, {begin} to {end}"
            document |= {"first": first, "last": last, "begin": begin, "end": end}
        if topic.incarnation in rows:
            row = rows[topic.incarnation]
            text += f", durability {row.durability}" + (", paused" if row.paused else "")
            document |= {"durability": row.durability, "paused": row.paused}
        log.output.line(text)
        topics.append(document)
        if log.state is not None:
            document["channels"] = list(_stat_channels(log, log.state, topic))


def _stat_channels(
    log: LogFolder, state: StateContent, topic: TopicSegments
) -> Iterator[dict[str, Any]]:
    for channel in state.channels:
        if channel.topic != topic.incarnation:
            continue
        opened, skipped = unpack_open(channel.open)
        document = {
            "next": channel.next,
            "lag": channel.frontier - channel.next - skipped,
            "open": sum(one.count for one in opened),
            "held": held_count(state, channel),
        }
        text = ", ".join(f"{name} {value}" for name, value in document.items())
        log.output.line(f"  channel {channel.name}: {text}{', paused' if channel.paused else ''}")
        yield {"channel": channel.name, **document, "paused": channel.paused}


def _count(log: LogFolder, topic: TopicSegments) -> _Counts:
    counts = _Counts()
    for segment in topic.segments:
        counts.nbytes += segment.nbytes
        if segment.header is None:
            log.damaged(f"{segment.name}: {segment.fault}")
        for scan, _, head in log.records(segment, check_bodies=False):
            if head is not None:
                counts.messages += head.count
                counts.first = counts.first or head
                counts.last = head
            else:
                for one in scan.damage:
                    log.damaged(f"{segment.name}: {stretch('damage', one)}")
    return counts


def _time(time_ns: int) -> str:
    seconds, rest_ns = divmod(time_ns, durations.SECOND_NS)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest_ns // durations.MILLISECOND_NS:03d}Z"


# cat


def _cat(log: LogFolder, options: NsqLogOptions, out: BinaryIO) -> None:
    """Print the messages of one topic, from a sequence on."""
    topics = [one for one in log.topics if options.incarnation in (0, one.incarnation)]
    if not topics:
        log.remark(f"no segments of topic {options.topic}")
        log.code = UNREADABLE
        return
    write = _write_raw if options.format == "raw" else _write_json
    segments = max(topics, key=lambda one: one.incarnation).segments
    # From the segment on that holds the first sequence.
    begin = bisect_right(segments, options.from_sequence, key=lambda one: one.first) - 1
    left = options.count or sys.maxsize
    for segment in segments[max(begin, 0) :]:
        if segment.fault:
            log.damaged(f"{segment.name}: {segment.fault}")
        for head, batch in _batches(log, segment, options.from_sequence):
            for index in range(max(options.from_sequence - head.sequence, 0), head.count):
                write(out, head, batch, index)
                left -= 1
                if not left:
                    return


def _batches(
    log: LogFolder, segment: LogSegment, first: int
) -> Iterator[tuple[RecordHead, MessageBatch]]:
    """Yield the good records of a segment that have messages from ``first`` on."""
    for scan, file, head in log.records(segment, check_bodies=True):
        if head is None:
            for one in scan.damage:
                log.damaged(f"{segment.name}: {stretch('damage', one)}")
            if scan.torn is not None:
                log.remark(f"{segment.name}: {stretch('torn end', scan.torn)}")
        elif head.next_sequence > first:
            assert segment.header is not None
            section = file.read(head.body_nbytes, head.body_offset)
            try:
                batch = parse_batch(head, section, segment.header)
            except FormatError as error:
                log.damaged(f"{segment.name}: {head.offset}: {error}")
            else:
                yield head, batch


def _write_raw(out: BinaryIO, head: RecordHead, batch: MessageBatch, index: int) -> None:
    out.write(batch.bodies.body_at(index) + b"\n")


def _write_json(out: BinaryIO, head: RecordHead, batch: MessageBatch, index: int) -> None:
    body = batch.bodies.body_at(index)
    try:
        encoding, text = "utf-8", body.decode()
    except UnicodeDecodeError:
        encoding, text = "base64", base64.b64encode(body).decode("ascii")
    message: dict[str, str | int] = {
        "sequence": head.sequence + index,
        "id": batch.ids.slice(index, index + 1)[0].decode("latin-1"),
        "timestamp": int.from_bytes(batch.stamp(index), signed=True),
        "body": text,
        "body_encoding": encoding,
    }
    if head.defer_ms:
        message["defer_ms"] = head.defer_ms
    out.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")


# The command


def _read_line(words: Sequence[str]) -> tuple[NsqLogOptions, list[str]]:
    """Return options, and the command with what it is for; flags may stand anywhere."""
    given: list[str] = []
    left = list(words)
    while True:
        options, rest = read_options(NsqLogOptions, _TOOL, left)
        if not rest:
            break
        given.append(rest[0])
        left = [*left[: len(left) - len(rest)], *rest[1:]]
    match given:
        case ["restore", _, _]:
            return options, given
        case ["backup", _] if options.nsqd_http_address:
            return options, given
        case ["backup", _]:
            exit_with_usage(NsqLogOptions, _TOOL, "backup needs --nsqd-http-address")
        case [command, _] if command in _COMMANDS:
            pass
        case _:
            exit_with_usage(NsqLogOptions, _TOOL, _USAGE)
    if given[0] == "cat" and not options.topic:
        exit_with_usage(NsqLogOptions, _TOOL, "cat needs --topic")
    for flag, value in (
        ("incarnation", options.incarnation),
        ("from-sequence", options.from_sequence),
        ("count", options.count),
    ):
        if value < 0:
            exit_with_usage(NsqLogOptions, _TOOL, f"--{flag} should not be negative")
    return options, given


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    0: no damage; 1: damage, which is printed; 2: the data path or a file cannot be read.

    Raises:
        SystemExit: 0 after --help or --version, 2 after a usage error.
    """
    options, (command, *paths) = _read_line(sys.argv[1:] if argv is None else argv)
    return run(command, paths, options)


def run(command: str, paths: Sequence[str], options: NsqLogOptions, tool: str = _TOOL) -> int:
    """Run one command and return its exit code, as `main`.

    Args:
        command: verify, stat, cat, adopt, backup or restore.
        paths: what it is for: folders, or the name of a backup.
        options: checked flags.
        tool: the name before each line on stderr.
    """
    output = LogOutput(tool, as_json=options.json and command != "cat")
    try:
        code = _try(command, paths, options, output)
        output.finish()
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in the buffer must not fail at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD
    return code


def _try(command: str, paths: Sequence[str], options: NsqLogOptions, output: LogOutput) -> int:
    try:
        return _run(command, paths, options, output)
    except BrokenPipeError:
        raise
    except OSError as error:
        output.remark(f"{error.filename}: {error.strerror}")
    except UnsupportedError as error:
        output.remark(str(error))
    return UNREADABLE


def _run(command: str, paths: Sequence[str], options: NsqLogOptions, output: LogOutput) -> int:
    if command == "backup":
        return backup(options.nsqd_http_address, paths[0], output)
    if command == "restore":
        return restore(paths[0], paths[1], output)
    log = LogFolder(paths[0], options.topic, output)
    if command == "verify":
        verify(log)
    elif command == "stat":
        _stat(log)
    elif command == "adopt":
        adopt(log)
    else:
        _cat(log, options, sys.stdout.buffer)
    return log.code


if __name__ == "__main__":
    raise SystemExit(main())
