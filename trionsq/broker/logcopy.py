"""Copies the messages of disk queues to a log, as fast as the disk takes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio

from trionsq.broker.chores import wait_for_round
from trionsq.core.batch import ListColumn, MessageBatch, Segment
from trionsq.core.keys import PublishKey
from trionsq.core.queue import BackendError
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import Job, error_text
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.topiclog import TopicLog
from trionsq.storage.queuecopy import CopiedMessages, QueueCopy

__all__ = ["LogCopy", "MoveFailed"]

# Written before more is read: less than what a topic's log takes without being waited for.
_WRITE_BYTES: Final = 4 << 20
_MESSAGE_BYTES: Final = 100
_READ_BYTES: Final = 1 << 20
# Batches copied in one turn of the event loop.
_BATCHES_PER_TURN: Final = 64
_LOADING_S: Final = 0.01
_MS_NS: Final = 1_000_000


class MoveFailed(Exception):
    """The messages were not moved; the text says why."""


class LogCopy:
    """What is being copied to one log.

    Attributes:
        log: that gets the messages. Nobody else may publish there.
    """

    def __init__(self, node: LogNode, log: TopicLog) -> None:
        self.log = log
        self._node = node
        self._copies: list[QueueCopy] = []
        self._nbytes = 0
        self._batches = 0

    def __repr__(self) -> str:
        return f"<LogCopy {self.log}>"

    def put(self, segment: Segment, defer_ms: int = 0, key: PublishKey | None = None) -> int:
        """Append messages; return the sequence of the first.

        Raises:
            MoveFailed: the log takes none.
        """
        sequence, batch = self.log.end, _copy_of(segment, defer_ms, key)
        try:
            self.log.append(Segment(batch, 0, batch.count))
        except BackendError as error:
            raise MoveFailed(str(error)) from error
        self._nbytes += batch.bodies.nbytes + _MESSAGE_BYTES * batch.count
        self._batches += 1
        return sequence

    def put_published(self, one: CopiedMessages, key: PublishKey | None = None) -> int:
        """Append messages that no channel has got: they are published once more, as they were.

        Raises:
            MoveFailed: the log takes none.
        """
        delay_ms = 0
        if one.due_ns is not None:
            delay_ms = max(1, -((one.segment.first_ns - one.due_ns) // _MS_NS))
        return self.put(one.segment, delay_ms, key)

    async def take_turns(self) -> None:
        """Wait for the disk, or let other tasks run, if it is time for that.

        Raises:
            MoveFailed: messages could not be written.
        """
        if self._nbytes >= _WRITE_BYTES:
            await self.written()
        elif self._batches >= _BATCHES_PER_TURN:
            self._batches = 0
            await trio.lowlevel.checkpoint()

    async def written(self) -> None:
        """Wait until all is in the log.

        Raises:
            MoveFailed: messages could not be written.
        """
        self._nbytes = 0
        if (error := await wait_for_round(self.log.last_round)) is not None:
            raise MoveFailed(error)

    async def copy_queue(
        self,
        queue: DiskQueue,
        put: Callable[[CopiedMessages], Awaitable[None]],
        is_over: Callable[[], bool] = lambda: False,
        copied: Mapping[str, int] | None = None,
    ) -> None:
        """Read a queue, and give what it has to ``put``, until ``is_over``.

        ``copied``: so many bytes of its record files, by name, were copied before.

        Raises:
            MoveFailed: the queue cannot be read, or ``put`` raised it.
        """
        while queue.is_loading:  # noqa: ASYNC110 - mostly it is loaded
            await trio.sleep(_LOADING_S)
        copy = queue.copy()
        copy.copied = copied or {}
        self._copies.append(copy)
        while not is_over():
            found: list[CopiedMessages] = []
            await self.in_job(partial(_read_into, found, copy))
            if not found:
                return
            for one in found:
                await put(one)

    async def in_job(self, job: Job) -> None:
        """Run a job in the background.

        Raises:
            MoveFailed: it failed.
        """
        ended: list[Exception | None] = []
        event = trio.Event()

        def done(error: Exception | None) -> None:
            ended.append(error)
            event.set()

        self._node.folder.background.submit(job, done)
        await event.wait()
        if (error := ended[0]) is not None:
            raise MoveFailed(error_text(error)) from error

    def damaged_files(self) -> dict[str, str]:
        """Return the files of disk queues that were read in part, and why."""
        return {name: fault for copy in self._copies for name, fault in copy.damaged.items()}


def _read_into(found: list[CopiedMessages], copy: QueueCopy) -> None:
    found += copy.read(_READ_BYTES)


def _copy_of(segment: Segment, defer_ms: int, key: PublishKey | None) -> MessageBatch:
    """Return the messages of a segment as a batch, to be delivered with this delay."""
    batch, first, last = segment.batch, segment.first, segment.last
    stamps = None if batch.stamps is None else ListColumn(batch.stamps.slice(first, last))
    bodies, ids = batch.bodies.copy_range(first, last), ListColumn(segment.ids())
    return MessageBatch(bodies, ids, segment.first_ns, defer_ms, stamps, None, key)
