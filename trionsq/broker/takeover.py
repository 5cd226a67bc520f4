"""Brings what lies in disk queues of topics that have a log into that log, at a start.

The original, or an older release, took it while it had the data path: a log topic does not read
these files. The messages of a channel's queue are open in that channel alone: in the log their
places are a gap. Those of the topic's queue are published, as they were.

One commit of the state decides, as for a topic that is moved to a log. A crash before it leaves the
queues, and a gap in the log; a crash after it leaves files that the next start removes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from trionsq.broker.chores import wait_for_round
from trionsq.broker.logcopy import LogCopy, MoveFailed
from trionsq.broker.logs import LogTopics
from trionsq.broker.moves import TopicMoves
from trionsq.core.queue import BackendError
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder, DataPathError
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.moved import CopiedFile, files_of_queues
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.opening import FoundLog
from trionsq.storage.log.origins import origin_key
from trionsq.storage.log.ranges import HeldRange, MessageRange, join_ranges, pack_ranges
from trionsq.storage.log.rows import Change, UpdateChannel, UpdateTopic
from trionsq.storage.metadata import TopicRecord
from trionsq.storage.queuecopy import CopiedMessages

__all__ = ["Takeovers"]

log = logging.getLogger("trionsq")


class Takeovers:
    """The disk queues of topics that have a log. Nobody may use a topic yet."""

    def __init__(
        self,
        logs: LogTopics,
        folder: DataFolder,
        moves: TopicMoves,
        due_on_clock_ns: Callable[[int], int],
    ) -> None:
        """``moves`` deletes the queues, ``due_on_clock_ns`` limits the due times of messages."""
        self._logs = logs
        self._folder = folder
        self._moves = moves
        self._due_on_clock_ns = due_on_clock_ns

    def __repr__(self) -> str:
        return f"<Takeovers {self._folder.disk.path}>"

    async def run(
        self, with_log: Mapping[str, FoundLog], others: Mapping[str, TopicRecord]
    ) -> set[str]:
        """Take over all queues; return the names of those that need no reader.

        A queue whose channel does not exist stays, and so does what cannot be copied: the log of
        nsqd names it, and the next start tries again.

        Args:
            with_log: the topics.
            others: of them, as somebody else has left them; see `TopicRegistry.load`.

        Raises:
            DataPathError: nobody knows whether what was copied counts.
        """
        names: dict[str, list[str]] = {}
        for queue in self._folder.queues_with_files():
            topic, _, _ = queue.partition(":")
            if topic in with_log:
                names.setdefault(topic, []).append(queue)
        done: set[str] = set()
        for topic, queues in names.items():
            found, record = with_log[topic], others.get(topic)
            if record is not None:
                found.log.is_paused = record.paused
            takeover = _Takeover(self._logs, found, self._due_on_clock_ns)
            for queue in queues:
                name = queue.partition(":")[2]
                if not name or self._exists(found, record, name):
                    takeover.add(DiskQueue(queue, self._folder), name)
            if await takeover.run():
                done |= takeover.names()
                self._moves.begin_deletion(
                    found.log.number, takeover.queues, takeover.damaged_files()
                )
        return done

    def _exists(self, found: FoundLog, record: TopicRecord | None, name: str) -> bool:
        """Return whether a channel exists; one that the state does not know is made."""
        if any(cursor.name == name for cursor in found.channels):
            return True
        if record is None or all(one.name != name for one in record.channels):
            return False
        assert self._logs.node is not None
        found.channels.append(self._logs.node.new_cursor(found.log, name))
        return True


class _Takeover:
    """The queues of one topic.

    Attributes:
        queues: that are taken over.
    """

    def __init__(
        self, logs: LogTopics, found: FoundLog, due_on_clock_ns: Callable[[int], int]
    ) -> None:
        assert logs.node is not None
        self.queues: list[DiskQueue] = []
        self._logs = logs
        self._node: LogNode = logs.node
        self._found = found
        self._log = found.log
        self._copy = LogCopy(self._node, found.log)
        self._due_on_clock_ns = due_on_clock_ns
        self._topic_queue: DiskQueue | None = None
        self._channels: list[tuple[DiskQueue, Cursor]] = []
        self._count = 0
        # What the channels get in the end: open and deferred messages.
        self._open: dict[Cursor, list[MessageRange]] = {}
        self._held: dict[Cursor, list[HeldRange]] = {}

    def __repr__(self) -> str:
        return f"<_Takeover {self._log.name} {self.queues}>"

    def add(self, queue: DiskQueue, channel: str) -> None:
        """Add a queue; ``channel``: the name of the channel, which exists; empty: the topic's."""
        self.queues.append(queue)
        if not channel:
            self._topic_queue = queue
            return
        [cursor] = (one for one in self._found.channels if one.name == channel)
        self._channels.append((queue, cursor))
        self._open[cursor], self._held[cursor] = [], []

    def names(self) -> set[str]:
        return {queue.name for queue in self.queues}

    def damaged_files(self) -> dict[str, str]:
        """Return the files that were read in part, and why."""
        return self._copy.damaged_files()

    async def run(self) -> bool:
        """Take the queues over; return whether their files may go.

        Raises:
            DataPathError: as `Takeovers.run`.
        """
        if not self.queues:
            return False
        durability, begin = self._log.durability, self._log.end
        # What is copied has to be durable before the commit that relies on it.
        self._log.durability = "always"
        try:
            middle = await self._copy_queues()
            files: dict[str, dict[str, CopiedFile]] = {}
            await self._copy.in_job(
                lambda: files.update(files_of_queues(self._node.disk, self.names()))
            )
        except MoveFailed as error:
            log.error(
                "TOPIC(%s): the disk queues %s stay, and are read by the next start: %s",
                self._log.name,
                ", ".join(sorted(self.names())),
                error,
            )
            await self._give_up(begin)
            return False
        finally:
            self._log.durability = durability
        self._leave_out(begin, middle)
        changes: list[Change] = [UpdateTopic(self._log.row())]
        for _, cursor in self._channels:
            changes += self._give_to_channel(cursor)
        changes.append(self._logs.moved_queues.add(self._log.number, files))
        failure = await wait_for_round(self._node.commit(changes))
        if failure is not None:
            raise DataPathError(f"failed to bring disk queues into the log: {failure}")
        log.info(
            "TOPIC(%s): %d messages of disk queues are in the log", self._log.name, self._count
        )
        return True

    async def _copy_queues(self) -> int:
        """Copy all messages; return the sequence behind those of the channels' queues."""
        for queue, cursor in self._channels:
            await self._copy_queue(queue, partial(self._copy_of_channel, cursor))
        middle = self._log.end
        if self._topic_queue is not None:
            await self._copy_queue(self._topic_queue, self._copy_published)
        await self._copy.written()
        return middle

    async def _copy_queue(
        self, queue: DiskQueue, put: Callable[[CopiedMessages], Awaitable[None]]
    ) -> None:
        copied: dict[str, int] = {}
        moved = self._logs.moved_queues
        await self._copy.in_job(lambda: copied.update(moved.copied_bytes(queue.name)))
        await self._copy.copy_queue(queue, put, copied=copied)

    async def _copy_of_channel(self, cursor: Cursor, one: CopiedMessages) -> None:
        segment = one.segment
        sequence = self._copy.put(segment, key=origin_key(one.place))
        self._count += segment.count
        if one.due_ns is None:
            found = self._open[cursor]
            found.append(MessageRange(sequence, segment.count, segment.attempts))
            found[-2:] = join_ranges(found[-2:])
        else:
            due_ns = self._due_on_clock_ns(one.due_ns)
            self._held[cursor].append(HeldRange(due_ns, sequence, segment.count, segment.attempts))
        await self._copy.take_turns()

    async def _copy_published(self, one: CopiedMessages) -> None:
        self._copy.put_published(one, origin_key(one.place))
        self._count += one.segment.count
        await self._copy.take_turns()

    def _give_to_channel(self, cursor: Cursor) -> Iterator[Change]:
        """Have a channel deliver its messages; yield what the state has to know of it."""
        cursor.load(self._open[cursor])
        for one in self._held[cursor]:
            cursor.held.add_range(one)
        row = cursor.row(self._log.number)
        opened = pack_ranges(join_ranges(sorted(cursor.returned())))
        yield UpdateChannel(replace(row, open=row.open + opened))
        yield from cursor.held.changes(cursor.number)

    def _leave_out(self, first: int, end: int) -> None:
        """Make a gap of messages, which are safe and were not handed on."""
        topic_log = self._log
        topic_log.gaps.add(first, end)
        topic_log.cache.clear()  # who reads there does not look for gaps
        if topic_log.frontier == first:
            topic_log.frontier = end
        first, end = topic_log.frontier, topic_log.safe_end
        topic_log.depth = end - first - topic_log.count_gaps(first, end)

    async def _give_up(self, begin: int) -> None:
        await wait_for_round(self._log.last_round)
        self._leave_out(begin, self._log.end)
        self._node.commit([UpdateTopic(self._log.row())])
        for queue in self.queues:
            with suppress(BackendError):
                queue.close()
