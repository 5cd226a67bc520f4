"""The moves of topics to logs that are under way, and what is left of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import trio

from trionsq.broker.defects import Defects
from trionsq.broker.logs import LogTopics
from trionsq.broker.moving import MoveFailed, TopicMove
from trionsq.broker.topic import Topic
from trionsq.core.containers import free
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder, Job, error_text
from trionsq.storage.log.rows import StateError

__all__ = ["TopicMoves"]

log = logging.getLogger("trionsq")

_POLL_S: Final = 0.25
_HOLDERS_PER_TURN: Final = 64


class _Running:
    """A move, for which several requests may wait; ``error``: why it failed."""

    def __init__(self, move: TopicMove) -> None:
        self.move = move
        self.ended = trio.Event()
        self.error: str | None = "nsqd stops"


class TopicMoves:
    """The moves of a broker. They go on when nobody waits for them any more."""

    def __init__(self, logs: LogTopics, folder: DataFolder, defects: Defects) -> None:
        self._logs = logs
        self._folder = folder
        self._defects = defects
        self._running: dict[Topic, _Running] = {}
        self._tasks: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<TopicMoves {list(self._running)}>"

    def run_in(self, tasks: trio.Nursery) -> None:
        """Run the moves in this nursery from now on."""
        self._tasks = tasks

    async def move(self, topic: Topic) -> None:
        """Move a topic that is not ephemeral, and has no log yet, to a log.

        Raises:
            MoveFailed: it has its old engine, unless nsqd stops.
        """
        assert self._tasks is not None, "the broker does not run"
        running = self._running.get(topic)
        if running is None:
            running = self._running[topic] = _Running(TopicMove(topic, self._logs))
            self._tasks.start_soon(self._run, topic, running, name=f"move of topic {topic.name}")
        await running.ended.wait()
        if running.error is not None:
            raise MoveFailed(running.error)

    def begin_all(self, topics: Mapping[str, Topic]) -> None:
        """Move all topics that can have a log and have none, one after the other."""
        assert self._tasks is not None, "the broker does not run"
        self._tasks.start_soon(self._move_all, topics, name="moves of all topics")

    async def _move_all(self, topics: Mapping[str, Topic]) -> None:
        failures = moved = 0
        for topic in list(topics.values()):
            if topic.is_ephemeral or topic.has_log or topic.exiting:
                continue
            try:
                await self.move(topic)
                moved += 1
            except MoveFailed:
                failures += not topic.exiting
        if moved or failures:
            log.info("NSQ: moved %d topics to logs", moved)
        if failures:
            log.error("NSQ: %d topics keep their engine; the next start moves them", failures)

    async def decided(self) -> None:
        """Wait until each commit of a move that is under way has succeeded or failed.

        What an operator does meanwhile is not in the commit; it is when the topic has its log.
        """
        for running in list(self._running.values()):
            if running.move.is_committing:
                await running.move.decided.wait()

    async def _run(self, topic: Topic, running: _Running) -> None:
        queues: list[DiskQueue] = []
        try:
            with self._defects.fence("topic", f"TOPIC({topic.name})"):
                running.error = "a defect of nsqd"
                try:
                    queues = await running.move.run()
                    running.error = None
                    await self._logs.take_snapshots()
                except (MoveFailed, StateError) as error:
                    running.error = str(error)
                    log.error("TOPIC(%s): moving it to a log failed: %s", topic.name, error)
        finally:
            self._running.pop(topic, None)
            running.ended.set()
        if queues:
            for count, holder in enumerate(running.move.left_in_memory(), 1):
                for _ in free(holder):
                    await trio.lowlevel.checkpoint()
                if count % _HOLDERS_PER_TURN == 0:  # most have nothing, and take no turn
                    await trio.lowlevel.checkpoint()
            await self._delete(running.move.number, queues, running.move.damaged_files())

    def begin_deletion(
        self, number: int, queues: Sequence[DiskQueue], damaged: Mapping[str, str]
    ) -> None:
        """Delete disk queues whose messages are in the log with a number.

        ``damaged``: files that were read in part, and why; they are kept under another name.
        """
        assert self._tasks is not None, "the broker does not run"
        name = f"deletion of disk queues that are in log {number}"
        self._tasks.start_soon(self._delete, number, queues, damaged, name=name)

    async def _delete(
        self, number: int, queues: Sequence[DiskQueue], damaged: Mapping[str, str]
    ) -> None:
        """Delete the files of the disk queues, and then forget that they do not count."""
        await self._in_job(partial(_set_aside, queues, damaged))
        for queue in queues:
            queue.delete()
            await trio.lowlevel.checkpoint()
        names = [queue.name for queue in queues]
        while True:
            are_gone = not any(name in self._folder.undeleted for name in names)
            # Else a power failure brings some of them back.
            if are_gone and await self._in_job(self._folder.disk.sync_folder):
                break
            await trio.sleep(_POLL_S)
        self._logs.moved_queues.forget(number)

    async def _in_job(self, job: Job) -> bool:
        """Run a job; return whether it succeeded."""
        ended = trio.Event()
        errors: list[Exception] = []

        def done(error: Exception | None) -> None:
            if error is not None:
                log.error("LOG: deleting old disk queues: %s", error_text(error))
                errors.append(error)
            ended.set()

        self._folder.background.submit(job, done)
        await ended.wait()
        return not errors


def _set_aside(queues: Sequence[DiskQueue], damaged: Mapping[str, str]) -> None:
    """Keep the files that were read in part."""
    for name, fault in damaged.items():
        log.error("DISKQUEUE: %s was moved to a log in part, and stays as .bad: %s", name, fault)
        for queue in queues:
            if name.startswith(f"{queue.name}.diskqueue."):
                queue.set_aside(name)
