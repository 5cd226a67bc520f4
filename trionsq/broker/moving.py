"""Moves topics from disk queues to a log while clients use them.

The queues of the topic and of its channels are frozen; what they have is copied to a log that is
nobody's yet. One commit of the state makes it the topic's. Before that commit a start finds the
disk queues as they were, after it the log: a crash loses nothing that the topic's engine keeps.

Publishers wait meanwhile, and consumers get only what comes back; they finish as always.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from trionsq.broker.channel import Channel
from trionsq.broker.chores import wait_for_round
from trionsq.broker.frozen import FrozenQueue, MovedChannel, with_sequences
from trionsq.broker.logcopy import LogCopy, MoveFailed
from trionsq.broker.logs import LogTopics
from trionsq.broker.topic import Topic
from trionsq.core.batch import Segment
from trionsq.core.containers import Droppable
from trionsq.core.deferred import Deferred
from trionsq.core.queue import BackendError
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.moved import CopiedFile, begin_log, files_of_queues, serve_log
from trionsq.storage.log.ranges import HeldRange, MessageRange
from trionsq.storage.log.rows import AddChannel, Change, UpdateChannel
from trionsq.storage.log.snapshot import ChannelSnapshot
from trionsq.storage.queuecopy import CopiedMessages

__all__ = ["MoveFailed", "TopicMove"]

log = logging.getLogger("trionsq")

# Channels looked at in one turn of the event loop.
_CHANNELS_PER_TURN: Final = 16
_DEFERRED_PER_TURN: Final = 500
_RETRY_S: Final = 1.0


class TopicMove:
    """One topic on its way.

    Attributes:
        is_committing: whether the commit that decides is, or was, under way.
        decided: is set when the topic has its old or its new engine for good.
        number: of the log.
    """

    def __init__(self, topic: Topic, logs: LogTopics) -> None:
        self.is_committing = False
        self.decided = trio.Event()
        self._topic = topic
        self._logs = logs
        self._channels: dict[Channel, MovedChannel] = {}
        self._queue: FrozenQueue | None = None

    def __repr__(self) -> str:
        return f"<TopicMove {self._topic.name}>"

    @property
    def number(self) -> int:
        return self._log.number

    async def run(self) -> list[DiskQueue]:
        """Move the topic; return the disk queues that are left over.

        Raises:
            MoveFailed: nothing has changed.
            StateError: the state of the logs cannot be made.
        """
        self._node = await self._logs.ensure_node()
        self._log, begun = begin_log(self._node, self._topic.name)
        self._log_copy = LogCopy(self._node, self._log)
        is_committed = False
        try:
            if (error := await wait_for_round(begun)) is not None:
                raise MoveFailed(error)
            self._freeze_topic()
            await self._copy_channels()
            await self._copy_topic()
            await self._commit()
            is_committed = True
            # If nsqd stops now, the next start goes on.
            await self._serve()
        except MoveFailed:
            if is_committed:
                self._log.delete()
            raise
        finally:
            self.decided.set()
            if not is_committed:
                self._thaw()
                self._log.delete()
        return [queue.disk_queue for queue in self._queues() if not queue.is_deleted]

    # The copies

    def _freeze_topic(self) -> None:
        topic = self._topic
        self._fail_if_gone()
        try:
            topic.core.save_fan_out()
        except BackendError as error:
            raise MoveFailed(str(error)) from error
        self._queue = FrozenQueue(topic.core.store, is_topic=True)

    async def _copy_channels(self) -> None:
        """Copy what each channel has for itself, also those that are made meanwhile."""
        while channels := self._unfrozen():
            for channel in channels:
                cursor = Cursor(self._log, self._node.take_number(), channel.name, 0, 0)
                moved = self._channels[channel] = MovedChannel(channel, cursor)
                await self._copy_memory(moved)
                await self._copy_queue(moved.frozen.queue, partial(self._copy_of_channel, moved))
                await self._copy_held(moved)

    def _unfrozen(self) -> list[Channel]:
        self._fail_if_gone()
        return [
            channel
            for channel in self._topic.channels.values()
            if not channel.is_ephemeral and channel not in self._channels
        ]

    def _fail_if_gone(self) -> None:
        if self._topic.exiting:
            raise MoveFailed("the topic is deleted")

    async def _copy_memory(self, moved: MovedChannel) -> None:
        for segment in list(moved.frozen.queue.memory.peek()):
            await self._copy(moved, segment)
        deferred, at = moved.frozen.deferred, 0
        while part := deferred.part(at, _DEFERRED_PER_TURN):
            at += len(part)
            for due_ns, segment in part:
                await self._copy(moved, segment, due_ns)

    async def _copy_held(self, moved: MovedChannel) -> None:
        """Give a place to all that clients hold, and what came back: both may be redelivered."""
        while (held := moved.frozen.held()) and not moved.is_gone:
            for one in held:
                if one.batch.sequences is None:
                    sequence = self._log_copy.put(Segment(one.batch, one.first, one.last))
                    one.batch = with_sequences(one.batch, one.first, sequence)
                    await self._log_copy.take_turns()

    async def _copy_queue(
        self, queue: FrozenQueue, put: Callable[[CopiedMessages], Awaitable[None]]
    ) -> None:
        await self._log_copy.copy_queue(
            queue.disk_queue, put, lambda: queue.is_deleted or queue.empties > 0
        )

    async def _copy_of_channel(self, moved: MovedChannel, one: CopiedMessages) -> None:
        core = moved.frozen.core
        segment: Segment | None = one.segment
        if one.is_recovered and core.store.recovered is not None:
            segment = core.store.recovered.without_copies(one.segment)
        due_ns = None if one.due_ns is None else core.due_on_clock_ns(one.due_ns)
        if segment is not None:
            await self._copy(moved, segment, due_ns)

    async def _copy(self, moved: MovedChannel, segment: Segment, due_ns: int | None = None) -> None:
        sequence = self._log_copy.put(segment)
        if due_ns is None:
            moved.open.append(MessageRange(sequence, segment.count, segment.attempts))
        else:
            moved.cursor.held.add_range(
                HeldRange(due_ns, sequence, segment.count, segment.attempts)
            )
        await self._log_copy.take_turns()

    async def _copy_topic(self) -> None:
        """Copy what no channel has got yet: it is published once more, as it was."""
        assert self._queue is not None
        begin = self._log.end
        await self._log_copy.written()
        self._log.frontier, self._log.depth = begin, 0
        for segment in list(self._queue.memory.peek()):
            self._log_copy.put(segment, segment.batch.defer_ms)
            await self._log_copy.take_turns()
        await self._copy_queue(self._queue, self._copy_published)
        await self._log_copy.written()

    async def _copy_published(self, one: CopiedMessages) -> None:
        self._log_copy.put_published(one)
        await self._log_copy.take_turns()

    # The commit

    async def _commit(self) -> None:
        """Make the log the topic's. From here on there is no way back but a stop."""
        topic, end = self._topic, self._log.end
        names = [queue.disk_queue.name for queue in self._queues()]
        files: dict[str, dict[str, CopiedFile]] = {}  # a channel that is made from here on has none
        await self._log_copy.in_job(lambda: files.update(files_of_queues(self._node.disk, names)))
        changes: list[Change] = []
        with_rows: set[MovedChannel] = set()
        while True:
            await self._copy_channels()
            for moved in set(self._channels.values()) - with_rows:
                with_rows.add(moved)
                changes += await self._rows(moved)
                if len(with_rows) % _CHANNELS_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
            if not self._unfrozen():
                break
        if self._log.end != end:
            raise MoveFailed("a channel that has messages was made meanwhile")
        self._log.is_paused = topic.core.paused
        self.is_committing = True
        queues = [queue.disk_queue.name for queue in self._queues()]
        note = self._logs.moved_queues.add(self.number, {one: files.get(one, {}) for one in queues})
        committed = serve_log(self._node, self._log, [*changes, note])
        while (error := await wait_for_round(committed)) is not None:
            # Nobody knows what a start finds: the queues stay frozen, for both must be right.
            self.decided.set()
            log.error("TOPIC(%s): moving it to a log waits for the state: %s", topic.name, error)
            await trio.sleep(_RETRY_S)
            committed = self._node.commit([])

    async def _rows(self, moved: MovedChannel) -> list[Change]:
        """Return what the state should have of a channel now."""
        if moved.is_gone:
            return []
        cursor, core = moved.cursor, moved.frozen.core
        cursor.next = cursor.frontier = self._log.frontier
        if moved.has_nothing:
            cursor.empty()
        else:
            cursor.load(moved.open, 0)
        moved.open = []
        moved.empties = moved.frozen.queue.empties
        cursor.is_paused = core.paused
        number, came_back = self._log.number, moved.frozen.came_back()
        snapshot = ChannelSnapshot(cursor, number, core.store.memory, core.in_flight, came_back)
        self._log.cursors[cursor.number] = cursor
        for _ in snapshot.steps():
            await trio.lowlevel.checkpoint()
        return [
            AddChannel(change.row) if isinstance(change, UpdateChannel) else change
            for change in snapshot.changes
        ]

    # The new engine

    async def _serve(self) -> None:
        for count, moved in enumerate(list(self._channels.values()), 1):
            self._serve_channel(moved)
            if count % _CHANNELS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        self._fail_if_gone()
        assert self._queue is not None
        topic, core = self._topic, self._topic.core
        for channel in self._unfrozen():
            # It was made after the commit, so no message has come to it.
            cursor = self._node.new_cursor(self._log, channel.name)
            moved = MovedChannel(channel, cursor)
            if count := moved.frozen.queue.depth:
                log.error(
                    "TOPIC(%s): channel %s was made meanwhile: %d messages of an old disk queue "
                    "stay in its files",
                    topic.name,
                    channel.name,
                    count,
                )
            self._serve_channel(moved)
        self._node.add_log(self._log)
        self._log.refused = core.forget_published
        self._queue.change_backend(self._log)
        if self._queue.empties:
            self._log.empty()
        log.info("TOPIC(%s): moved to log %d", topic.name, self._log.number)
        self._log.caught_up()

    def _serve_channel(self, moved: MovedChannel) -> None:
        frozen, cursor = moved.frozen, moved.cursor
        if moved.is_gone:
            if cursor.number in self._log.cursors:
                self._log.drop_cursor(cursor)
            return
        core, queue = frozen.core, frozen.queue
        if queue.empties != moved.empties:
            cursor.empty()
        for segment in queue.returned:
            cursor.append(segment)
        came_back = core.deferred
        assert isinstance(came_back, Deferred)
        core.store.backend_out_count += len(cursor.held)
        for due_ns, segment in came_back.part(0, len(came_back)):
            cursor.held.add_segment(segment, due_ns)
        core.deferred = cursor.new_deferred(core.scan_at)
        core.store.release_recovered()
        queue.change_backend(cursor)
        core.scan_at(0.0)
        moved.channel.wake()

    def _queues(self) -> list[FrozenQueue]:
        assert self._queue is not None
        return [self._queue, *(one.frozen.queue for one in self._channels.values())]

    def left_in_memory(self) -> list[Droppable]:
        """Return what is to be freed in turns: all at once would hold up the event loop."""
        deferred = [moved.frozen.deferred for moved in self._channels.values()]
        return [*deferred, *(queue.memory for queue in self._queues())]

    def damaged_files(self) -> dict[str, str]:
        """Return the files of disk queues that were read in part, and why."""
        return self._log_copy.damaged_files()

    def _thaw(self) -> None:
        """Let the topic go on as before."""
        for moved in self._channels.values():
            if moved.frozen.core.store.backend is moved.frozen.queue and not moved.is_gone:
                moved.frozen.thaw()
        if self._queue is not None and not self._queue.is_deleted:
            self._queue.thaw()
            self._queue.caught_up()
