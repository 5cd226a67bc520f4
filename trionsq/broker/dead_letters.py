"""The dead letters of a broker: what channels gave up is kept, handed on, replayed, discarded.

A channel forgets a message when its letter is durable; a letter goes when its message is durable
in the channel again. So a crash leaves a message in one place, or in both, and in none never.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio

from trionsq.broker.channel import Channel
from trionsq.broker.letterbox import Letterbox, batch_of
from trionsq.broker.registry import TopicRegistry
from trionsq.broker.replays import Replays
from trionsq.broker.runtime import Clock, ListeningPorts, LiveOptions
from trionsq.broker.topic import PublishRefused, until_safe
from trionsq.core.given_up import GivenUp, GivenUpMessage
from trionsq.core.governed import renew_bounds
from trionsq.core.subscription import Delivery
from trionsq.disk import Disk
from trionsq.storage.folder import DataFolder
from trionsq.storage.letters import (
    DeadLetter,
    DeadLetterStore,
    FoundLetters,
    LetterError,
    LetterFilter,
    LetterTally,
    SqliteLetters,
)
from trionsq.wire.names import is_valid_name

__all__ = ["ALL_LETTERS", "MAX_LETTER_BYTES", "DeadLetters"]

log = logging.getLogger("trionsq")

ALL_LETTERS: Final = 2**62
"""A limit that is none."""

# Letters of one transaction, of one publish to the dead-letter topic.
_MAX_LETTERS: Final = 200
_MAX_BYTES: Final = 4 * 1024 * 1024
# What failed is tried again after this time.
_RETRY_S: Final = 1.0
# How long a finished letter may stay.
_FINISHED_S: Final = 0.5
MAX_LETTER_BYTES: Final = 1 << 30
"""Bytes of the bodies of all letters. Beyond it messages return to their channels."""

_EPHEMERAL: Final = "#ephemeral"
_DEFAULT_NAME: Final = "{topic}.dead"


class DeadLetters:
    """The dead letters.

    Attributes:
        replays: sends letters back.
    """

    def __init__(
        self,
        folder: DataFolder,
        clock: Clock,
        registry: TopicRegistry,
        options: LiveOptions,
        ports: ListeningPorts,
        open_store: Callable[[Disk], DeadLetterStore] = SqliteLetters,
        max_bytes: int = MAX_LETTER_BYTES,
    ) -> None:
        """``ports`` are where clients connect; ``max_bytes`` is for the bodies of all letters."""
        topics = registry.topics
        self._box = Letterbox(folder, clock, open_store)
        self.replays = Replays(self._box, topics, clock, self._note_change)
        self._folder = folder
        self._clock = clock
        self._topics = topics
        self._registry = registry
        self._options = options
        self._ports = ports
        registry.channel_made = self.serve_channel
        self._max_bytes = max_bytes
        self._targets: set[str] = set()
        # Channels that have given something up, in order.
        self._dying: dict[Channel, None] = {}
        self._to_feed: dict[str, None] = {}
        self._finished: dict[str, None] = {}
        self._gone: dict[str, None] = {}
        self._wake_keep = trio.Event()
        self._wake_feed = trio.Event()

    def __repr__(self) -> str:
        return f"<DeadLetters {self._box.count}>"

    @property
    def counts(self) -> Counter[str]:
        """See `Letterbox`."""
        return self._box.counts

    @property
    def tallies(self) -> list[LetterTally]:
        """What there is of each channel, as of the last change."""
        return self._box.tallies

    async def copier(self) -> Callable[[Disk], None]:
        """See `Letterbox`."""
        return await self._box.copier()

    async def _note_change(self) -> None:
        """Letters came or went."""
        await self._box.count_anew()
        for one in self._box.tallies:
            if one.dead_topic:
                self._add_target(one.dead_topic)
        waiting = self._box.waiting()
        for name in self._targets:
            if (topic := self._topics.get(name)) is not None:
                topic.letters = waiting[name]

    def _add_target(self, name: str) -> None:
        if name not in self._targets:
            self._targets.add(name)
            if (topic := self._topics.get(name)) is not None:
                for channel in topic.channels.values():
                    self._watch(channel)

    async def close(self) -> None:
        """Release the file."""
        await self._box.close()

    # Channels

    def serve_channel(self, channel: Channel) -> None:
        """Take what a channel gives up from now on; if it is of a dead-letter topic, see what its
        consumers finish."""
        wake = partial(self._wake_for, channel)
        accepts = partial(self._accepts, channel)
        channel.given_up = GivenUp(channel.core, wake, accepts)
        if channel.topic.name in self._targets:
            self._watch(channel)
            self._feed_soon(channel.topic.name)
        renew_bounds(channel.core, self._clock.now_ns)

    def _watch(self, channel: Channel) -> None:
        latencies = channel.core.latencies
        record = None if latencies is None else latencies.record_finished

        def note(ids: list[bytes], deliveries: list[Delivery | None], now_s: float) -> None:
            if record is not None:
                record(ids, deliveries, now_s)
            self._finished.update(dict.fromkeys(id_.decode(errors="replace") for id_ in ids))
            self._wake_feed.set()

        channel.core.note_finished = note
        if channel.given_up is not None:
            channel.given_up.is_final = True
            renew_bounds(channel.core, self._clock.now_ns)

    def _wake_for(self, channel: Channel) -> None:
        self._dying[channel] = None
        self._wake_keep.set()

    def _accepts(self, channel: Channel) -> bool:
        """A dead letter is not given up again; and what is full takes none."""
        if channel.topic.name in self._targets or channel.exiting:
            return False
        if self._max_bytes and self._box.nbytes >= self._max_bytes:
            self._box.counts["refused"] += 1
            error = LetterError(f"they have {self._box.nbytes} bytes, which is the limit")
            self._box.note_failure("messages go back to their channels", error)
            return False
        return True

    def dead_topic_of(self, channel: Channel) -> str:
        """Return the name of a channel's dead-letter topic; empty if no name is valid.

        It is never ephemeral: what is there would be lost with the next restart.
        """
        settings = channel.core.settings
        template = _DEFAULT_NAME if settings is None else settings.dead_letter_topic
        name = template.replace("{topic}", channel.topic.name.removesuffix(_EPHEMERAL))
        name = name.removesuffix(_EPHEMERAL)
        if not is_valid_name(name.encode()) or name == channel.topic.name:
            return ""
        return name

    def tasks(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Return the names of its tasks, and what they run."""
        return [
            ("dead letters", self.run),
            ("dead letters to their topics", self.run_feed),
            ("dead letters to their channels", self.replays.run),
        ]

    # What is given up

    async def run(self) -> None:
        """Keep what channels give up, until cancelled."""
        if self._box.is_there:
            await self._box.retry("reading the dead letters", self._note_change)
            for name in {one.dead_topic for one in self.tallies if one.unfed}:
                self._feed_soon(name)
            self.replays.wake()
        while True:
            self._wake_keep = trio.Event()
            while self._dying:
                channel = next(iter(self._dying))
                if not await self._keep_some(channel):
                    self._dying.pop(channel, None)
            await self._wake_keep.wait()

    async def _keep_some(self, channel: Channel) -> bool:
        """Keep the next messages that a channel has given up; False if there were none."""
        given_up = channel.given_up
        assert given_up is not None
        messages = given_up.take(_MAX_LETTERS, _MAX_BYTES)
        if not messages:
            return False
        letters = self._letters_of(channel, messages)
        try:
            await self._box.call(lambda store: store.add(letters))
        except LetterError as error:
            self._box.counts["refused"] += len(messages)
            given_up.give_back(messages)
            channel.wake()
            self._box.note_failure("messages go back to their channel", error)
            await trio.sleep(_RETRY_S)
            return True
        except BaseException:
            # The stop puts them back to the queue; perhaps both will have them.
            given_up.put_off(messages)
            raise
        given_up.gone(messages)
        self._box.counts["kept"] += len(letters)
        dead_topic = letters[0].dead_topic
        log.info(
            "DEADLETTER: %d messages of %s:%s went to %s",
            len(letters), channel.topic.name, channel.name, dead_topic or "no topic",
        )  # fmt: skip
        await self._box.retry("counting the dead letters", self._note_change)
        self._feed_soon(dead_topic)
        return True

    def _letters_of(self, channel: Channel, messages: Sequence[GivenUpMessage]) -> list[DeadLetter]:
        dead_topic, now_ns = self.dead_topic_of(channel), self._clock.now_ns()
        ids_of = channel.topic.core.ids
        if dead_topic:
            self._add_target(dead_topic)
            ids_of = self._registry.topic(dead_topic).core.ids
        node = f"{self._options.current.broadcast_address}:{self._ports.tcp}"
        ids = ids_of.next_ids(len(messages), now_ns).slice(0, len(messages))
        return [
            DeadLetter(
                id=id_.decode(),
                dead_topic=dead_topic,
                topic=channel.topic.name,
                channel=channel.name,
                node=node,
                message=one.id.decode(errors="replace"),
                reason=one.reason,
                attempts=one.delivery.attempts,
                first_ns=one.published_ns,
                last_ns=now_ns,
                client=one.client,
                body=bytes(one.body),
            )
            for id_, one in zip(ids, messages, strict=True)
        ]

    # The dead-letter topics

    def _feed_soon(self, name: str) -> None:
        if name:
            self._to_feed[name] = None
            self._wake_feed.set()

    def topic_gone(self, name: str) -> None:
        """A dead-letter topic was deleted, with its messages: its letters go, too."""
        if name in self._targets:
            self._targets.discard(name)
            self._gone[name] = None
            self._wake_feed.set()

    async def run_feed(self) -> None:
        """Publish letters to their topics if these have a channel, until cancelled.

        Letters that a consumer there has finished go.
        """
        while True:
            self._wake_feed = trio.Event()
            while self._to_feed:
                name = next(iter(self._to_feed))
                self._to_feed.pop(name)
                await self._box.retry(f"handing on to {name}", partial(self._feed, name))
            while self._gone:
                name = next(iter(self._gone))
                await self._box.retry(
                    f"removing the letters of {name}", partial(self._remove_all, name)
                )
                self._gone.pop(name)
            if self._finished:
                await trio.sleep(_FINISHED_S)
                await self._box.retry("removing finished letters", self._remove_finished)
            await self._wake_feed.wait()

    async def _feed(self, name: str) -> None:
        while (topic := self._topics.get(name)) is not None and topic.channels:
            letters = await self._box.call(lambda store: store.unfed(name, _MAX_LETTERS))
            if not letters or topic.exiting:
                return
            await topic.wait_for_room(len(letters))
            try:
                pending = topic.publish_batch(batch_of(letters))
                if pending is not None:
                    await until_safe(pending)
            except PublishRefused as refused:
                raise LetterError(str(refused)) from refused
            numbers = [one.number for one in letters]
            await self._box.call(partial(_mark_fed, numbers))
            self._box.counts["handed_on"] += len(letters)
            await self._note_change()

    async def _remove_all(self, name: str) -> None:
        await self.discard(LetterFilter(dead_topic=name), ALL_LETTERS)

    async def _remove_finished(self) -> None:
        while self._finished:
            ids = tuple(self._finished)[:_MAX_LETTERS]
            wanted = LetterFilter(ids=ids)
            count = await self._box.call(partial(_remove, wanted))
            for id_ in ids:
                self._finished.pop(id_, None)
            if count:
                self._box.counts["finished"] += count
                await self._note_change()

    # By the operator

    async def find(self, wanted: LetterFilter, limit: int, max_body: int) -> FoundLetters:
        """Return letters, the oldest first, with so much of their bodies.

        Raises:
            LetterError: they cannot be read.
        """
        if not self._box.count:
            return FoundLetters([], 0)
        return await self._box.call(lambda store: store.find(wanted, limit, max_body))

    async def replay(self, wanted: LetterFilter, limit: int, rate: int) -> int:
        """Have letters go back to their channels, so many a second; return how many will.

        Raises:
            LetterError: it could not be noted.
        """
        if not self._box.count:
            return 0
        count = await self._box.call(lambda store: store.mark_replay(wanted, limit))
        self.replays.rate = rate
        self.replays.wake()
        return count

    async def topic_emptied(self, name: str) -> None:
        """A topic was emptied: what waits beside it goes, too.

        Raises:
            LetterError: some may be left.
        """
        if name in self._targets:
            await self.discard(LetterFilter(dead_topic=name, unfed=True), ALL_LETTERS)

    async def discard(self, wanted: LetterFilter, limit: int) -> int:
        """Remove letters; return how many there were.

        Raises:
            LetterError: some may be left.
        """
        if not self._box.count:
            return 0
        count = await self._box.call(lambda store: store.remove(wanted, limit))
        self._box.counts["discarded"] += count
        await self._note_change()
        return count


def _remove(wanted: LetterFilter, store: DeadLetterStore) -> int:
    return store.remove(wanted, len(wanted.ids))


def _mark_fed(numbers: list[int], store: DeadLetterStore) -> None:
    store.mark_fed(numbers)
