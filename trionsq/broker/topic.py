"""The task of a topic: takes what was published and fans it out to the channels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Final

import trio

from trionsq.broker.channel import Channel
from trionsq.broker.chores import Chore, Chores
from trionsq.broker.clock import Clock
from trionsq.broker.defects import Defects
from trionsq.broker.inbox import WakeUp
from trionsq.core.queue import BackendBusy, BackendError
from trionsq.core.topic import TopicState
from trionsq.wire.bodies import Bodies
from trionsq.wire.names import is_ephemeral

__all__ = ["PublishRefused", "Topic"]

# Channels that are made before other tasks get their turn: each has a task and maybe files.
_MADE_MAX: Final = 16
# What the task does before others get their turn: so many segments, or so much work in units of
# `core.Channel.put`, which is about a millisecond.
_SEGMENTS_MAX: Final = 16
_COST_MAX: Final = 1024
# Publishers that look for room in each turn; others stand in line behind them.
_SEEKERS_MAX: Final = 16
# Channels that a turn deletes.
_DELETE_MAX: Final = 16


class PublishRefused(Exception):
    """Nothing was queued; the text says why."""


class Topic:
    """A topic: the decisions are `core`'s, the task gives them their turn.

    Attributes:
        name: of the topic.
        core: its state.
        channels: by name.
        exiting: it is being deleted; publishing fails.
    """

    def __init__(
        self,
        core: TopicState,
        clock: Clock,
        chores: Chores,
        new_channel: Callable[[Topic, str], Channel],
        deleted: Callable[[Topic], Chore],
        channel_gone: Callable[[Topic, Channel], None],
    ) -> None:
        """``new_channel`` makes a channel and starts its task; ``deleted`` hears of the end."""
        self.name = core.name
        self.core = core
        self.channels: dict[str, Channel] = {}
        self.exiting = False
        self.cancel_scope = trio.CancelScope()
        self._clock = clock
        self._chores = chores
        self._new_channel = new_channel
        self._deleted = deleted
        self._channel_gone = channel_gone
        # While it is found out which channels there are elsewhere; and for whom that is waited.
        self._preparing: trio.Event | None = None
        self._creator_waits: trio.Event | None = None
        self._wake_up = WakeUp()
        self._may_go_on = trio.Event()
        self._seekers: trio.Semaphore | None = None
        core.wake = self._wake_up.wake
        core.store.backend.caught_up = self._go_on

    def __repr__(self) -> str:
        return f"<Topic {self.core!r}>"

    def prepare(self) -> None:
        """Have the creating command wait for the channels that `run` is given."""
        self._preparing = self._creator_waits = trio.Event()

    def claim_wait(self) -> trio.Event | None:
        """What the command that made the topic waits for, None if it may go on.

        Whoever asks first made it; all others go on at once: what they publish is queued.
        """
        event, self._creator_waits = self._creator_waits, None
        return event

    async def run(
        self,
        defects: Defects,
        channels: Callable[[str], Awaitable[list[str]]] | None = None,
    ) -> None:
        """The topic's life: until it is deleted or the broker ends.

        Args:
            defects: keep an exception that nobody expected: the task begins again after a pause.
            channels: after `prepare`: finds out which channels are made before the first message
                goes anywhere.
        """
        what = f"TOPIC({self.name})"
        with self.cancel_scope:
            if channels is not None:
                with defects.fence("topic", what):
                    await self._make_channels(channels)
            pump = partial(self._pump, defects, what)
            await defects.keep_running("topic", what, pump, stops_messages=True)

    async def _pump(self, defects: Defects, what: str) -> None:
        core, clock, wake_up = self.core, self._clock, self._wake_up
        while True:
            wake_up.clear()
            segments = cost = 0
            while done := core.pump(clock.now_s(), clock.now_ns()):
                segments += 1
                cost += done
                if segments == _SEGMENTS_MAX or cost >= _COST_MAX:
                    await trio.lowlevel.checkpoint()
                    segments = cost = 0
                    wake_up.clear()
            if defects.stopped:
                defects.runs(what)
            await wake_up.wait()

    async def _make_channels(self, channels: Callable[[str], Awaitable[list[str]]]) -> None:
        assert self._preparing is not None
        try:
            for made, name in enumerate(await channels(self.name), 1):
                self.channel(name)
                if made % _MADE_MAX == 0:
                    await trio.lowlevel.checkpoint()
        finally:
            self._preparing.set()
            self._preparing = None

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    def publish(self, bodies: Bodies, defer_ms: int = 0) -> None:
        """Queue messages: all of them, or none.

        Raises:
            PublishRefused: the topic is being deleted, or has no room.
        """
        if self.exiting:
            raise PublishRefused("exiting")
        try:
            self.core.publish(bodies, self._clock.now_ns(), defer_ms)
        except BackendError as error:
            raise PublishRefused(str(error)) from error

    @property
    def will_make_room(self) -> bool:
        """Whether the topic's task is about to move messages on."""
        core = self.core
        if self._preparing is not None:
            return False
        if core.error is not None and not core.paused:
            stuck_at = core.stuck_at
            return stuck_at is not None and self.channels[stuck_at.name].will_make_room
        return core.can_pump and core.store.memory.depth > 0

    def should_wait(self, count: int) -> bool:
        """Whether ``count`` messages had better be published after `wait_for_room`.

        That is so while memory has no room for them but is about to have, so that they need not go
        to disk; and while the disk is behind.
        """
        store = self.core.store
        if count <= store.room or self.exiting:
            return False
        return store.backend.behind or (
            store.room < min(count, store.limit) and (self._waits_for_disk or self.will_make_room)
        )

    @property
    def _waits_for_disk(self) -> bool:
        return isinstance(self.core.error, BackendBusy)

    async def wait_for_room(self, count: int) -> None:
        """Wait as long as `should_wait` says so; `publish` is the next step."""
        if self._seekers is None:
            self._seekers = trio.Semaphore(_SEEKERS_MAX)
        async with self._seekers:
            while self.should_wait(count):
                if self.core.store.backend.behind or self._waits_for_disk:
                    await self._may_go_on.wait()
                else:
                    await trio.lowlevel.checkpoint()

    def _go_on(self) -> None:
        """What held up the fan-out or publishers may be over: all of them look again."""
        self._may_go_on.set()
        self._may_go_on = trio.Event()
        self.core.retry()
        self._wake_up.wake()

    def channel(self, name: str) -> Channel:
        """The channel of that name, made if need be. The name is valid."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = self._new_channel(self, name)
            channel.core.made_room = self._made_room
            channel.core.store.backend.caught_up = partial(self._channel_caught_up, channel)
            self.core.add_channel(channel.core)
            self._wake_up.wake()
        return channel

    def _channel_caught_up(self, channel: Channel) -> None:
        channel.wake()
        if self.core.error is not None:
            self._go_on()

    def _made_room(self) -> None:
        if self.core.error is not None:
            self._go_on()

    def delete_channel(self, name: str) -> Chore:
        """Delete a channel; an ephemeral topic goes with its last one.

        The chore closes the clients.
        """
        channel = self.channels.pop(name)
        self.core.remove_channel(name)
        chore = channel.close()
        if is_ephemeral(self.name) and not self.channels and not self.exiting:
            self._deleted(self)
        else:
            self._go_on()
        self._channel_gone(self, channel)
        return chore

    def pause(self) -> None:
        self.core.paused = True

    def unpause(self) -> None:
        self.core.paused = False
        self._wake_up.wake()

    def empty(self) -> Chore:
        """Drop what waits at the topic, not at its channels."""
        chore = self._chores.start(self.core.empty())
        self._go_on()
        return chore

    def check(self) -> str | None:
        """What is wrong with its account of its messages, None if nothing is. Cheap."""
        return self.core.check()

    def mark_exiting(self) -> None:
        """The task has ended: nothing is published any more."""
        self.exiting = True
        self._go_on()
        for channel in self.channels.values():
            channel.mark_exiting()

    def close(self) -> Chore:
        """End the task, and delete all channels; what waits is dropped.

        Nothing is published or fanned out any more. The chore deletes the channels.
        """
        self.exiting = True
        self.cancel_scope.cancel()
        emptying = self.core.empty()
        self._go_on()
        self.core.store.backend.delete()
        return self._chores.start(chain(self._delete_channels(), emptying))

    def _delete_channels(self) -> Iterator[None]:
        closing: list[Chore] = []
        while names := list(islice(self.channels, _DELETE_MAX)):
            closing += map(self.delete_channel, names)
            if self.channels:
                yield
        while closing:
            if closing[-1].is_done:
                closing.pop()
            else:
                yield
