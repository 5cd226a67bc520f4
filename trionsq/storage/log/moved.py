"""Topics that were moved to a log: how the log begins, and the disk queues that are left over.

A log that is being filled is a tombstone: a start removes its files. One commit makes it the
topic's, with its channels, and says that the old disk queues count no more. A start removes their
files as long as the state says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from trionsq.core.round import Round
from trionsq.disk import Disk
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

__all__ = ["MovedQueues", "begin_log", "serve_log"]

log = logging.getLogger("trionsq")

_KEY: Final = "moved"
_FILES: Final = ".diskqueue."


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


class MovedQueues:
    """The disk queues that count no more, by the number of the log that has their messages."""

    def __init__(self, node: LogNode, meta: Mapping[str, bytes]) -> None:
        self._node = node
        self._queues: dict[int, list[str]] = {}
        if data := meta.get(_KEY):
            self._queues = {int(number): names for number, names in json.loads(data).items()}

    def __repr__(self) -> str:
        return f"<MovedQueues {self._queues}>"

    def add(self, number: int, queues: Sequence[str]) -> Change:
        """Return the change that notes queues."""
        self._queues[number] = list(queues)
        return self._change()

    def forget(self, number: int) -> None:
        """Their files are gone."""
        if self._queues.pop(number, None) is not None:
            self._node.commit([self._change()])

    def remove_files(self, content: StateContent) -> None:
        """Remove the files at a start, before a queue is opened. Blocks.

        Raises:
            OSError: some of them are still there.
        """
        if not self._queues:
            return
        topics = {row.number for row in content.topics}
        # A topic that was deleted meanwhile may have been made again, with queues of these names.
        queues = {name for number in self._queues.keys() & topics for name in self._queues[number]}
        _remove_files(self._node.disk, queues)
        self._queues.clear()
        self._node.commit([self._change()])

    def _change(self) -> PutMeta:
        return PutMeta(_KEY, json.dumps(self._queues).encode())


def _remove_files(disk: Disk, queues: set[str]) -> None:
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
