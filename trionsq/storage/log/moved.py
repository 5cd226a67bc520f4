"""Topics that were moved to a log: how the log begins, and the disk queues that are left over.

A log that is being filled is a tombstone: a start removes its files. One commit makes it the
topic's, with its channels, and says that the old disk queues count no more. A start removes their
files as long as the state says so.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from zlib import crc32

from trionsq.core.round import Round
from trionsq.disk import Disk, close_quietly
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.rows import (
    AddTopic,
    Change,
    DropTopic,
    ForgetTopic,
    PutMeta,
    StateContent,
)
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["CopiedFile", "MovedQueues", "QueueFiles", "begin_log", "files_of_queues", "serve_log"]

log = logging.getLogger("trionsq")

_KEY: Final = "moved"
_FILES: Final = ".diskqueue."
_RECORDS: Final = re.compile(r"(.+)\.diskqueue\.\d+\.dat")

# So much of a file is enough to know it again: size, time, attempts and id of its first message.
_KNOWN_BYTES: Final = 30
_UNKNOWN: Final = -1


class CopiedFile(NamedTuple):
    """A record file when its messages were copied: its size, and the CRC of its first bytes."""

    size: int
    crc: int = _UNKNOWN


QueueFiles = Mapping[str, Mapping[str, CopiedFile] | None]
"""The record files of disk queues by name, by name of the queue; None if not known."""


def begin_log(node: LogNode, name: str) -> tuple[TopicLog, Round]:
    """Make a log that is no topic's yet, with the round after which a start removes its files."""
    number = node.take_number()
    # What is copied has to be durable before the commit that relies on it.
    topic_log = TopicLog(node, number, name, "always", node.new_writer(name, number, None))
    return topic_log, node.commit([AddTopic(topic_log.row()), DropTopic(number)])


def serve_log(node: LogNode, topic_log: TopicLog, channels: Sequence[Change]) -> Round:
    """Make a log the topic's, with the rows of its channels; return the round of that."""
    topic_log.durability = node.durability
    changes: list[Change] = [
        ForgetTopic(topic_log.number),
        AddTopic(topic_log.row()),
        *channels,
    ]
    return node.commit(changes)


def files_of_queues(disk: Disk, queues: Iterable[str]) -> dict[str, dict[str, CopiedFile]]:
    """Return the record files that queues have now. Blocks.

    Raises:
        OSError: one of them cannot be read.
    """
    found: dict[str, dict[str, CopiedFile]] = {queue: {} for queue in queues}
    for name in disk.names():
        match = _RECORDS.fullmatch(name)
        if match is not None and match[1] in found:
            file = disk.open(name)
            try:
                found[match[1]][name] = CopiedFile(file.size(), crc32(file.read(_KNOWN_BYTES, 0)))
            finally:
                close_quietly(file)
    return found


class MovedQueues:
    """The disk queues that count no more, by the number of the log that has their messages."""

    def __init__(self, node: LogNode, meta: Mapping[str, bytes]) -> None:
        self._node = node
        self._queues: dict[int, QueueFiles] = {}
        self._grown: dict[str, Mapping[str, CopiedFile]] = {}
        if data := meta.get(_KEY):
            # An earlier release noted names alone.
            self._queues = {
                int(number): dict.fromkeys(found) if isinstance(found, list) else _known(found)
                for number, found in json.loads(data).items()
            }

    def __repr__(self) -> str:
        return f"<MovedQueues {self._queues}>"

    def add(self, number: int, queues: QueueFiles) -> Change:
        """Return the change that notes queues with the files that were moved."""
        self._queues[number] = queues
        return self._change()

    def forget(self, number: int) -> None:
        """Their files are gone."""
        if self._queues.pop(number, None) is not None:
            self._node.commit([self._change()])

    def remove_files(self, content: StateContent) -> None:
        """Remove the files at a start, before a queue is opened. Blocks.

        A queue to which the original wrote since then stays, with all of its files.

        Raises:
            OSError: some of them are still there.
        """
        if not self._queues:
            return
        topics = {row.number for row in content.topics}
        disk, moved = self._node.disk, dict[str, Mapping[str, CopiedFile] | None]()
        # A topic that was deleted meanwhile may have been made again, with queues of these names.
        for number in self._queues.keys() & topics:
            moved.update(self._queues[number])
        for queue, files in files_of_queues(disk, moved).items():
            known = moved[queue]
            if known is not None and any(
                _has_changed(one, known.get(name)) for name, one in files.items()
            ):
                log.warning("LOG: the disk queue %s has grown since it was moved to a log", queue)
                self._grown[queue] = known
                del moved[queue]
        _remove_files(disk, moved.keys())
        kept = {number: self._kept(queues) for number, queues in self._queues.items()}
        self._queues = {number: queues for number, queues in kept.items() if queues}
        self._node.commit([self._change()])

    def _kept(self, queues: QueueFiles) -> QueueFiles:
        return {queue: files for queue, files in queues.items() if queue in self._grown}

    def copied_bytes(self, queue: str) -> dict[str, int]:
        """Return how much of the record files of a queue is in the log already. Blocks.

        Raises:
            OSError: one of them cannot be read.
        """
        if queue not in self._grown:
            return {}
        known, files = self._grown[queue], files_of_queues(self._node.disk, [queue])[queue]
        # A queue that was deleted and made again has files of these names as well.
        return {
            name: one.size
            for name, one in known.items()
            if name in files and files[name].size >= one.size and files[name].crc == one.crc
        }

    def _change(self) -> PutMeta:
        return PutMeta(_KEY, json.dumps(self._queues).encode())


def _has_changed(one: CopiedFile, known: CopiedFile | None) -> bool:
    if known is None or one.size != known.size:
        return True
    return known.crc != _UNKNOWN and one.crc != known.crc


def _known(queues: Mapping[str, Mapping[str, int | list[int]] | None]) -> QueueFiles:
    """Return what the state has of queues; an earlier release noted sizes alone."""
    return {
        queue: None if files is None else _known_files(files) for queue, files in queues.items()
    }


def _known_files(files: Mapping[str, int | list[int]]) -> dict[str, CopiedFile]:
    return {
        name: CopiedFile(one) if isinstance(one, int) else CopiedFile(*one)
        for name, one in files.items()
    }


def _remove_files(disk: Disk, queues: Container[str]) -> None:
    names = [
        name
        for name in disk.names()
        if name.partition(_FILES)[0] in queues and _FILES in name and not name.endswith(".bad")
    ]
    # Records first: without its positions file a queue has its record files set aside.
    for name in sorted(names, key=lambda name: name.endswith((".meta.dat", ".deferred.dat"))):
        with suppress(FileNotFoundError):
            disk.unlink(name)
    if names:
        disk.sync_folder()
        log.info("LOG: removed %d files of disk queues whose messages are in a log", len(names))
