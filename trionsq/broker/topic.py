"""The task of a topic: fans published messages out to the channels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Final

import trio

from trionsq.broker.channel import Channel
from trionsq.broker.chores import Chore, Chores
from trionsq.broker.defects import Defects
from trionsq.broker.frozen import FrozenQueue
from trionsq.broker.gathering import Gathering
from trionsq.broker.runtime import Clock
from trionsq.broker.topic_mover import TopicMover
from trionsq.core.batch import MessageBatch
from trionsq.core.bounded import QueueFull
from trionsq.core.keys import KeyUnknown, PublishKey, TopicKeys
from trionsq.core.queue import BackendBusy, BackendError
from trionsq.core.round import Round
from trionsq.core.topic import TopicState
from trionsq.transports.turn import Turn
from trionsq.wire.bodies import Bodies
from trionsq.wire.names import is_ephemeral

__all__ = ["PublishRefused", "Topic", "until_safe"]

# Channels created before other tasks get their turn: each has a task, and may have files.
_MAX_CREATED: Final = 16
# Publishers that look for room in each turn; the others wait in line behind them.
_MAX_SEEKERS: Final = 16
# Channels deleted in one turn.
_MAX_DELETE: Final = 16


class PublishRefused(Exception):
    """No message was queued; the text says why.

    Attributes:
        is_full: a queue is, whose policy refuses more.
    """

    def __init__(self, text: str, *, is_full: bool = False) -> None:
        super().__init__(text)
        self.is_full = is_full


async def until_safe(pending: Round) -> None:
    """Wait until what `Topic.publish` has taken is safe.

    Raises:
        PublishRefused: it is not stored.
    """
    if not pending.is_done:
        done = trio.Event()
        pending.when_done(done.set)
        await done.wait()
    if pending.error is not None:
        raise PublishRefused(pending.error)


def _refused_by(error: BackendError) -> PublishRefused:
    return PublishRefused(str(error), is_full=isinstance(error, QueueFull))


class Topic:
    """A topic: `core` decides, the task calls it in turns.

    Attributes:
        name: of the topic.
        core: the state of the topic.
        channels: by name.
        exiting: whether the topic is being deleted; publishing fails then.
        refusal: why publishes are refused; empty if they are not.
        keys: of its idempotent publishes.
        letters: dead letters that wait beside its queue until it has a channel.
        logged_drops: messages that policies have dropped, as far as the log says so.
        gathering: messages of the present turn, which are published at its end at the latest.
    """

    def __init__(
        self,
        core: TopicState,
        clock: Clock,
        chores: Chores,
        new_channel: Callable[[Topic, str, int | None], Channel],
        deleted: Callable[[Topic], Chore],
        channel_gone: Callable[[Topic, Channel], None],
        keys: TopicKeys,
        turn: Turn,
        failed: Callable[[Exception], None],
    ) -> None:
        """Create a topic.

        Args:
            core: its state.
            clock: time.
            chores: run long work in turns.
            new_channel: creates a channel and starts its task.
            deleted: deletes an ephemeral topic after its last channel.
            channel_gone: is called with each deleted channel.
            keys: of its idempotent publishes.
            turn: of those who publish.
            failed: gets an exception that nobody expected from a publish in a turn.
        """
        self.name = core.name
        self.core = core
        self.channels: dict[str, Channel] = {}
        self.exiting = False
        self.refusal = ""
        self.keys = keys
        self.letters = self.logged_drops = 0
        self.cancel_scope = trio.CancelScope()
        self._clock = clock
        self._chores = chores
        self._new_channel = new_channel
        self._deleted = deleted
        self._channel_gone = channel_gone
        # Set while nsqlookupds are asked for channels. The second event is for the command that
        # created the topic.
        self._preparing: trio.Event | None = None
        self._creator_waits: trio.Event | None = None
        self._mover = TopicMover(core, clock, turn)
        self.gathering = Gathering(core, clock, turn, failed)
        self._may_try_again = trio.Event()
        self._seekers: trio.Semaphore | None = None
        core.wake = self._mover.wake
        core.store.backend.caught_up = self._try_again

    def __repr__(self) -> str:
        return f"<Topic {self.core!r}>"

    def prepare(self) -> None:
        """Make the command that created the topic wait until `run` has created its channels."""
        self._preparing = self._creator_waits = trio.Event()

    def claim_wait(self) -> trio.Event | None:
        """Return the event that the creating command must wait for, None if there is none.

        The first caller is the creating command. All others go on at once; their messages are
        queued.
        """
        event, self._creator_waits = self._creator_waits, None
        return event

    async def run(
        self,
        defects: Defects,
        channels: Callable[[str], Awaitable[list[str]]] | None = None,
    ) -> None:
        """Run until the topic is deleted or the broker ends.

        Args:
            defects: notes an unexpected exception; the task starts again after a pause.
            channels: after `prepare`: returns the channels to create before the first message is
                fanned out.
        """
        what = f"TOPIC({self.name})"
        with self.cancel_scope:
            if channels is not None:
                with defects.fence("topic", what):
                    await self._create_channels(channels)
            pump = partial(self._mover.run, defects, what)
            await defects.keep_running("topic", what, pump, stops_messages=True)

    async def _create_channels(self, channels: Callable[[str], Awaitable[list[str]]]) -> None:
        assert self._preparing is not None
        try:
            for number, name in enumerate(await channels(self.name), 1):
                self.channel(name)
                if number % _MAX_CREATED == 0:
                    await trio.lowlevel.checkpoint()
        finally:
            self._preparing.set()
            self._preparing = None

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def storage(self) -> str:
        """Where its messages are kept: ``default`` or ``log``."""
        return "log" if self.has_log else "default"

    @property
    def has_log(self) -> bool:
        """Whether its messages are in a log; not before a move has ended."""
        backend = self.core.store.backend
        return backend.has_published and not isinstance(backend, FrozenQueue)

    def publish(self, bodies: Bodies, defer_ms: int = 0) -> Round | None:
        """Queue messages: all of them, or none.

        Returns the round that decides whether they are stored; None if they are.

        Raises:
            PublishRefused: the topic is being deleted, nsqd is drained, or there is no room.
        """
        if self.refusal:
            raise PublishRefused(self.refusal)
        self.gathering.publish()
        try:
            return self.core.publish(bodies, self._clock.now_ns(), defer_ms)
        except BackendError as error:
            raise _refused_by(error) from error

    def publish_batch(self, batch: MessageBatch) -> Round | None:
        """As `publish`, with ids and times that the messages have already."""
        if self.exiting:
            raise PublishRefused("exiting")
        self.gathering.publish()
        try:
            return self.core.publish_batch(batch)
        except BackendError as error:
            raise _refused_by(error) from error

    def publish_once(
        self, key: PublishKey, bodies: Bodies, defer_ms: int = 0, epoch: str = ""
    ) -> tuple[Round | None, bool]:
        """As `publish`, unless that was done with this key before.

        ``epoch``: of the nsqd that may have got it; empty if it is sent for the first time.

        Returns the round that decides whether they are stored, and whether this is a repeat.

        Raises:
            KeyReused: other messages were published with the key.
            KeyUnknown: that nsqd has ended, and the topic's keys with it.
            PublishRefused: as `publish`.
        """
        if self.exiting:
            raise PublishRefused("exiting")
        now_s = self._clock.now_s()
        known = self.keys.find(key, now_s)
        if known is not None:
            return known.round, True
        if not self.has_log and epoch not in ("", self.keys.epoch):
            raise KeyUnknown
        if self.refusal:
            raise PublishRefused(self.refusal)
        self.gathering.publish()
        try:
            pending = self.core.publish(bodies, self._clock.now_ns(), defer_ms, key)
        except BackendError as error:
            raise _refused_by(error) from error
        self.keys.add(key, now_s, pending)
        return pending, False

    @property
    def will_make_room(self) -> bool:
        """Whether the topic's task is about to move messages out of memory."""
        core = self.core
        if self._preparing is not None:
            return False
        if core.error is not None and not core.paused:
            stuck_at = core.stuck_at
            return stuck_at is not None and self.channels[stuck_at.name].will_make_room
        return core.can_pump and core.store.memory.depth > 0

    def should_wait(self, count: int) -> bool:
        """Whether ``count`` messages should be published after `wait_for_room` only.

        True while memory has no room but is about to have some, so that the messages need not go
        to disk; and while the disk is behind.
        """
        store = self.core.store
        if count <= store.limit - store.memory.depth or self.refusal:
            return False
        if store.backend.has_published:
            return store.backend.behind
        return store.backend.behind or (
            store.room < min(count, store.limit) and (self._waits_for_disk or self.will_make_room)
        )

    @property
    def _waits_for_disk(self) -> bool:
        return isinstance(self.core.error, BackendBusy)

    async def wait_for_room(self, count: int) -> None:
        """Wait while `should_wait` is true. The caller publishes without another await."""
        if self._seekers is None:
            self._seekers = trio.Semaphore(_MAX_SEEKERS)
        async with self._seekers:
            while self.should_wait(count):
                if self.core.store.backend.behind or self._waits_for_disk:
                    await self._may_try_again.wait()
                else:
                    await trio.lowlevel.checkpoint()

    def _try_again(self) -> None:
        """Let the fan-out and all waiting publishers try again."""
        if self._seekers is not None:  # somebody has waited
            self._may_try_again.set()
            self._may_try_again = trio.Event()
        self.core.retry()
        if self.core.can_pump:
            self._mover.wake()

    def channel(self, name: str, begin_at: int | None = None) -> Channel:
        """Return the channel of that name; create it if there is none. The name must be valid.

        ``begin_at``: in a log, the sequence of the first message that a new one gets.
        """
        channel = self.channels.get(name)
        if channel is None:
            self.gathering.publish()
            channel = self.channels[name] = self._new_channel(self, name, begin_at)
            channel.core.made_room = self._made_room
            channel.core.store.backend.caught_up = partial(self._channel_caught_up, channel)
            self.core.add_channel(channel.core)
            self._mover.wake_task()
        return channel

    def _channel_caught_up(self, channel: Channel) -> None:
        channel.wake()
        if self.core.error is not None:
            self._try_again()

    def _made_room(self) -> None:
        if self.core.error is not None:
            self._try_again()

    def delete_channel(self, name: str) -> Chore:
        """Delete a channel, and an ephemeral topic after its last channel.

        The chore closes the clients.
        """
        self.gathering.publish()
        channel = self.channels.pop(name)
        self.core.remove_channel(name)
        chore = channel.close()
        if is_ephemeral(self.name) and not self.channels and not self.exiting:
            self._deleted(self)
        else:
            self._try_again()
        self._channel_gone(self, channel)
        return chore

    def pause(self) -> None:
        self.core.paused = True

    def unpause(self) -> None:
        self.core.paused = False
        self._mover.wake_task()

    def empty(self) -> Chore:
        """Drop all messages of the topic, not those of its channels."""
        self.gathering.publish()
        chore = self._chores.start(self.core.empty())
        self._try_again()
        return chore

    def check(self) -> str | None:
        """Return what is wrong with the topic's counters, None if nothing is. Cheap."""
        return self.core.check()

    def mark_exiting(self) -> None:
        """Refuse publishes and subscriptions from now on: the task has ended."""
        self.gathering.publish()
        self.exiting = True
        self.refusal = "exiting"
        self._try_again()
        for channel in self.channels.values():
            channel.mark_exiting()

    def close(self) -> Chore:
        """End the task, drop all messages and delete all channels.

        Publishing and fan-out end at once. The chore deletes the channels.
        """
        self.gathering.publish()
        self.exiting = True
        self.refusal = "exiting"
        self.cancel_scope.cancel()
        emptying = self.core.empty()
        self._try_again()
        self.core.store.backend.delete()
        return self._chores.start(chain(self._delete_channels(), emptying))

    def _delete_channels(self) -> Iterator[None]:
        closing: list[Chore] = []
        while names := list(islice(self.channels, _MAX_DELETE)):
            closing += map(self.delete_channel, names)
            if self.channels:
                yield
        while closing:
            if closing[-1].is_done:
                closing.pop()
            else:
                yield
