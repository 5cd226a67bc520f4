"""A node with logs, without a broker: the cores of topics and channels, and their consumers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

from tests.storage.log.sweep.account import (
    Broken,
    ChannelAccount,
    KeyedPublish,
    Message,
    Place,
    Told,
    TopicAccount,
)
from trionsq.core.channel import ChannelState
from trionsq.core.ids import IdSource, ns_after_id
from trionsq.core.keys import KeyWindow, PublishKey, TopicKeys
from trionsq.core.queue import BackendError
from trionsq.core.round import STORED, Round
from trionsq.core.subscription import Delivery, Subscription
from trionsq.core.topic import TopicState
from trionsq.storage.folder import DataFolder
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.groupcommit import GroupCommit
from trionsq.storage.log.names import parse_segment_name
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.opening import open_logs
from trionsq.storage.log.remainders import Remainders
from trionsq.storage.log.retention import Retention, Retentions
from trionsq.storage.log.rows import State, StateError
from trionsq.storage.log.snapshot import Snapshots
from trionsq.storage.log.storedkeys import StoredKeys
from trionsq.storage.log.topiclog import TopicLog
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import SimulatedDisk
from trionsq.wire.bodies import ListBodies

__all__ = ["LiveChannel", "LiveTopic", "World"]

MSG_TIMEOUT_S: Final = 10.0
# Ticks until a log without a new segment is looked at again for remainders.
PATIENCE: Final = 2
# No history is so long.
_WINDOW_NS: Final = 10**15
_MAX_KEYS: Final = 100_000
_MAX_TURNS: Final = 2_000


class Consumer:
    """A client of a channel, which holds what it gets."""

    def __init__(self, world: World, channel: LiveChannel, sample_rate: int) -> None:
        self.subscription = Subscription(self._offer, MSG_TIMEOUT_S, sample_rate)
        self.unwritten: list[Delivery] = []
        self.refuses = False
        self._world = world
        self._channel = channel

    def _offer(self, delivery: Delivery) -> bool:
        if self.refuses:
            return False
        delivery.written = True
        self._channel.got(delivery, self._world)
        return True


class LiveChannel:
    """A channel that is served."""

    def __init__(self, core: ChannelState, account: ChannelAccount, topic: LiveTopic) -> None:
        self.core = core
        self.account = account
        self.topic = topic
        self.consumers: list[Consumer] = []
        self.by_id: dict[bytes, Message] = {}

    def got(self, delivery: Delivery, world: World) -> None:
        bodies = delivery.batch.bodies.slice(delivery.first, delivery.last)
        for id_, body in zip(delivery.ids, bodies, strict=True):
            message = self.topic.account.messages.get(bytes(body))
            if message is None:
                raise Broken(f"{bytes(body)!r} came to {self!r}, and was never published there")
            if message.id is None:
                message.id = id_
                if self.topic.account.owners.setdefault(id_, message) is not message:
                    raise Broken(f"two messages have the id {id_!r}")
            if message.id != id_:
                raise Broken(f"{message.body!r} has two ids")
            self.account.deliver(message, world.now_ns)
            self.by_id[id_] = message

    def __repr__(self) -> str:
        return f"<{self.topic.account.name}:{self.account.name} {self.account.number}>"

    @property
    def cursor(self) -> Cursor:
        cursor = self.core.store.backend
        assert isinstance(cursor, Cursor)
        return cursor

    def held(self) -> list[tuple[Consumer, bytes]]:
        return [(one, id_) for one in self.consumers for id_ in one.subscription.in_flight]


class LiveTopic:
    """A topic that is served."""

    def __init__(self, core: TopicState, account: TopicAccount, window: KeyWindow) -> None:
        self.core = core
        self.account = account
        self.keys = TopicKeys(window)
        self.channels: dict[str, LiveChannel] = {}

    @property
    def is_even(self) -> bool:
        """Whether channels have got all that they should; not while messages are being read."""
        return self.core.depth == len(self.account.waiting)

    @property
    def log(self) -> TopicLog:
        log = self.core.store.backend
        assert isinstance(log, TopicLog)
        return log


class World:
    """A node from its start to its stop."""

    def __init__(
        self,
        random: Random,
        disk: SimulatedDisk,
        open_state: Callable[[SimulatedDisk], State],
        durability: str,
        segment_bytes: int,
        journal_bytes: int,
    ) -> None:
        self.random = random
        self.disk = disk
        self.durability = durability
        self.accounts: dict[int, TopicAccount] = {}
        self.topics: dict[str, LiveTopic] = {}
        self.now_s = 1000.0
        self.now_ns = 1_700_000_000_000_000_000
        self.published = 0
        # A bit was flipped: what that may cost is not an error.
        self.is_damaged = False
        # The disk fails at times: what that leaves uncertain may be gone at a later start.
        self.has_faults = False
        # Messages that the state knows may be gone.
        self.may_lose = False
        self._open_state = open_state
        self._segment_bytes = segment_bytes
        self._journal_bytes = journal_bytes
        self.retain_bytes = random.choice((0, 0, 600, 3_000))
        # Of what threads do; it leaves the story of a seed as it is.
        self._threads = Random(random.getstate()[1][0])
        self._waits = Random(random.getstate()[1][1])
        # In few histories: each wait changes the rest of one.
        self._wait_share = self._waits.choice((0.0,) * 7 + (0.5,))
        self.jobs = HeldBackground()
        self._ids_after_ns = 0

    # A start

    def open(self) -> None:
        """Start on the present disk; compare what is there with what must be."""
        self.jobs = HeldBackground()
        self.jobs.writes_directly = self._threads.random() < 0.5
        self.topics = {}
        folder = DataFolder(self.disk, self.jobs)
        state = self._open_state(self.disk)
        content = state.load()
        self.node = LogNode(
            folder,
            state,
            durability=self.durability,
            segment_bytes=self._segment_bytes,
            journal_bytes=self._journal_bytes,
            next_number=content.next_number,
            keys=StoredKeys(_WINDOW_NS, _MAX_KEYS),
        )
        # From how many messages on a thread goes from job to job.
        self.node._jobs._messages_to_go_on = self._threads.choice((1, 64))
        self.node._jobs._group_commit = _DiceCommit(self._waits, self._wait_share)
        self.window = KeyWindow(_WINDOW_NS / 1e9, _MAX_KEYS)
        self.snapshots = Snapshots(Retentions(Retention(nbytes=self.retain_bytes)))
        self.remainders = Remainders(self.node, share=0.5, min_bytes=0, patience=PATIENCE)
        seen: set[int] = set()
        try:
            opened = open_logs(self.node, content)
        except (StateError, OSError):
            state.close()  # a connection that nobody holds would end much later, and take the WAL
            raise
        for found in opened:
            log = found.log
            account = self.accounts.get(log.number)
            if account is None or account.deleted is Told.OK:
                raise Broken(f"{log.name} {log.number} was deleted, and is there")
            if log.name in self.topics:
                raise Broken(f"{log.name} is there twice")
            account.is_deleted = False
            seen.add(log.number)
            if found.last_id:
                self._ids_after_ns = max(self._ids_after_ns, ns_after_id(found.last_id))
            self._serve_found(log, account, found.channels)
        for topic in self.topics.values():
            topic.core.ids = IdSource(1, self._ids_after_ns)
        keys = {topic.account.number: topic.keys for topic in self.topics.values()}
        found_keys = ((keys[n], key) for n, key in self.node.keys.pop_found() if n in keys)
        list(self.window.load_steps(found_keys, self.now_s, self.now_ns))
        for number, account in list(self.accounts.items()):
            if number not in seen:
                self._lost_topic(account)
                del self.accounts[number]
        faults = self.node.folder.faults
        if faults and not self.is_damaged and not self.has_faults:
            raise Broken(f"the start tells of {faults}")

    @staticmethod
    def _lost_topic(account: TopicAccount) -> None:
        if account.deleted is not Told.NOTHING or account.is_deleted:
            return
        if account.created is Told.OK:
            raise Broken(f"the topic {account.name} {account.number} is gone")

    def _serve_found(self, log: TopicLog, account: TopicAccount, cursors: list[Cursor]) -> None:
        core = TopicState(log.name, 0, log, IdSource(1))
        log.refused = core.forget_published
        topic = self.topics[log.name] = LiveTopic(core, account, self.window)
        core.paused = log.is_paused
        _compare_pause(account, log.is_paused)
        found: set[int] = set()
        for cursor in cursors:
            channel = account.channels.get(cursor.number)
            if channel is None or channel.deleted is Told.OK:
                raise Broken(f"{log.name}:{cursor.name} {cursor.number} was deleted, and is there")
            if cursor.name in topic.channels:
                raise Broken(f"{log.name}:{cursor.name} is there twice")
            if channel.is_deleted:
                channel.is_deleted = False
            found.add(cursor.number)
            live = self._serve_channel(topic, channel, cursor)
            _compare_pause(channel, cursor.is_paused)
            live.core.paused = cursor.is_paused
        for number, channel in list(account.channels.items()):
            if number not in found:
                if channel.created is Told.OK and not (
                    channel.is_deleted or channel.deleted is not Told.NOTHING
                ):
                    raise Broken(f"the channel {log.name}:{channel.name} {number} is gone")
                del account.channels[number]
        account.fan_out()
        self._compare_counts(topic)

    def _compare_counts(self, topic: LiveTopic) -> None:
        self.check(topic)
        if self.is_damaged:
            return
        for channel in topic.channels.values():
            core = channel.core
            owed = [one.body[:6] for one in channel.account.owed()]
            count = core.depth + core.deferred_count
            if count < len(owed) and topic.core.depth == 0:
                raise Broken(f"{channel!r} has {count} messages and owes {owed}")

    def check(self, topic: LiveTopic) -> None:
        found = topic.core.check()
        for channel in topic.channels.values():
            found = found or channel.core.check()
            lost = channel.core.dropped["damaged"]
            may_fail = self.has_faults and self.durability == "interval"
            if lost and not (self.may_lose or may_fail or topic.account.is_torn):
                raise Broken(f"{channel!r} counts damaged: {lost}")
        if found:
            raise Broken(f"{topic.account.name}: {found}")
        if self.jobs.defects.count:
            raise Broken(self.jobs.defects.last)

    # A stop

    def close(self) -> None:
        """As SIGTERM."""
        self.settle()
        for topic in self.topics.values():
            topic.core.save()
            for channel in topic.channels.values():
                channel.core.save()
            topic.log.sync()
        self.remainders.close()
        self.answer(lambda: None)
        self.jobs.run_all()
        for topic in self.topics.values():
            if topic.log.has_unsynced:
                raise Broken(f"{topic.log!r} is not durable after a stop")
        self.note_synced()
        self.node.close()
        left = [name for name in self.disk.files() if name.startswith("trionsq.journal")]
        if left and not self.has_faults:
            raise Broken(f"the stop leaves {left}")

    def stop(self, *, is_crash: bool, has_lost_power: bool) -> None:
        """The node has stopped."""
        self.now_s += 3
        self.now_ns += 3_000_000_000
        self.may_lose |= has_lost_power and self.durability == "interval"
        for account in self.accounts.values():
            if not is_crash:  # the power may be cut behind it
                unsure = [one for one in account.messages.values() if one.is_unsure]
                self.may_lose |= bool(unsure)
                account.doubt(unsure)
            account.stop(
                is_crash=is_crash, has_lost_power=has_lost_power, has_faults=self.has_faults
            )

    def note_uncertain(self) -> None:
        """An fsync has failed, and nobody is there any more who has the messages in memory."""
        newest: dict[int, tuple[int, str]] = {}
        for name in self.disk.files():
            if (parsed := parse_segment_name(name)) is not None:
                _, number, first = parsed
                newest[number] = max(newest.get(number, (-1, "")), (first, name))
        uncertain = self.disk.uncertain_files()
        for number, (_, name) in newest.items():
            # What stood in others was written again.
            if name in uncertain and number in self.accounts:
                for message in self.accounts[number].messages.values():
                    message.is_unsure |= not message.durable

    def forgive(self, name: str) -> None:
        """A file was damaged: what was in it, or may have been, need not come."""
        self.is_damaged = self.may_lose = True
        parsed = parse_segment_name(name)
        for number, account in self.accounts.items():
            if parsed is None or number == parsed[1]:
                account.doubt(list(account.messages.values()))

    # Topics and channels

    def make_topic(self, name: str) -> None:
        log = self.node.new_topic(name)
        account = self.accounts[log.number] = TopicAccount(name, log.number)
        core = TopicState(name, 0, log, IdSource(1, self._ids_after_ns))
        log.refused = core.forget_published
        self.topics[name] = LiveTopic(core, account, self.window)
        self.confirm(lambda: _set(account, "created", Told.OK))

    def make_channel(self, topic: LiveTopic, name: str, begin_at: int | None = None) -> None:
        is_sure, log = topic.is_even, topic.log
        cursor = self.node.new_cursor(log, name, begin_at)
        account = topic.account.add_channel(name, cursor.number, is_sure=is_sure)
        self._serve_channel(topic, account, cursor)
        if begin_at is not None:
            messages = topic.account.messages.values()
            # What it passes over is owed to nobody any more.
            topic.account.doubt([one for one in topic.account.waiting if one.sequence < begin_at])
            account.seek(messages, begin_at, log.frontier, is_sure=is_sure, is_new=True)
        topic.account.fan_out()
        self.confirm(lambda: _set(account, "created", Told.OK))

    def _serve_channel(
        self, topic: LiveTopic, account: ChannelAccount, cursor: Cursor
    ) -> LiveChannel:
        core = ChannelState(account.name, self.random.choice((0, 1, 3, 1000)), cursor, self.random)
        live = topic.channels[account.name] = LiveChannel(core, account, topic)
        topic.core.add_channel(core)
        return live

    def delete_channel(self, topic: LiveTopic, name: str) -> None:
        channel = topic.channels.pop(name)
        account = channel.account
        account.is_deleted = True
        # What was still on its way may belong to the next channel.
        topic.core.remove_channel(name)
        channel.core.close()
        _exhaust(channel.core.empty())
        channel.cursor.delete()
        account.deleted = Told.UNKNOWN
        for entry in account.entries.values():
            if entry.place is not Place.GONE:
                entry.place = Place.POSSIBLE
        self.confirm(lambda: _set(account, "deleted", Told.OK))

    def delete_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        self._ids_after_ns = max(self._ids_after_ns, topic.core.ids.until_ns)
        account = topic.account
        account.is_deleted = True
        _exhaust(topic.core.empty())
        topic.log.delete()
        for channel in list(topic.channels.values()):
            topic.core.remove_channel(channel.account.name)
            channel.core.close()
            _exhaust(channel.core.empty())
            channel.cursor.delete()
            channel.account.deleted = Told.UNKNOWN
        account.deleted = Told.UNKNOWN
        account.doubt(list(account.messages.values()))
        self.confirm(lambda: _set(account, "deleted", Told.OK))

    def pause_topic(self, topic: LiveTopic, *, paused: bool) -> None:
        topic.core.paused = paused
        account = topic.account
        self._answer_pause(account, paused=paused)
        account.fan_out()

    def pause_channel(self, channel: LiveChannel, *, paused: bool) -> None:
        if paused:
            channel.core.pause()
        else:
            channel.core.unpause(self.now_s)
        self._answer_pause(channel.account, paused=paused)

    def _answer_pause(self, account: TopicAccount | ChannelAccount, *, paused: bool) -> None:
        account.paused = paused
        account.pauses += 1
        pauses = account.pauses
        account.pause_is_saved = False

        def saved() -> None:
            account.pause_is_saved |= account.pauses == pauses

        self.answer(saved)

    def empty_topic(self, topic: LiveTopic) -> None:
        account = topic.account
        is_sure = topic.is_even
        dropped = list(account.waiting)
        _exhaust(topic.core.empty())
        account.waiting = []

        def answered() -> None:
            if is_sure:
                for channel in account.channels.values():
                    for message in dropped:
                        channel.put(message, Place.GONE)
                for message in dropped:
                    message.told = Told.EMPTIED

        for message in dropped:
            message.told = Told.UNKNOWN
        if not is_sure:
            account.doubt(list(account.messages.values()))
        self.confirm(answered)

    def empty_channel(self, channel: LiveChannel) -> None:
        is_sure = channel.topic.is_even
        _exhaust(channel.core.empty())
        dropped = channel.account.empty(is_sure=is_sure)

        def answered() -> None:
            for entry in dropped:
                entry.place = Place.GONE

        self.confirm(answered)

    def seek_channel(self, channel: LiveChannel, sequence: int) -> None:
        cursor, messages = channel.cursor, channel.topic.account.messages.values()
        is_sure = channel.topic.is_even
        _exhaust(channel.core.seek(lambda: cursor.seek(sequence)))
        channel.account.seek(messages, sequence, cursor.frontier, is_sure=is_sure, is_new=False)
        self.answer(lambda: None)

    # Messages

    def publish(
        self, topic: LiveTopic, count: int, defer_ms: int, *, with_key: bool = False
    ) -> None:
        messages: list[Message] = []
        for _ in range(count):
            self.published += 1
            size = self.random.choice((0, 3, 40, 200))
            messages.append(Message(b"%06d" % self.published + b"x" * size))
        keyed = None
        if with_key:
            digest = b"%016d" % self.published
            keyed = KeyedPublish(PublishKey(b"%d" % self.published, digest), messages, defer_ms)
            topic.account.keyed.append(keyed)
        self._publish(topic, messages, defer_ms, keyed)

    def repeat(self, topic: LiveTopic, keyed: KeyedPublish) -> None:
        """As a publisher that lost the answer, or did not believe it."""
        told = {message.told for message in keyed.messages}
        was_seen = any(message.id is not None for message in keyed.messages)
        known = topic.keys.find(keyed.key, self.now_s)
        if known is None:
            is_promised = keyed.is_confirmed or Told.EMPTIED in told
            if Told.OK in told or (is_promised and self.durability == "always"):
                raise Broken(f"{keyed.key} was acknowledged, and is forgotten")
            if not (was_seen and self.may_lose):  # what was lost comes with another id
                for channel in topic.account.channels.values():
                    channel.forget(keyed.messages)
                self._publish(topic, keyed.messages, keyed.defer_ms, keyed)
        elif known.round is None or known.round.is_done:
            # It is answered OK without being stored again.
            for message in keyed.messages:
                if message.lowest_sequence >= topic.log.end:
                    raise Broken(f"{message.body!r} is no more, and its key is there")
            keyed.is_confirmed = True

    def _publish(
        self,
        topic: LiveTopic,
        messages: list[Message],
        defer_ms: int,
        keyed: KeyedPublish | None,
    ) -> None:
        account = topic.account
        for sequence, message in enumerate(messages, topic.log.end):
            message.sequence, message.told = sequence, Told.NOTHING
            message.lowest_sequence = min(sequence, message.lowest_sequence)
        bodies = ListBodies([one.body for one in messages])
        key = None if keyed is None else keyed.key
        try:
            pending = topic.core.publish(bodies, self.now_ns, defer_ms, key) or STORED
        except BackendError as error:
            raise Broken(f"a publish was refused: {error}") from error
        if key is not None:
            topic.keys.add(key, self.now_s, pending)
        if defer_ms:
            # Publishes of one round may share the time of the first.
            began_ns = account.rounds.setdefault(pending, self.now_ns)
            for message in messages:
                message.due_ns = began_ns + defer_ms * 1_000_000
        account.messages.update((one.body, one) for one in messages)
        channels = account.live_channels()

        def ended() -> None:
            if account.is_deleted:
                return
            if pending.error is not None:
                account.refused += len(messages)
                for message in messages:
                    message.told = Told.REFUSED
                return
            for message in messages:
                message.told = Told.OK
                message.durable = self.durability == "always"
            # Who made them by the way was never answered, but this OK depends on them.
            account.created = Told.OK
            for channel in channels:
                channel.created = Told.OK
            account.waiting += messages
            account.fan_out()

        pending.when_done(ended)

    def subscribe(self, channel: LiveChannel, sample_rate: int = 0) -> None:
        consumer = Consumer(self, channel, sample_rate)
        channel.consumers.append(consumer)
        if sample_rate:
            channel.account.is_sampled = True
            channel.account.doubt(list(channel.account.entries))
        channel.core.add_subscription(consumer.subscription)

    def finish(self, channel: LiveChannel, consumer: Consumer, ids: list[bytes]) -> None:
        for id_ in ids:
            channel.account.finish(channel.by_id[id_])
        if channel.core.finish(consumer.subscription, ids, self.now_s) is not None:
            raise Broken("a message that was delivered is not in flight")

    def requeue(self, channel: LiveChannel, consumer: Consumer, id_: bytes, delay_ms: int) -> None:
        due_ns = self.now_ns + delay_ms * 1_000_000 if delay_ms else 0
        channel.account.give_back(channel.by_id[id_], due_ns)
        core, subscription = channel.core, consumer.subscription
        if not core.requeue(subscription, id_, delay_ms, self.now_s, self.now_ns):
            raise Broken("a message that was delivered cannot be requeued")

    def disconnect(self, channel: LiveChannel, consumer: Consumer, *, requeue_now: bool) -> None:
        channel.consumers.remove(consumer)
        for id_ in list(consumer.subscription.in_flight):
            channel.account.give_back(channel.by_id[id_])
        channel.core.remove_subscription(consumer.subscription, [], requeue_now, self.now_s)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.now_ns += round(seconds * 1e9)
        for topic in self.topics.values():
            for channel in topic.channels.values():
                for consumer in channel.consumers:
                    for id_, delivery in consumer.subscription.in_flight.items():
                        if delivery.deadline_s <= self.now_s:
                            channel.account.give_back(channel.by_id[id_])
                channel.core.scan(self.now_s, self.now_ns)

    # The state

    def tick(self) -> None:
        """What happens every --state-interval."""
        self.node.retry()
        self.answer(lambda: None)
        self.remainders.tick(self.snapshots)

    def answer(self, answered: Callable[[], None]) -> None:
        """Commit all that has changed; then an operator hears OK, unless it failed."""
        saved: list[Callable[[], None]] = []
        for topic in self.topics.values():
            for channel in topic.channels.values():
                for _ in self.snapshots.add_channel(channel.core, topic.log.number):
                    pass
                saved.append(channel.account.seen_by_snapshot())
            self.snapshots.add_topic(topic.core, topic.log)
            saved.append(topic.account.refusals_saved())
        self.snapshots.commit(self.node)

        def is_saved() -> None:
            for note in saved:
                note()
            answered()

        self.confirm(is_saved)

    def confirm(self, answered: Callable[[], None]) -> None:
        """An operator hears OK when all that was asked for is committed, unless that failed."""
        committed = self.node.committed() or _done()

        def ended() -> None:
            if committed.error is None:
                answered()

        committed.when_done(ended)

    def sync(self) -> None:
        """What happens every --sync-timeout."""
        for topic in self.topics.values():
            if topic.log in self.node.folder.changed:  # what `always` lacks, a journal has
                topic.log.sync()

    def note_synced(self) -> None:
        """In `interval` what was acknowledged is durable when nothing is unsynced."""
        for topic in self.topics.values():
            if not topic.log.has_unsynced:
                for message in topic.account.messages.values():
                    message.durable |= message.told is Told.OK and not message.is_unsure

    # Turns

    def settle(self, jobs: int | None = None) -> None:
        """Run jobs (None: all), and what they wake."""
        for topic in self.topics.values():
            chance = self._threads.random()  # what comes next has to be read
            if chance < 0.03:
                topic.log.cache.clear()
            elif chance < 0.1:
                topic.log.cache.evict_batch()
        for _ in range(_MAX_TURNS):
            moved = self._turn()
            if self.jobs and (jobs is None or jobs > 0):
                if jobs is not None:
                    jobs -= 1
                if self._threads.random() < 0.3:
                    with suppress(IndexError):  # none waits
                        self.jobs.start_one()  # before the one before it is told of
                self.jobs.run_one()
                moved = True
            if not moved:
                return
        raise Broken("it never comes to rest")

    def _turn(self) -> bool:
        moved = False
        for topic in list(self.topics.values()):
            while topic.core.pump(self.now_s, self.now_ns):
                moved = True
            for channel in list(topic.channels.values()):
                before = channel.core.in_flight.count, channel.core.deferred_count
                channel.core.scan(self.now_s, self.now_ns)
                moved |= before != (channel.core.in_flight.count, channel.core.deferred_count)
        return moved


class _DiceCommit(GroupCommit):
    """Some rounds wait for more messages, which may come or not."""

    def __init__(self, random: Random, share: float) -> None:
        super().__init__()
        self.wait_s = 0.0
        self._random = random
        self._share = share

    def end_round(self, messages: int, gathered: int, took_s: float, now_s: float) -> int:
        if self._random.random() < self._share:
            return gathered + self._random.randint(1, 4)
        return 0

    def goes_on_waiting(self, missing: int) -> bool:
        return self._random.random() < 0.3


def _compare_pause(account: TopicAccount | ChannelAccount, found: bool) -> None:
    if account.pause_is_saved and account.paused != found:
        raise Broken(f"{account.name} is paused: {found}; the operator heard: {account.paused}")
    account.paused = found
    account.pause_is_saved = True


def _set(target: object, name: str, value: object) -> None:
    setattr(target, name, value)


def _exhaust(steps: object) -> None:
    for _ in steps:  # type: ignore[attr-defined]
        pass


def _done() -> Round:
    round_ = Round()
    round_.finish()
    return round_
