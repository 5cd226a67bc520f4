"""Topics that keep their messages in a log: what a start finds, snapshots, commits, the stop.

A snapshot of each channel goes to the state every --state-interval. What an operator does goes
there before the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from trionsq.broker.chores import wait_for_round
from trionsq.broker.options import NsqdOptions
from trionsq.broker.runtime import Clock
from trionsq.broker.saving import retry_until_saved
from trionsq.broker.topic import Topic
from trionsq.core.channel import ChannelState
from trionsq.core.ids import ns_after_id
from trionsq.core.keys import StoredKey
from trionsq.core.queue import Backend
from trionsq.core.topic import TopicState
from trionsq.disk import Disk
from trionsq.durations import SECOND_NS
from trionsq.storage.folder import DataFolder, DataPathError, error_text
from trionsq.storage.log.metadata_mark import MetadataMark
from trionsq.storage.log.moved import MovedQueues
from trionsq.storage.log.names import parse_segment_name
from trionsq.storage.log.node import DEFAULT_SEGMENT_BYTES, LogNode
from trionsq.storage.log.opening import FoundLog, open_logs
from trionsq.storage.log.remainders import Remainders
from trionsq.storage.log.retention import Retention, Retentions
from trionsq.storage.log.rows import State, StateError
from trionsq.storage.log.snapshot import Snapshots
from trionsq.storage.log.state import STATE_FILE, SqliteState
from trionsq.storage.log.storedkeys import StoredKeys
from trionsq.storage.log.topiclog import TopicLog
from trionsq.storage.metadata import TopicRecord, save_metadata
from trionsq.wire.names import is_ephemeral

__all__ = ["LogTopics", "durability_of", "log_of"]

log = logging.getLogger("trionsq")

# What is looked at in one turn of the event loop: channels and topics, and messages in flight.
_LOOKED_AT_PER_TURN: Final = 32
_IN_FLIGHT_PER_TURN: Final = 4_000
# The last commit, and the last fsync, of a stop.
_STOP_S: Final = 30.0


def log_of(topic: Topic) -> TopicLog | None:
    """Return the log of a topic; None if it has none."""
    backend = topic.core.store.backend
    return backend if isinstance(backend, TopicLog) else None


def durability_of(topic: Topic) -> str:
    """Return how safe an OK of a topic is: ``always`` and ``interval``, or ``memory``."""
    topic_log = log_of(topic)
    return "memory" if topic_log is None else topic_log.durability


@dataclass(slots=True)
class _Opened:
    """What the data path has of logs."""

    node: LogNode
    mark: MetadataMark
    moved_queues: MovedQueues
    logs: Sequence[FoundLog]


class _Opening:
    """The first log of a running nsqd: its state is being made."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.failure: Exception | None = None


class LogTopics:
    """The logs of a broker.

    Attributes:
        backups: names of those that are being made.
    """

    def __init__(
        self,
        folder: DataFolder,
        options: NsqdOptions,
        topics: Mapping[str, Topic],
        clock: Clock,
        open_state: Callable[[Disk], State] = SqliteState,
    ) -> None:
        self._folder = folder
        self._options = options
        self._clock = clock
        self._topics = topics
        self._open_state = open_state
        self._node: LogNode | None = None
        self._opening: _Opening | None = None
        self._moved_queues: MovedQueues | None = None
        self._mark: MetadataMark | None = None
        self._found: dict[str, FoundLog] = {}
        self.retentions = Retentions(Retention(options.retain_ns, options.retain_bytes))
        self._snapshots = Snapshots(self.retentions)
        self._remainders: Remainders | None = None
        # One snapshot after the other, and the one that is being taken.
        self._taking = trio.Lock()
        self._steps: Iterator[None] | None = None
        self.ids_after_ns = 0
        self.segment_bytes = DEFAULT_SEGMENT_BYTES
        self.backups: set[str] = set()

    def __repr__(self) -> str:
        return f"<LogTopics {self._node}>"

    def open(self) -> list[str]:
        """Open what the data path has, and return the names of the topics that have a log.

        Raises:
            DataPathError: the state or a log cannot be read.
        """
        is_new = False
        try:
            names = self._folder.disk.names()
            is_new = STATE_FILE not in names
            if is_new and any(map(parse_segment_name, names)):
                log.error("LOG: there are logs without their state: see nsq_log adopt")
            if not is_new or self._options.storage == "log":
                self._serve(self._open_node())
        except (StateError, OSError) as error:
            hint = " (there is no log yet: --storage=default starts without it)" if is_new else ""
            raise DataPathError(f"failed to open the log: {error}{hint}") from error
        return list(self._found)

    def _open_node(self) -> _Opened:
        """Read what there is, or make the state. Blocks; in any thread."""
        state = self._open_state(self._folder.disk)
        content = state.load()
        node = LogNode(
            self._folder,
            state,
            durability=self._options.durability,
            segment_bytes=self.segment_bytes,
            next_number=content.next_number,
            keys=StoredKeys(
                self._options.idempotency_window_ns, self._options.idempotency_max_keys
            ),
        )
        moved_queues = MovedQueues(node, content.meta)
        moved_queues.remove_files(content)
        self.retentions.load(content.meta, {row.number for row in content.topics})
        mark = MetadataMark(state, content.meta)
        return _Opened(node, mark, moved_queues, open_logs(node, content))

    def _serve(self, opened: _Opened) -> None:
        for found in opened.logs:
            self._found[found.log.name] = found
            for cursor in found.channels:
                cursor.held.follow_clock(self._clock.now_ns(), self._options.max_delay_ns)
            if found.last_id:
                self.ids_after_ns = max(self.ids_after_ns, ns_after_id(found.last_id))
        self._mark, self._moved_queues = opened.mark, opened.moved_queues
        self._node = opened.node
        self._remainders = Remainders(opened.node)

    @property
    def node(self) -> LogNode | None:
        """What all logs share; None if no topic ever had one."""
        return self._node

    async def ensure_node(self) -> LogNode:
        """Return the node; if there is none, make its state, in a thread.

        Raises:
            StateError: that failed.
        """
        if self._node is None:
            opening = self._opening or self._begin_opening()
            await opening.ended.wait()
            if isinstance(failure := opening.failure, StateError):
                raise StateError(str(failure)) from failure
            if failure is not None:
                raise StateError(error_text(failure)) from failure
        assert self._node is not None
        return self._node

    def _begin_opening(self) -> _Opening:
        # It goes on if nobody waits any more: nobody else may open the state meanwhile.
        opening = self._opening = _Opening()
        opened: list[_Opened] = []

        def job() -> None:
            try:
                opened.append(self._open_node())
            except StateError as error:
                opening.failure = error

        def done(error: Exception | None) -> None:
            self._opening = None
            opening.failure = opening.failure or error
            if opened:
                self._serve(opened[0])
            opening.ended.set()

        self._folder.background.submit(job, done)
        return opening

    @property
    def moved_queues(self) -> MovedQueues:
        """The disk queues whose messages are in a log. There must be a node."""
        assert self._moved_queues is not None
        return self._moved_queues

    # nsqd.dat

    def wrote_metadata(self) -> bool | None:
        """Return whether nsqd.dat is what this nsqd wrote last; None if that is not known.

        Blocks; for the start.
        """
        return None if self._mark is None else self._mark.is_ours(self._folder.disk)

    def save_metadata(self, topics: Iterable[TopicRecord]) -> None:
        """Replace nsqd.dat. Blocks.

        Raises:
            OSError: the file may have its old content.
        """
        if self._mark is None:
            save_metadata(self._folder.disk, topics)
        else:
            self._mark.write(self._folder.disk, topics)

    # Backends

    def topic_backend(self, name: str, *, is_loading: bool, storage: str = "") -> Backend | None:
        """Return the log of a topic that is being made; None if it is to have none.

        Args:
            name: of the topic.
            is_loading: the metadata name it: it has a log only if there is one.
            storage: ``log`` or ``default`` if somebody asked for it. For ``log`` there must be a
                node, see `ensure_node`.
        """
        found = self._found.get(name)
        if found is not None and not found.log.is_deleted:
            return found.log
        if is_ephemeral(name) or is_loading or (storage or self._options.storage) != "log":
            return None
        assert self._node is not None, "there is no log yet"
        return self._node.new_topic(name)

    def channel_backend(
        self, topic_log: TopicLog, name: str, begin_at: int | None = None
    ) -> Backend | None:
        """Return the cursor of a channel that is being made; None if the channel is ephemeral."""
        if is_ephemeral(name):
            return None
        found = self._found.get(topic_log.name)
        if found is not None and found.log is topic_log:
            for cursor in found.channels:
                if cursor.name == name:
                    found.channels.remove(cursor)
                    return cursor
        assert self._node is not None
        return self._node.new_cursor(topic_log, name, begin_at)

    def found(self, name: str) -> FoundLog:
        """Return what the start found of a topic."""
        return self._found[name]

    def pop_keys(self) -> Iterator[tuple[str, StoredKey]]:
        """Yield the keys of idempotent publishes that the start found, with their topics."""
        if self._node is not None:
            names = {found.log.number: name for name, found in self._found.items()}
            for number, key in self._node.keys.pop_found():
                if number in names:
                    yield names[number], key

    # Snapshots

    async def run(self) -> None:
        """Take snapshots until cancelled."""
        interval_s = self._options.state_interval_ns / SECOND_NS
        while True:
            await trio.sleep(interval_s)
            if self._node is not None:
                self._node.retry()
                await self.take_snapshots()
            if self._remainders is not None:
                self._remainders.tick(self._snapshots)

    async def take_snapshots(self) -> None:
        """Commit what has changed since the last snapshots."""
        node = self._node
        if node is None:
            return
        async with self._taking:
            await self._end_snapshot(node)
            looked_at = in_flight = 0
            for topic in list(self._topics.values()):
                topic_log = topic.core.store.backend
                if not isinstance(topic_log, TopicLog) or topic_log.is_deleted:
                    continue
                for channel in [*topic.core.channels.values(), None]:
                    if channel is None:
                        self._snapshots.add_topic(topic.core, topic_log)
                    else:
                        in_flight += channel.in_flight.count
                        await self._take_snapshot(node, channel, topic_log)
                    looked_at += 1
                    if looked_at >= _LOOKED_AT_PER_TURN or in_flight >= _IN_FLIGHT_PER_TURN:
                        looked_at = in_flight = 0
                        await self._end_turn(node)
            self._snapshots.commit(node)

    async def _take_snapshot(
        self, node: LogNode, channel: ChannelState, topic_log: TopicLog
    ) -> None:
        self._steps = self._snapshots.add_channel(channel, topic_log.number)
        await self._end_snapshot(node)

    async def _end_snapshot(self, node: LogNode) -> None:
        """End the snapshot that is being taken, or that somebody who was cancelled has left."""
        while self._steps is not None:
            for _ in self._steps:
                await self._end_turn(node)
            self._steps = None

    async def _end_turn(self, node: LogNode) -> None:
        # At once: what an operator does meanwhile must come after it.
        self._snapshots.commit(node)
        await trio.lowlevel.checkpoint()

    async def commit(
        self, topic: TopicState | None = None, channel: ChannelState | None = None
    ) -> str | None:
        """Make durable what an operator did; return why that failed.

        Args:
            topic: that was paused or unpaused, or whose channel was.
            channel: that was.
        """
        if (node := self._node) is None:
            return None
        topic_log = None if topic is None else topic.store.backend
        if topic is not None and isinstance(topic_log, TopicLog):
            async with self._taking:
                await self._end_snapshot(node)
                if channel is None:
                    self._snapshots.add_topic(topic, topic_log)
                else:
                    await self._take_snapshot(node, channel, topic_log)
                self._snapshots.commit(node)
        return await wait_for_round(node.committed())

    # The stop

    async def end_rounds(self) -> None:
        """Wait until what was published so far is safe: publishers get their answers."""
        if self._node is not None:
            with trio.move_on_after(_STOP_S):
                for topic_log in list(self._node.logs.values()):
                    await wait_for_round(topic_log.last_round)

    async def close(self) -> list[str]:
        """Make everything durable, in several tries, and release the files; return what failed."""
        if self._opening is not None:
            with trio.move_on_after(_STOP_S):
                await self._opening.ended.wait()
        if (node := self._node) is None:
            return []
        if self._remainders is not None:
            self._remainders.close()
        failures = ["the log did not become durable in time"]
        with trio.move_on_after(_STOP_S):
            await retry_until_saved(partial(self._save, node, failures))
            self._folder.background.submit(node.close, lambda error: None)
            await self._folder.background.wait_idle()
        return failures

    async def _save(self, node: LogNode, failures: list[str]) -> bool:
        for topic_log in node.logs.values():
            topic_log.sync()
        await self.take_snapshots()
        error = await self.commit()
        await self._folder.background.wait_idle()
        failures[:] = [] if error is None else [f"the state of the log: {error}"]
        left = [topic_log.name for topic_log in node.logs.values() if topic_log.has_unsynced]
        failures += [f"{name}: messages in the log may not be durable" for name in left]
        return not failures
