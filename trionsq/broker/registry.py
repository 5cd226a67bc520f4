"""Topics and channels by name: how they are made, loaded and deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Final, Protocol

import trio

from trionsq.broker.channel import Channel
from trionsq.broker.chores import Chore, Chores
from trionsq.broker.defects import Defects
from trionsq.broker.logs import LogTopics
from trionsq.broker.lookup import Lookups
from trionsq.broker.moves import TopicMoves
from trionsq.broker.options import NsqdOptions
from trionsq.broker.policies import Policies
from trionsq.broker.runtime import Clock
from trionsq.broker.takeover import Takeovers
from trionsq.broker.timers import ScanQueue, run_key_window
from trionsq.broker.topic import Topic
from trionsq.core.batch import Segment
from trionsq.core.channel import ChannelState
from trionsq.core.ids import IdSource
from trionsq.core.keys import KeyWindow, TopicKeys
from trionsq.core.latency import Latencies
from trionsq.core.queue import Backend
from trionsq.core.topic import TopicState
from trionsq.durations import SECOND_NS
from trionsq.storage.discard import DiscardingBackend
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder
from trionsq.storage.log.topiclog import TopicLog
from trionsq.storage.metadata import TopicRecord
from trionsq.storage.recovery import resume_deletions
from trionsq.transports.turn import Turn
from trionsq.wire.names import is_ephemeral

__all__ = ["ChangeListener", "TopicRegistry"]

log = logging.getLogger("trionsq")

# With --mem-queue-size=0 all ephemeral messages would be dropped: this many go through memory.
_MIN_EPHEMERAL_MEMORY: Final = 256
# Names of disk queues in one log line.
_MAX_LOGGED_NAMES: Final = 5


class ChangeListener(Protocol):
    """Called after a topic (empty ``channel``) or a channel was made, or deleted (``gone``)."""

    def __call__(
        self, topic: str, channel: str = "", *, is_ephemeral: bool, gone: bool = False
    ) -> None: ...


class TopicRegistry:
    """The topics of a broker with their channels; starts the task of each.

    Attributes:
        topics: by name.
        scan_queue: when each channel is scanned for time-outs and due messages.
        ids_after_ns: message ids of deleted topics lie before this time.
        is_loading: the metadata are being loaded, so `topics` is not complete yet.
        moves: of topics to logs.
        keys: of the idempotent publishes.
        channel_made: gets each new channel.
    """

    def __init__(
        self,
        topics: dict[str, Topic],
        options: NsqdOptions,
        folder: DataFolder,
        clock: Clock,
        random: Random,
        chores: Chores,
        defects: Defects,
        lookups: Lookups,
        logs: LogTopics,
        policies: Policies,
        changed: ChangeListener,
        turn: Turn,
    ) -> None:
        self.topics = topics
        self.scan_queue = ScanQueue()
        self.ids_after_ns = 0
        self.is_loading = False
        self.moves = TopicMoves(logs, folder, defects)
        self.keys = KeyWindow(
            options.idempotency_window_ns / SECOND_NS,
            options.idempotency_max_keys,
            f"{clock.now_ns():x}",
        )
        self.channel_made: Callable[[Channel], None] = lambda channel: None
        self._options = options
        self._folder = folder
        self._clock = clock
        self._random = random
        self._chores = chores
        self._defects = defects
        self._lookups = lookups
        self._logs = logs
        self._policies = policies
        self._changed = changed
        self._turn = turn
        # Topics under deletion that still have channels, by name.
        self._closing: dict[str, list[Topic]] = {}
        self._tasks: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<TopicRegistry topics={len(self.topics)}>"

    def run_in(self, tasks: trio.Nursery) -> None:
        """Start the tasks of topics and channels in this nursery from now on."""
        self._tasks = tasks
        self.moves.run_in(tasks)
        forget = partial(run_key_window, self.keys, self._clock)
        keep_running, name = self._defects.keep_running, "idempotency keys"
        tasks.start_soon(keep_running, "keys", "NSQ: keys", forget, name=name)

    def topic(self, name: str, storage: str = "") -> Topic:
        """Get or make the topic of a valid name.

        A command that makes it has to wait for `Topic.claim_wait`. ``storage`` is where a new one
        keeps its messages: ``default`` or ``log``, after `LogTopics.ensure_node`; empty: --storage
        says.
        """
        return self.topics.get(name) or self._new_topic(name, storage)

    def _new_topic(self, name: str, storage: str) -> Topic:
        assert self._tasks is not None, "the broker does not run"
        ids = IdSource(self._options.node_id, self.ids_after_ns)
        backend = self._logs.topic_backend(name, is_loading=self.is_loading, storage=storage)
        core = TopicState(name, self._memory_limit(name), backend or self._backend(name, name), ids)
        if isinstance(backend, TopicLog):
            backend.refused = core.forget_published
        topic = self.topics[name] = Topic(
            core,
            self._clock,
            self._chores,
            self._new_channel,
            self._delete_topic,
            self._channel_gone,
            TopicKeys(self.keys),
            self._turn,
            partial(self._defects.note, "topic", f"TOPIC({name})"),
        )
        self._policies.settle_topic(core)
        log.info("TOPIC(%s): created", name)
        self._changed(name, is_ephemeral=topic.is_ephemeral)
        run = partial(topic.run, self._defects)
        if self._lookups.known:
            topic.prepare()
            run = partial(topic.run, self._defects, self._lookups.channels)
        self._tasks.start_soon(run, name=f"topic {name}")
        return topic

    def _new_channel(self, topic: Topic, name: str, begin_at: int | None) -> Channel:
        assert self._tasks is not None, "the broker does not run"
        self._delete_old_channel(topic.name, name)
        topic_log = topic.core.store.backend
        backend: Backend | None = None
        if isinstance(topic_log, TopicLog):
            backend = self._logs.channel_backend(topic_log, name, begin_at)
            if backend is None:
                backend = DiscardingBackend(partial(_is_for, topic_log, name))
        backend = backend or self._backend(name, f"{topic.name}:{name}")
        core = ChannelState(name, self._memory_limit(name), backend, self._random)
        core.failed = partial(self._defects.note, "channel", f"CHANNEL({topic.name}:{name})")
        core.due_on_clock_ns = partial(self._clock.due_ns, self._options.max_delay_ns)
        core.clock_ns = self._clock.deferral_ns
        core.wake_at = partial(self.scan_queue.set_time, core)
        if begin_at is not None:
            core.replayed_count = core.depth
        if core.deferred_count:  # in a log, since before the start
            core.scan_at(0.0)
        if self._options.e2e_processing_latency_percentile:
            window_s = self._options.e2e_processing_latency_window_time_ns / SECOND_NS
            core.latencies = Latencies(window_s, self._clock.now_ns, self._clock.now_s())
            core.note_finished = core.latencies.record_finished
        self._policies.settle_channel(topic.core, core)
        channel = Channel(topic, core, self._clock, self._chores, self._turn)
        self.channel_made(channel)
        log.info("TOPIC(%s): new channel(%s)", topic.name, name)
        self._changed(topic.name, name, is_ephemeral=topic.is_ephemeral or channel.is_ephemeral)
        self._tasks.start_soon(channel.run, self._defects, name=f"channel {topic.name}:{name}")
        return channel

    def _memory_limit(self, name: str) -> int:
        size = self._options.mem_queue_size
        return max(size, _MIN_EPHEMERAL_MEMORY) if is_ephemeral(name) and not size else size

    def _backend(self, name: str, queue: str) -> Backend:
        """``queue`` is the name of the disk queue."""
        return DiscardingBackend() if is_ephemeral(name) else DiskQueue(queue, self._folder)

    async def load(self, records: Sequence[TopicRecord]) -> None:
        """Make the topics and channels that the metadata name, and those that have a log.

        A cancellation may leave out keys of idempotent publishes.

        Raises:
            DataPathError: a log cannot be opened.
        """
        self.is_loading = True
        with_log = self._logs.open()
        self.ids_after_ns = max(self.ids_after_ns, self._logs.ids_after_ns)
        # The state of the logs leads: it was saved before what depends on it. But the original may
        # have had the data path meanwhile.
        ours = self._logs.wrote_metadata()
        others = {} if ours in (True, None) else {record.name: record for record in records}
        due_on_clock_ns = partial(self._clock.due_ns, self._options.max_delay_ns)
        takeovers = Takeovers(self._logs, self._folder, self.moves, due_on_clock_ns)
        taken_over = await takeovers.run({one: self._logs.found(one) for one in with_log}, others)
        for record in records:
            if ours and record.name in with_log:
                continue
            topic = self.topic(record.name)
            topic.core.paused = record.paused
            for channel_record in record.channels:
                channel = topic.channel(channel_record.name)
                channel.core.paused = channel_record.paused
        for name in with_log:
            found = self._logs.found(name)
            topic = self.topic(name)
            other = others.get(name)
            topic.core.paused = found.log.is_paused if other is None else other.paused
            paused = {} if other is None else {one.name: one.paused for one in other.channels}
            lacks = [] if other is not None or ours is not False else [name]
            for cursor in list(found.log.cursors.values()):
                core = topic.channel(cursor.name).core
                core.paused = paused.get(cursor.name, cursor.is_paused)
                if other is not None and cursor.name not in paused:
                    lacks.append(f"{name}:{cursor.name}")
            for lacking in lacks:
                log.warning("NSQ: nsqd.dat, of another nsqd, lacks %s, which stays", lacking)
        self.is_loading = False
        self._log_orphan_queues(taken_over)
        if self.keys.is_open:
            found_keys = ((self.topics[name].keys, key) for name, key in self._logs.pop_keys())
            now_s, now_ns = self._clock.now_s(), self._clock.now_ns()
            for _ in self.keys.load_steps(found_keys, now_s, now_ns):
                await trio.lowlevel.checkpoint()
        if self._options.move_topics:
            self.moves.begin_all(self.topics)

    def _log_orphan_queues(self, taken_over: set[str]) -> None:
        """Log which disk queues nobody reads. As in nsqd, their files stay."""
        known = taken_over | {
            queue
            for topic in self.topics.values()
            if not topic.has_log
            for queue in (topic.name, *(f"{topic.name}:{name}" for name in topic.channels))
        }
        found = resume_deletions(self._folder, known)
        with_log = {name for name, topic in self.topics.items() if topic.has_log}
        if unread := [queue for queue in found if queue.partition(":")[0] in with_log]:
            log.error(
                "NSQ: %d disk queues of topics that have a log hold messages; nobody reads "
                "them: %s",
                len(unread),
                ", ".join(unread[:_MAX_LOGGED_NAMES]),
            )
        if orphans := [queue for queue in found if queue not in unread]:
            log.warning(
                "NSQ: found %d disk queues without a topic or channel; they are loaded if it is "
                "created again: %s",
                len(orphans),
                ", ".join(orphans[:_MAX_LOGGED_NAMES]),
            )

    def delete_topic(self, name: str) -> Chore:
        """Delete a topic with its channels: their clients are closed, messages are discarded.

        A new topic of that name can be made at once; the chore does the work.

        Raises:
            KeyError: there is no such topic.
        """
        return self._delete_topic(self.topics[name])

    def _delete_topic(self, topic: Topic) -> Chore:
        log.info("TOPIC(%s): deleting", topic.name)
        del self.topics[topic.name]
        # A new topic of that name must not use these ids again.
        self.ids_after_ns = max(self.ids_after_ns, topic.core.ids.until_ns)
        chore = topic.close()
        if topic.channels:
            self._closing.setdefault(topic.name, []).append(topic)
        self._changed(topic.name, is_ephemeral=topic.is_ephemeral, gone=True)
        return chore

    def _delete_old_channel(self, topic_name: str, name: str) -> None:
        """Delete the channel of a deleted topic: its files must go before there are new ones."""
        for topic in list(self._closing.get(topic_name, ())):
            if name in topic.channels:
                topic.delete_channel(name)

    def _channel_gone(self, topic: Topic, channel: Channel) -> None:
        closing = self._closing.get(topic.name, [])
        if not topic.channels and topic in closing:
            closing.remove(topic)
            if not closing:
                del self._closing[topic.name]
        is_ephemeral = topic.is_ephemeral or channel.is_ephemeral
        self._changed(topic.name, channel.name, is_ephemeral=is_ephemeral, gone=True)

    def finish_deletions(self) -> None:
        """Delete what is left of topics under deletion, all at once: nsqd stops."""
        for topic in [topic for topics in self._closing.values() for topic in topics]:
            for name in list(topic.channels):
                topic.delete_channel(name)

    def count_held(self) -> int:
        """Count the messages that are only in memory."""
        return sum(queue.held for queue in self._states())

    def _states(self) -> Iterator[TopicState | ChannelState]:
        for topic in self.topics.values():
            yield topic.core
            for channel in topic.channels.values():
                yield channel.core


def _is_for(topic_log: TopicLog, channel: str, segment: Segment) -> bool:
    sequences = segment.batch.sequences
    return sequences is None or topic_log.is_for(sequences[segment.first], channel)
